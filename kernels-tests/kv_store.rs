use farpast::memory::{Element, Host};

use crate::cases::{Case, Random, of};
use crate::harness::{catches, catches_any_fault, check, run};

#[test]
fn equals_its_reference_on_ragged_batches() {
    check("kv_store");
}

/// By the definition, of all powers of two up to 32 that divide the dims.
fn turned(x: &[f32]) -> Vec<f32> {
    let r = [32, 16, 8, 4].into_iter().find(|r| x.len().is_multiple_of(*r)).unwrap();
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let of = |x: &[f32], i| (0..r).map(|j| sign(i, j) * f64::from(x[j])).sum::<f64>() / (r as f64).sqrt();
    x.chunks(r).flat_map(|x| (0..r).map(move |i| of(x, i) as f32)).collect()
}

#[test]
fn turning_changes_no_product_and_is_undone_by_itself() {
    for n in [4, 12, 40, 80, 64, 96] {
        let mut random = Random(n as u64);
        let [a, b] = [0, 1].map(|_| (0..n).map(|_| random.signed(3.0)).collect::<Vec<_>>());
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert!((product(&a, &b) - product(&turned(&a), &turned(&b))).abs() < 1e-4, "{n}");
        assert!(turned(&turned(&a)).iter().zip(&a).all(|(x, y)| (x - y).abs() < 1e-5), "{n}");
        assert!(turned(&a) != a);
    }
}

/// Half a step of the block, or, of 4 bits, a whole one where the sign that has fewer steps ends.
#[test]
fn each_element_is_rounded_to_the_nearest_step_and_the_largest_of_a_block_is_kept() {
    for case in of("kv_store") {
        let Case::KvStore { dims: d, kv, .. } = case else { unreachable!() };
        let setup = case.setup();
        let dispatch = &setup.program.dispatches[0];
        let slots: Vec<_> = setup.host(dispatch.tensors[0]).u32().chunks(4).map(|token| token[2] as usize).collect();
        let tokens = setup.steps[0].n_tokens as usize;
        let pages: Vec<_> = dispatch.written().skip(1).collect();
        for (i, found) in run(&setup, &pages).iter().enumerate() {
            let Host::Blocks(found) = found else { unreachable!() };
            let from = setup.host(dispatch.tensors[1 + i]);
            for (t, g) in (0..tokens).flat_map(|t| (0..d.kv_heads).map(move |g| (t, g))) {
                let row = (slots[t] / 16 * d.kv_heads + g) * 16 + slots[t] % 16;
                let (_, scales) = found.quants(row);
                let mut rounded = vec![0.0; d.head_dim];
                found.row(row, &mut rounded);
                let x = &from.f32()[(t * d.kv_heads + g) * d.head_dim..][..d.head_dim];
                let x = if i == 0 { turned(x) } else { x.to_vec() };
                for ((x, y), scale) in x.chunks(32).zip(rounded.chunks(32)).zip(scales) {
                    let extreme = x.iter().fold(0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
                    // The scale is rounded to f16.
                    let (step, most) = (scale.to_f32().abs(), extreme.abs() * (1.0 + 1.0 / 1024.0) + 1e-5);
                    assert!(step <= most / if kv == Element::Q8_0 { 127.0 } else { 8.0 }, "{case:?}");
                    for (x, y) in x.iter().zip(y) {
                        let is_last = kv == Element::Q4_0 && x * extreme < 0.0 && x.abs() > 7.0 * step;
                        let bound = if is_last { 1.01 } else { 0.51 } * step + 1e-6;
                        assert!((x - y).abs() <= bound, "{case:?}: {x} became {y}, steps of {step}");
                        assert!(*x != extreme || (x - y).abs() <= most / 512.0, "{case:?}: {x} became {y}");
                    }
                }
            }
        }
    }
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "kv_store",
        &[
            ("/ 127.0", "/ 126.0"),
            ("max(most, -least)", "most"),
            ("select(least, most, most > -least)", "most"),
            ("round((*x)[i] * inverse)", "trunc((*x)[i] * inverse)"),
            ("vec4(-127.0)", "vec4(-100.0)"),
            ("round(x) + 8.0", "x + 8.0"),
            ("<< 4u", "<< 3u"),
            ("dims >= D4", "dims > D4"),
            ("(t * G + g) * D4 + dims", "(t + g) * D4 + dims"),
            ("if is_value { v_pages[at] = q", "if !is_value { v_pages[at] = q"),
            ("if head < H + G { turn", "if head <= H + G { turn"),
            ("if head < H + G { turn", "if head < H { turn"),
            ("b.xy - b.zw", "b.zw - b.xy"),
            ("(*x)[d + h] = a - b", "(*x)[d + h] = b - a"),
            ("(d & h) != 0u", "(d & h) == 0u"),
            ("inverseSqrt(f32(4u * R4))", "inverseSqrt(f32(R4))"),
            ("pack2x16float(scales); } else", "pack2x16float(scales.yx); } else"),
            ("j * OF_SCALES", "j"),
            ("slot % PAGE", "(slot + 1u) % PAGE"),
            ("least = min(least, of_block[d])", "least = of_block[d]"),
        ],
    );
    catches_any_fault("kv_store");
}
