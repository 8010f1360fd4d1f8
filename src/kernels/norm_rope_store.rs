//! Norm of the heads of q and k and their rotary embedding, with k and v written to their page slots.
//!
//! Source: Henry et al. 2020, arXiv:2010.04245, with the norm of [`rmsnorm`](Recorder::rmsnorm); Su et al. 2021,
//! arXiv:2104.09864, equation 34. The angles are an input (`rope`), so that every scaling of them is
//! the host's affair and computed in f64.

use super::rmsnorm::{NORM_FLOPS, norm_row};
use super::{AttentionDims, AttentionInputs, LANE, RMS_LOADS, WORKGROUP, written_row};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static NORM_ROPE_STORE: Kernel = Kernel {
    name: "norm_rope_store",
    source: include_str!("../../shaders/norm_rope_store.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("rope", Read),
        ("x", Read),
        ("gains", Read),
        ("q", ReadWrite),
        ("k_pages", ReadWrite),
        ("v_pages", ReadWrite),
    ],
    reference,
    cost,
};

/// Which dims of a head turn together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pairs {
    /// (2p, 2p + 1), as in the paper; Llama's, in GGUF's order of rows.
    Neighbours,
    /// (p, p + R / 2), as in GPT-NeoX; Qwen's.
    Halves,
}

impl Pairs {
    /// Dims of pair `p` of a head of which `r` dims turn.
    pub fn dims(self, p: usize, r: usize) -> [usize; 2] {
        match self {
            Pairs::Neighbours => [2 * p, 2 * p + 1],
            Pairs::Halves => [p, p + r / 2],
        }
    }

    fn include(self) -> &'static str {
        match self {
            Pairs::Neighbours => include_str!("../../shaders/common/rope_neighbours.wgsl"),
            Pairs::Halves => include_str!("../../shaders/common/rope_halves.wgsl"),
        }
    }
}

/// Rotary embedding of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// `[context, R]`: for each position and pair its cos and sin.
    pub table: Tensor,
    /// R: dims of a head that turn, the first ones, a multiple of 8; 0: none, and the table is not read.
    pub dims: usize,
    /// Which dims turn together.
    pub pairs: Pairs,
}

impl Rope {
    /// No rotation.
    pub fn none(self) -> Self {
        Self { dims: 0, ..self }
    }
}

impl Recorder<'_> {
    /// `x`: `[T, (H + 2G) * D]`: q, k and v side by side; `gains`: `[2 * D]`: of the heads of q, of those of k; `q`: `[T, H*D]`;
    /// `kv`: k and v pages, `[pages * G * PAGE, D]`, f16 or f32, or their rows for [`kv_store`](Recorder::kv_store), `[T, G*D]`.
    #[allow(clippy::too_many_arguments)]
    pub fn norm_rope_store(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        rope: Rope,
        x: Tensor,
        gains: Tensor,
        eps: f32,
        q: Tensor,
        kv: [Tensor; 2],
    ) {
        if rope.dims > 0 {
            self.expect(rope.table, Element::F32, rope.dims);
        }
        let whole = d.head_dim.is_multiple_of(8) && rope.dims.is_multiple_of(8) && rope.dims <= d.head_dim;
        assert!(whole, "norm_rope_store: {} of {} dims turn; multiples of 8 are expected", rope.dims, d.head_dim);
        let heads = d.heads + 2 * d.kv_heads;
        self.expect(x, Element::F32, heads * d.head_dim);
        self.expect(gains, Element::F32, 2 * d.head_dim);
        self.expect(q, Element::F32, d.heads * d.head_dim);
        let spec = self.kv_write_spec(Spec::default(), d, kv).include(rope.pairs.include());
        let spec = spec.include(RMS_LOADS).include(LANE).f32("EPS", eps);
        let spec = spec.u32("D4", d.head_dim / 4).u32("R4", rope.dims / 4).u32("H", d.heads);
        let across = (heads * d.head_dim / 8).div_ceil(WORKGROUP);
        let extents = [Extent::Fixed(across), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
        self.dispatch(&NORM_ROPE_STORE, spec, &[inputs.tokens, rope.table, x, gains, q, kv[0], kv[1]], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, rope, x, gains, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, r4, heads, kv_heads] = ["D4", "R4", "H", "G"].map(|n| spec.get_u32(n));
    let (d, r, eps) = (4 * d4, 4 * r4, spec.get_f32("EPS"));
    let (rope, gains) = (rope.f32(), gains.f32());
    let pairs = if spec.includes(Pairs::Halves.include()) { Pairs::Halves } else { Pairs::Neighbours };
    let turned = |position: usize, x: &[f32], gains: &[f32]| -> Vec<f64> {
        let mut y: Vec<_> = norm_row(x, gains, eps).collect();
        for (p, turn) in rope[position * r..][..r].chunks(2).enumerate() {
            let [first, second] = pairs.dims(p, r);
            let [a, b, cos, sin] = [y[first], y[second], turn[0].into(), turn[1].into()];
            y[first] = a * cos - b * sin;
            y[second] = a * sin + b * cos;
        }
        y
    };
    let rows = x.f32().chunks((heads + 2 * kv_heads) * d);
    for (t, (token, x)) in tokens.u32().chunks(4).zip(rows).take(step.n_tokens as usize).enumerate() {
        let (position, slot) = (token[1] as usize, token[2] as usize);
        let (of_q, rest) = x.split_at(heads * d);
        let (of_k, of_v) = rest.split_at(kv_heads * d);
        for (q, x) in q.f32_mut()[t * heads * d..].chunks_mut(d).zip(of_q.chunks(d)) {
            for (q, x) in q.iter_mut().zip(turned(position, x, &gains[..d])) {
                *q = x as f32;
            }
        }
        for (g, (k, v)) in of_k.chunks(d).zip(of_v.chunks(d)).enumerate() {
            let to = written_row(spec, t, g, slot) * d;
            for (i, (k, v)) in turned(position, k, &gains[d..]).into_iter().zip(v).enumerate() {
                k_pages.set_kv(to + i, k as f32);
                v_pages.set_kv(to + i, *v);
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, rope, x, gains, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, r4, heads, kv_heads] = ["D4", "R4", "H", "G"].map(|name| spec.get_u32(name));
    let (rows, turns) = (step.n_tokens as usize, usize::from(r4 > 0));
    let read = tokens.bytes_of(rows) + turns * rope.bytes_of(rows) + x.bytes_of(rows) + gains.bytes();
    let stored = rows * kv_heads * 4 * d4 * (k_pages.bytes_of(1) + v_pages.bytes_of(1)) / k_pages.cols;
    let flops = rows * (heads + kv_heads) * (NORM_FLOPS * 4 * d4 + 12 * r4);
    Cost::new(read, q.bytes_of(rows) + stored, flops)
}
