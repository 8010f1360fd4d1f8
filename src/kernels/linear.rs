//! `y[t, n] = sum_k w[n, k] * x[t, k]`, or the same added to `y`.

use rayon::prelude::*;

use super::rmsnorm::{NORM_FLOPS, norm_row};
use super::{NORM_FOLD, NORM_NONE, ROWS, WORKGROUP, lane_include, rms_include};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Maths, Matrices, MatrixShape, Tensor, TensorDesc, Weight, WeightStack, stride};
use crate::program::{Mode, Recorder};

/// See the module.
pub static LINEAR: Kernel = Kernel {
    name: "linear",
    source: include_str!("../../shaders/linear.wgsl"),
    bindings: &[("step", Access::Step), ("x", Read), ("w", Read), ("y", ReadWrite)],
    reference,
    cost,
};

/// Rows from which on there are workgroups enough of many lanes each, which read memory in longer runs.
const WIDE: usize = 4096;

/// The norm that a linear's input goes through.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// `[K]`.
    pub gain: Tensor,
    /// Added to the mean of the squares.
    pub eps: f32,
    /// `[T, K]`: where prefill leaves the result.
    pub h: Tensor,
}

impl Recorder<'_> {
    /// `x`: `[T, K]`, `w`: `[N, K]`, `y`: `[T, N]`.
    pub fn linear(&mut self, x: Tensor, w: &Weight, y: Tensor) {
        self.linear_with(x, w, y, false);
    }

    /// As [`linear`](Self::linear), added to `y`.
    pub fn linear_add(&mut self, x: Tensor, w: &Weight, y: Tensor) {
        self.linear_with(x, w, y, true);
    }

    fn linear_with(&mut self, x: Tensor, w: &Weight, y: Tensor, add: bool) {
        self.expect(x, Element::F32, w.cols);
        self.expect(y, Element::F32, w.rows);
        let bound = self.bound(x);
        let mut row0 = 0;
        for &part in &w.parts {
            let (spec, [across, down]) =
                self.tiled(part, bound, self.lanes_of(part), Spec::default().include(NORM_NONE));
            let spec = spec.u32("ROW0", row0).u32("STRIDE", stride(w.rows)).u32("ADD", add as usize);
            let spec = spec.u32("OUTPUTS", (bound == Count::Outputs) as usize);
            self.dispatch(&LINEAR, spec, &[x, part, y], [across, down, Extent::Fixed(1)]);
            row0 += self.desc(part).rows;
        }
    }

    /// Invocations of a workgroup for the rows of `part`.
    pub(super) fn lanes_of(&self, part: Tensor) -> usize {
        let wide = self.mode() != Mode::Prefill && self.desc(part).rows >= WIDE;
        if wide { self.tile().lanes.max(WORKGROUP) } else { self.tile().lanes }
    }

    /// What a linear that reads `x` normalised reads, and how: in decode it may normalise while it reads, else `norm.h` is
    /// written first. Either way the bits are the same.
    pub(super) fn normed(&mut self, x: Tensor, norm: Norm) -> (Tensor, Spec) {
        match self.mode() == Mode::Decode && self.tile().folds {
            true => {
                let spec = Spec::default().include(NORM_FOLD).include(rms_include(self.tile()));
                (x, spec.f32("EPS", norm.eps))
            }
            false => {
                self.rmsnorm(x, norm.gain, norm.eps, norm.h);
                (norm.h, Spec::default().include(NORM_NONE))
            }
        }
    }

    /// `spec` with what all linears share for `part`, and the workgroups along its rows and the tokens.
    pub(super) fn tiled(&self, part: Tensor, bound: Count, lanes: usize, spec: Spec) -> (Spec, [Extent; 2]) {
        let (format, rows, cols) = (self.format(part), self.desc(part).rows, self.desc(part).cols);
        let spec = spec.include(format.wgsl).include(ROWS).include(LINEAR_COMMON);
        let spec =
            spec.u32("N", rows).u32("K", cols).u32("GROUPS", cols.div_ceil(32)).u32("UNITS", (format.units)(cols));
        let tile = self.tile();
        // Logits are wanted of few rows.
        if tile.maths == Maths::Coopmat && self.mode() == Mode::Prefill && bound == Count::Tokens {
            let (spec, tokens) = by_matrices(tile.matrices, spec);
            return (spec, [Extent::Fixed(rows.div_ceil(MATRIX_ROWS)), Extent::Per(bound, tokens)]);
        }
        let one = self.mode() == Mode::Decode;
        let maths = if tile.maths == Maths::Dot8 && !format.packed { Maths::F32 } else { tile.maths };
        let spec = spec.include(lane_include(tile));
        let spec = match maths {
            Maths::F32 | Maths::Coopmat => spec.include(NUM_F32).include(MATHS_F32).include(PRODUCTS),
            Maths::F16 => spec.enable("f16").include(NUM_F16).include(MATHS_F16).include(PRODUCTS),
            Maths::Dot8 => spec.include(PRODUCTS_DOT8),
        };
        let spec = spec.include(match (maths, tile.broadcast) {
            (Maths::Dot8, true) => include_str!("../../shaders/common/x_dot8_broadcast.wgsl"),
            (Maths::Dot8, false) => include_str!("../../shaders/common/x_dot8_loads.wgsl"),
            (_, true) => include_str!("../../shaders/common/x_broadcast.wgsl"),
            (_, false) => include_str!("../../shaders/common/x_loads.wgsl"),
        });
        let spec = spec.include(if one { TOKENS_1 } else { TOKENS_4 });
        let spec = spec.include(match (maths, one) {
            (Maths::Dot8, true) => include_str!("../../shaders/common/held_1_dot8.wgsl"),
            (Maths::Dot8, false) => include_str!("../../shaders/common/held_4_dot8.wgsl"),
            (_, true) => include_str!("../../shaders/common/held_1.wgsl"),
            (_, false) => include_str!("../../shaders/common/held_4.wgsl"),
        });
        let spec = spec.u32("LANES", lanes).u32("ROWS", tile.rows);
        let across = Extent::Fixed(rows.div_ceil(lanes * tile.rows));
        (spec, [across, Extent::Per(bound, if one { 1 } else { 4 })])
    }

    /// The parts of a weight of pairs, and the pairs in each.
    pub(super) fn pairs(&self, w: &Weight) -> Vec<(Tensor, usize)> {
        let mut left = w.rows / 2;
        let of_part = |part: &Tensor| {
            let pairs = left.min(self.desc(*part).rows / 2);
            left -= pairs;
            (*part, pairs)
        };
        w.parts.iter().map(of_part).collect()
    }
}

/// With the files by which linears multiply by `matrices`, and the tokens of a workgroup.
fn by_matrices(matrices: Matrices, spec: Spec) -> (Spec, usize) {
    let spec = spec.enable("wgpu_cooperative_matrix").include(match matrices.shape {
        MatrixShape::F16x16 => include_str!("../../shaders/common/matrices_16.wgsl"),
        MatrixShape::F16x8 | MatrixShape::F32x8 => include_str!("../../shaders/common/matrices_8.wgsl"),
    });
    // Of f32, workgroup memory holds half as many tokens. Staged rows are whole 16 bytes, and no multiple of 128 bytes, so that
    // they lie in different banks.
    let (spec, tokens, pitch) = match matrices.shape {
        MatrixShape::F16x16 | MatrixShape::F16x8 => (spec.enable("f16").include(NUM_F16), 32, 40),
        MatrixShape::F32x8 => (spec.include(NUM_F32), 16, 36),
    };
    let spec = spec.include(include_str!("../../shaders/common/lane_matrices.wgsl"));
    let spec = spec.include(include_str!("../../shaders/common/products_coopmat.wgsl"));
    // Pairs of rows are of one invocation.
    let rows = (MATRIX_ROWS / matrices.subgroup).max(2);
    (spec.u32("LANES", matrices.subgroup).u32("ROWS", rows).u32("TOKENS", tokens).u32("PITCH", pitch), tokens)
}

/// Rows of a workgroup that multiplies by cooperative matrices: TILE in products_coopmat.wgsl.
const MATRIX_ROWS: usize = 64;

pub(super) const LINEAR_COMMON: &str = include_str!("../../shaders/common/linear.wgsl");
const NUM_F32: &str = include_str!("../../shaders/common/num_f32.wgsl");
const NUM_F16: &str = include_str!("../../shaders/common/num_f16.wgsl");
const MATHS_F32: &str = include_str!("../../shaders/common/maths_f32.wgsl");
const MATHS_F16: &str = include_str!("../../shaders/common/maths_f16.wgsl");
const TOKENS_1: &str = include_str!("../../shaders/common/tokens_1.wgsl");
const TOKENS_4: &str = include_str!("../../shaders/common/tokens_4.wgsl");
const PRODUCTS: &str = include_str!("../../shaders/common/products.wgsl");
const PRODUCTS_DOT8: &str = include_str!("../../shaders/common/products_dot8.wgsl");

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [x, w, y] = tensors else { unreachable!() };
    let [row0, y_stride, add] = ["ROW0", "STRIDE", "ADD"].map(|name| spec.get_u32(name));
    let (x, y) = (normed_rows(x, spec, step.rows(spec), &[]), y.f32_mut());
    for (n, products) in times(w.weight(), &x).iter().enumerate() {
        for (t, product) in products.iter().enumerate() {
            let at = t * y_stride + row0 + n;
            y[at] = if add == 1 { (y[at] as f64 + product) as f32 } else { *product as f32 };
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [x, w, _] = tensors else { unreachable!() };
    let (rows, add) = (step.rows(spec), spec.get_u32("ADD"));
    let results = 4 * rows * w.rows;
    let read = x.bytes_of(rows) + w.bytes() + add * results;
    Cost::new(read, results, rows * w.rows * (2 * w.cols + add))
}

/// Of `rows` rows of x, which is normalised where the spec says so, and the weights `w`, of which `used` rows are no padding.
pub(super) fn normed_cost(spec: &Spec, rows: usize, x: &TensorDesc, w: &TensorDesc, used: usize) -> Cost {
    let folds = usize::from(spec.includes(NORM_FOLD));
    let (gains, norm) = (folds * 4 * x.cols, folds * NORM_FLOPS * rows * x.cols);
    Cost::new(x.bytes_of(rows) + gains + w.bytes(), 0, 2 * rows * used * w.cols + norm)
}

/// The first `rows` rows of `[_, K]`, normalised and rounded to int8 where the spec says so.
pub(super) fn normed_rows(x: &Host, spec: &Spec, rows: usize, gains: &[f32]) -> Vec<Vec<f64>> {
    let k = spec.get_u32("K");
    let row = |row: &[f32]| match spec.includes(NORM_FOLD) {
        true => norm_row(&row[..k], gains, spec.get_f32("EPS")).collect(),
        false => row[..k].iter().map(|&v| v as f64).collect(),
    };
    let mut x: Vec<Vec<f64>> = x.f32().chunks(stride(k)).take(rows).map(row).collect();
    if spec.includes(PRODUCTS_DOT8) {
        x.iter_mut().for_each(|x| round8(x));
    }
    x
}

/// Each 32 in 127 steps to the largest magnitude: ggml's Q8_1.
fn round8(x: &mut [f64]) {
    for group in x.chunks_mut(32) {
        let step = group.iter().fold(0.0f64, |most, x| most.max(x.abs())) / 127.0;
        if step > 0.0 {
            group.iter_mut().for_each(|x| *x = (*x / step).round_ties_even() * step);
        }
    }
}

/// The product of every row of `w` with every row of `x`: `[n][t]`.
pub(super) fn times(w: &WeightStack, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let product = |weights: &mut Vec<f32>, n: usize| {
        w.decode_row(n, weights);
        x.iter().map(|x| dot(weights, x)).collect()
    };
    (0..w.rows()).into_par_iter().map_init(|| vec![0.0; w.cols()], product).collect()
}

/// In f64, as eight interleaved sums so that it vectorises.
fn dot(w: &[f32], x: &[f64]) -> f64 {
    let (w8, w_rest) = w.as_chunks::<8>();
    let (x8, x_rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (w, x) in w8.iter().zip(x8) {
        for i in 0..8 {
            sums[i] += w[i] as f64 * x[i];
        }
    }
    sums.iter().sum::<f64>() + w_rest.iter().zip(x_rest).map(|(w, x)| *w as f64 * x).sum::<f64>()
}
