//! `y[t, c] = scale * table[tokens[t], c]`; where the token is [`SAMPLED`] + i, `ids[i]`.

use super::{ROWS, WORKGROUP};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, Weight, stride};
use crate::program::Recorder;

/// See the module.
pub static EMBED: Kernel = Kernel {
    name: "embed",
    source: include_str!("../../shaders/embed.wgsl"),
    bindings: &[("step", Access::Step), ("tokens", Read), ("ids", Read), ("w", Read), ("y", ReadWrite)],
    reference,
    cost,
};

/// In place of a token, and beyond all: `SAMPLED + i` is the i-th that the step before has drawn.
pub const SAMPLED: u32 = 1 << 31;

impl Recorder<'_> {
    /// `tokens`: `[T]` of (token, …); `ids`: `[R]`, what the step before has drawn; `table`: `[V, C]`; `y`: `[T, C]`.
    pub fn embed(&mut self, tokens: Tensor, ids: Tensor, table: &Weight, y: Tensor) {
        self.embed_scaled(tokens, ids, table, 1.0, y);
    }

    /// As [`embed`](Self::embed), multiplied by `scale`.
    pub fn embed_scaled(&mut self, tokens: Tensor, ids: Tensor, table: &Weight, scale: f32, y: Tensor) {
        self.expect(tokens, Element::U32, 4);
        self.expect(y, Element::F32, table.cols);
        let groups = table.cols.div_ceil(32);
        let mut row0 = 0;
        for &part in &table.parts {
            let (format, rows) = (self.format(part), self.desc(part).rows);
            let spec = Spec::default().include(ROWS).include(format.wgsl).u32("UNITS", (format.units)(table.cols));
            let spec = spec.u32("C4", table.cols.div_ceil(4)).u32("GROUPS", groups);
            let spec = spec.u32("N", rows).u32("ROW0", row0).f32("SCALE", scale);
            let extents = [Extent::Fixed(groups.div_ceil(WORKGROUP)), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
            self.dispatch(&EMBED, spec, &[tokens, ids, part, y], extents);
            row0 += rows;
        }
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, ids, w, y] = tensors else { unreachable!() };
    let (tokens, w, y) = (tokens.u32(), w.weight(), y.f32_mut());
    let (row0, scale) = (spec.get_u32("ROW0"), spec.get_f32("SCALE"));
    for t in 0..step.n_tokens as usize {
        let row = match tokens[4 * t] {
            id if id < SAMPLED => id,
            drawn => ids.u32()[(drawn - SAMPLED) as usize],
        } as usize;
        if (row0..row0 + w.rows()).contains(&row) {
            let y = &mut y[t * stride(w.cols())..][..w.cols()];
            w.decode_row(row - row0, y);
            y.iter_mut().for_each(|y| *y = (*y as f64 * scale) as f32);
        }
    }
}

/// The tokens' rows may be in any part of the table: all count in the first.
fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, _, w, y] = tensors else { unreachable!() };
    let rows = step.n_tokens as usize;
    let here = if spec.get_u32("ROW0") == 0 { rows } else { 0 };
    Cost::new(tokens.bytes_of(rows) + w.bytes_of(here), y.bytes_of(here), here * w.cols)
}
