//! Loops over rows of floats, written so that compilers make SIMD of them.

const LANES: usize = 16;

/// a · b.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a, rest_a) = a.as_chunks::<LANES>();
    let (b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum::<f32>()
}

/// `to += weight * x`.
pub fn add_scaled(to: &mut [f32], weight: f32, x: &[f32]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += weight * x;
    }
}

/// ln sum exp.
pub fn log_sum_exp(scores: impl Iterator<Item = f32> + Clone) -> f32 {
    let most = scores.clone().fold(f32::NEG_INFINITY, f32::max);
    if most == f32::NEG_INFINITY { most } else { most + scores.map(|s| (s - most).exp()).sum::<f32>().ln() }
}

/// Indices of the `n` largest numbers, largest first; equal ones in order.
pub fn largest(numbers: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..numbers.len()).collect();
    let by = |a: &usize, b: &usize| numbers[*b].total_cmp(&numbers[*a]).then(a.cmp(b));
    if n < order.len() {
        order.select_nth_unstable_by(n, by);
        order.truncate(n);
    }
    order.sort_unstable_by(by);
    order
}

/// Cells of rows of `d`, each the rows' indices and their mean: Lloyd's iterations from rows at equal distances. No cell is empty.
pub fn cells(rows: &[f32], d: usize, k: usize) -> Vec<(Vec<usize>, Vec<f32>)> {
    const ITERATIONS: usize = 10;
    let n = rows.len() / d;
    let k = k.clamp(1, n);
    let row = |i: usize| &rows[i * d..(i + 1) * d];
    let mut centres: Vec<f32> = (0..k).flat_map(|c| row(c * n / k).to_vec()).collect();
    let mut nearest = vec![0; n];
    for _ in 0..ITERATIONS {
        let halves: Vec<_> = centres.chunks(d).map(|c| dot(c, c) / 2.0).collect();
        for (i, nearest) in nearest.iter_mut().enumerate() {
            let closeness = |c: usize| dot(row(i), &centres[c * d..(c + 1) * d]) - halves[c];
            let mut best = (0, f32::NEG_INFINITY);
            for c in 0..k {
                let found = closeness(c);
                if found > best.1 {
                    best = (c, found);
                }
            }
            *nearest = best.0;
        }
        let mut counts = vec![0.0f32; k];
        centres.fill(0.0);
        for (i, c) in nearest.iter().enumerate() {
            counts[*c] += 1.0;
            add_scaled(&mut centres[c * d..(c + 1) * d], 1.0, row(i));
        }
        for (c, (centre, count)) in centres.chunks_mut(d).zip(&counts).enumerate() {
            match *count {
                // It begins anew elsewhere.
                0.0 => centre.copy_from_slice(row((c * 7919 + 1) % n)),
                count => centre.iter_mut().for_each(|x| *x /= count),
            }
        }
    }
    let mut cells: Vec<(Vec<usize>, Vec<f32>)> = vec![(Vec::new(), vec![0.0; d]); k];
    for (i, c) in nearest.iter().enumerate() {
        cells[*c].0.push(i);
    }
    cells.retain(|(rows, _)| !rows.is_empty());
    for (rows, centre) in &mut cells {
        *centre = mean(rows.iter().map(|i| row(*i)), d);
    }
    cells
}

/// Mean of rows of `d`.
pub fn mean<'a>(rows: impl Iterator<Item = &'a [f32]>, d: usize) -> Vec<f32> {
    let (mut mean, mut n) = (vec![0.0; d], 0.0);
    for row in rows {
        add_scaled(&mut mean, 1.0, row);
        n += 1.0;
    }
    mean.iter_mut().for_each(|x| *x /= n);
    mean
}
