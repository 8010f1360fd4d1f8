//! Rotary embedding of q and k, with k and v written to their page slots.
//!
//! Source: Su et al. 2021, arXiv:2104.09864, equation 34. The angles are an input (`rope`), so that every scaling of them is
//! the host's affair and computed in f64.

use super::{AttentionDims, AttentionInputs, WORKGROUP, kv_include};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static ROPE_STORE: Kernel = Kernel {
    name: "rope_store",
    source: include_str!("../../shaders/rope_store.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("rope", Read),
        ("k", Read),
        ("v", Read),
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
    /// `q`: `[T, H*D]`; `k`, `v`: `[T, G*D]`;
    /// `kv`: k and v pages, `[pages * G * PAGE, D]`, f16 or f32.
    pub fn rope_store(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        rope: Rope,
        qkv: [Tensor; 3],
        kv: [Tensor; 2],
    ) {
        let [q, k, v] = qkv;
        let element = self.desc(kv[0]).element;
        if rope.dims > 0 {
            self.expect(rope.table, Element::F32, rope.dims);
        }
        let whole = d.head_dim.is_multiple_of(8) && rope.dims.is_multiple_of(8) && rope.dims <= d.head_dim;
        assert!(whole, "rope_store: {} of {} dims turn; multiples of 8 are expected", rope.dims, d.head_dim);
        self.expect(q, Element::F32, d.heads * d.head_dim);
        self.expect(k, Element::F32, d.kv_heads * d.head_dim);
        self.expect(v, Element::F32, d.kv_heads * d.head_dim);
        for pages in kv {
            self.expect(pages, element, d.head_dim);
        }
        let spec = Spec::default().include(kv_include(element)).include(rope.pairs.include());
        let spec = spec.u32("D4", d.head_dim / 4).u32("R4", rope.dims / 4);
        let spec = spec.u32("H", d.heads).u32("G", d.kv_heads).u32("PAGE", Capacity::PAGE);
        let across = ((d.heads + 2 * d.kv_heads) * d.head_dim / 8).div_ceil(WORKGROUP);
        let extents = [Extent::Fixed(across), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
        self.dispatch(&ROPE_STORE, spec, &[inputs.tokens, rope.table, k, v, q, kv[0], kv[1]], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, rope, k, v, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, r4, heads, kv_heads, page] = ["D4", "R4", "H", "G", "PAGE"].map(|n| spec.get_u32(n));
    let (d, r) = (4 * d4, 4 * r4);
    let rope = rope.f32();
    let pairs = if spec.includes(Pairs::Halves.include()) { Pairs::Halves } else { Pairs::Neighbours };
    let rotate = |position: usize, x: &[f32]| -> Vec<f32> {
        let mut y = x.to_vec();
        for (p, turn) in rope[position * r..][..r].chunks(2).enumerate() {
            let [first, second] = pairs.dims(p, r);
            let [a, b, cos, sin] = [x[first], x[second], turn[0], turn[1]].map(f64::from);
            y[first] = (a * cos - b * sin) as f32;
            y[second] = (a * sin + b * cos) as f32;
        }
        y
    };
    for (t, token) in tokens.u32().chunks(4).take(step.n_tokens as usize).enumerate() {
        let (position, slot) = (token[1] as usize, token[2] as usize);
        for h in 0..heads {
            let q = &mut q.f32_mut()[(t * heads + h) * d..][..d];
            q.copy_from_slice(&rotate(position, q));
        }
        for g in 0..kv_heads {
            let from = (t * kv_heads + g) * d;
            let to = ((slot / page * kv_heads + g) * page + slot % page) * d;
            for (i, x) in rotate(position, &k.f32()[from..][..d]).into_iter().enumerate() {
                k_pages.set_kv(to + i, x);
                v_pages.set_kv(to + i, v.f32()[from + i]);
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, rope, k, v, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [r4, heads, kv_heads] = ["R4", "H", "G"].map(|name| spec.get_u32(name));
    let (rows, turns) = (step.n_tokens as usize, usize::from(r4 > 0));
    let turned = turns * q.bytes_of(rows);
    let read = tokens.bytes_of(rows) + turns * rope.bytes_of(rows) + k.bytes_of(rows) + v.bytes_of(rows) + turned;
    let stored = rows * kv_heads * (k_pages.bytes_of(1) + v_pages.bytes_of(1));
    Cost::new(read, turned + stored, 12 * rows * (heads + kv_heads) * r4)
}
