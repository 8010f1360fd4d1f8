//! The roof over every kernel: bytes that the device copies in a second, and multiply-adds that it computes.
//!
//! Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".

use std::time::Duration;

use crate::error::{Error, Result};
use crate::gpu::{Gpu, Kind};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Cost, Extent, Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Host, Memory, Tensor, TensorDesc};
use crate::program::{Dispatch, Program};

/// Of one device, as measured.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Peaks {
    /// Bytes read and bytes written in a second, when a buffer is copied.
    pub bytes: f64,
    /// Operations in a second, of f32 multiply-adds in registers: 2 each.
    pub flops: f64,
}

/// `y = x`
static COPY: Kernel = Kernel {
    name: "copy",
    source: include_str!("../../shaders/bench/copy.wgsl"),
    bindings: &[("x", Read), ("y", ReadWrite)],
    reference: |_, _, tensors| {
        let [x, y] = tensors else { unreachable!() };
        y.f32_mut().copy_from_slice(x.f32());
    },
    cost: |_, _, tensors| {
        let [x, y] = tensors else { unreachable!() };
        Cost::new(x.bytes(), y.bytes(), 0)
    },
};

/// Chains of multiply-adds, as the shader says.
static FMA: Kernel = Kernel {
    name: "fma",
    source: include_str!("../../shaders/bench/fma.wgsl"),
    bindings: &[("x", Read), ("y", ReadWrite)],
    reference: fma_reference,
    cost: fma_cost,
};

fn fma_reference(spec: &Spec, _: &Step, tensors: &mut [Host]) {
    let [x, y] = tensors else { unreachable!() };
    let [m, n] = [0, 1].map(|i| f64::from(x.f32()[i]));
    for (i, y) in y.f32_mut().iter_mut().enumerate() {
        let start = (i / 4 % 64) as f64 / 64.0 + (i % 4) as f64 / 4.0;
        let chain = |more: f64| (0..8 * spec.get_u32("ROUNDS")).fold(start + more, |v, _| v * m + n);
        *y = (chain(0.0) + chain(1.0) + chain(2.0)) as f32;
    }
}

fn fma_cost(spec: &Spec, _: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [_, y] = tensors else { unreachable!() };
    // 3 chains of 8 multiply-adds a round.
    Cost::new(8, y.bytes(), y.rows * y.cols * 3 * 8 * 2 * spec.get_u32("ROUNDS"))
}

const WORKGROUP: usize = 64;
/// vec4 that an invocation copies.
const EACH: usize = 4;
/// Bytes that a workgroup copies.
const GROUP: usize = 16 * EACH * WORKGROUP;
/// How long each peak is measured: long enough that other programs leave the device alone at some time.
const BUDGET: Duration = Duration::from_millis(1000);

/// Nothing is sized for a model.
const NO_MODEL: Capacity =
    Capacity { tokens: 1, outputs: 1, sequences: 1, context: 1, pages: 1, kv: Element::F32, binding: usize::MAX };

/// One of the programs whose speed is a peak.
pub struct Peak {
    /// x and y.
    pub memory: Memory,
    /// One dispatch.
    pub program: Program,
}

impl Peak {
    /// Copies so many `bytes`, rounded up to what whole workgroups of it copy.
    pub fn copy(bytes: usize) -> Self {
        let groups = bytes.div_ceil(GROUP).max(1);
        let spec = Spec::default().u32("INVOCATIONS", groups * WORKGROUP).u32("EACH", EACH);
        let (mut memory, rows) = (Memory::new(NO_MODEL), groups * GROUP / 16);
        let x = memory.tensor("x", Element::F32, rows, 4);
        Self::new(&COPY, spec, memory, x, rows, groups)
    }

    /// 24 × `rounds` multiply-adds of vec4 in each invocation of `groups` workgroups.
    pub fn fma(groups: usize, rounds: usize) -> Self {
        let mut memory = Memory::new(NO_MODEL);
        let x = memory.table("x", 2, &[0.75, 0.25]);
        Self::new(&FMA, Spec::default().u32("ROUNDS", rounds), memory, x, groups * WORKGROUP, groups)
    }

    fn new(kernel: &'static Kernel, spec: Spec, mut memory: Memory, x: Tensor, rows: usize, groups: usize) -> Self {
        let tensors = vec![x, memory.tensor("y", Element::F32, rows, 4)];
        let groups = [Extent::Fixed(groups), Extent::Fixed(1), Extent::Fixed(1)];
        Self { memory, program: Program { dispatches: vec![Dispatch { kernel, spec, tensors, groups }] } }
    }

    /// What the program costs, and the least time of it in seconds.
    fn run(&self, gpu: &Gpu) -> Result<(Cost, f64)> {
        let buffers = gpu.allocate(&self.memory, |_, _| ())?;
        let mut prepared = gpu.prepare(&buffers, &[&self.program])?;
        let seconds = gpu.measure(&buffers, &mut prepared[0], &Step::default(), BUDGET)?;
        let least = seconds.into_iter().fold(f64::INFINITY, f64::min).max(1e-9);
        Ok((self.program.cost(&Step::default(), &self.memory), least))
    }
}

impl Peaks {
    /// Takes two seconds and more. The copied buffer is larger than caches where the device has the memory for it.
    pub fn measure(gpu: &Gpu) -> Result<Self> {
        let software = gpu.caps().kind == Kind::Software;
        let most = gpu.caps().max_binding.min(gpu.caps().max_groups as usize * GROUP);
        let mut bytes = if software { 64 << 20 } else { 512 << 20 }.min(most / GROUP * GROUP);
        let (copied, copy_seconds) = loop {
            match Peak::copy(bytes).run(gpu) {
                Err(Error::OutOfMemory { .. }) if bytes > 1 << 20 => bytes /= 2,
                other => break other?,
            }
        };
        let (groups, rounds) = if software { (64, 512) } else { (8192, 512) };
        let (computed, fma_seconds) = Peak::fma(groups, rounds).run(gpu)?;
        Ok(Self { bytes: copied.bytes() as f64 / copy_seconds, flops: computed.flops as f64 / fma_seconds })
    }

    /// Seconds that the device needs at least for what costs this.
    pub fn least_seconds(&self, cost: &Cost) -> f64 {
        (cost.bytes() as f64 / self.bytes).max(cost.flops as f64 / self.flops)
    }
}
