//! Programs with their pipelines and bind groups created: what is replayed on every step.

use std::ops::Range;
use std::time::Instant;

use super::buffers::{Mapped, map};
use super::governor::Governor;
use super::pipelines::Pipelines;
use super::timing::{Clock, TICKS};
use super::{Buffers, Gpu};
use crate::error::{Error, Result};
use crate::kernel::{Access, Extent, Step};
use crate::memory::Tensor;
use crate::program::Program;

/// A program ready to run any number of times.
pub struct Prepared {
    pub(super) dispatches: Vec<Ready>,
    pub(super) governor: Governor,
    /// Those that nothing uses now.
    read_backs: Vec<ReadBack>,
    /// When the last run was over.
    over: Option<Instant>,
}

pub(super) struct Ready {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    groups: [Extent; 3],
}

impl Ready {
    pub(super) fn workgroups(&self, step: &Step) -> u64 {
        self.groups.iter().map(|extent| u64::from(extent.groups(step))).product()
    }
}

/// Where a submission leaves bytes for the host: the clock's ticks when it began and ended, and behind them part of a tensor.
struct ReadBack {
    buffer: wgpu::Buffer,
    clock: Option<Clock>,
}

/// What was launched and is not yet over.
pub struct Running {
    submission: wgpu::SubmissionIndex,
    read_back: ReadBack,
    /// Of a tensor.
    bytes: usize,
    mapped: Mapped,
    began: Instant,
    workgroups: u64,
}

impl Gpu {
    /// Pipelines and bind groups of `programs`.
    pub fn prepare(&self, buffers: &Buffers, programs: &[&Program]) -> Result<Vec<Prepared>> {
        let pipelines = self.compile(programs, |_, _| ())?;
        programs.iter().map(|program| self.bind(buffers, program, &pipelines)).collect()
    }

    /// The bind groups of a program, of which `pipelines` are the pipelines.
    pub fn bind(&self, buffers: &Buffers, program: &Program, pipelines: &Pipelines) -> Result<Prepared> {
        let dispatches = program.dispatches.iter().map(|d| {
            let (pipeline, layout) = &pipelines.0[&(d.kernel.name, &d.spec)];
            let mut tensors = d.tensors.iter();
            let buffer = |access: &Access| match access {
                Access::Step => &buffers.step,
                _ => &buffers.tensors[tensors.next().expect("one tensor for each binding").0],
            };
            let bound: Vec<_> = d.kernel.bindings.iter().map(|(_, access)| access).map(buffer).collect();
            let resources = bound.iter().map(|b| b.as_entire_binding());
            let entries: Vec<_> =
                (0..).zip(resources).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
            let desc = wgpu::BindGroupDescriptor { label: Some(d.kernel.name), layout, entries: &entries };
            let bindings = self.scoped(d.kernel.name, 0, || self.device.create_bind_group(&desc))?;
            Ok(Ready { pipeline: pipeline.clone(), bindings, groups: d.groups })
        });
        let dispatches = dispatches.collect::<Result<Vec<_>>>()?;
        Ok(Prepared { dispatches, governor: Governor::default(), read_backs: Vec::new(), over: None })
    }

    /// Runs every dispatch of `prepared` for `step` and waits.
    pub fn run(&self, buffers: &Buffers, prepared: &mut Prepared, step: &Step) -> Result<()> {
        let last = self.launch(buffers, prepared, step, &[])?;
        self.finish(prepared, last).map(drop)
    }

    /// Begins to run `prepared` for `step`. When it is over is not asked; what begins after it sees what it wrote.
    pub fn start(&self, buffers: &Buffers, prepared: &Prepared, step: &Step) -> Result<()> {
        self.queue.write_buffer(&buffers.step, 0, bytemuck::bytes_of(step));
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        self.encode(&prepared.dispatches, step, &mut pass)?;
        drop(pass);
        self.queue.submit([encoder.finish()]);
        Ok(())
    }

    /// Submits `prepared` for `step` in pieces that the governor allows, and waits for all but the last, behind which bytes of tensors
    /// are read back (from and to multiples of 4).
    pub fn launch(
        &self,
        buffers: &Buffers,
        prepared: &mut Prepared,
        step: &Step,
        wanted: &[(Tensor, Range<usize>)],
    ) -> Result<Running> {
        self.queue.write_buffer(&buffers.step, 0, bytemuck::bytes_of(step));
        let mut first = 0;
        loop {
            let (taken, workgroups) = prepared.next(first, step);
            let piece = first..first + taken;
            first += taken;
            let is_last = first == prepared.dispatches.len();
            let wanted = if is_last { wanted } else { &[] };
            let running = self.submit(buffers, prepared, piece, workgroups, step, wanted)?;
            if is_last {
                return Ok(running);
            }
            self.finish(prepared, running)?;
        }
    }

    /// Waits for the end of what was launched and returns what was read back.
    pub fn finish(&self, prepared: &mut Prepared, running: Running) -> Result<Vec<u32>> {
        let Running { submission, read_back, bytes, mapped, began, workgroups } = running;
        self.wait(submission)?;
        let found: Vec<u32> = self.mapped(&read_back.buffer, TICKS + bytes, mapped)?;
        let (ticks, words) = found.split_at(TICKS / 4);
        let time = match read_back.clock {
            Some(_) => self.between(bytemuck::pod_read_unaligned(bytemuck::cast_slice(ticks))),
            // Submissions run one after the other: this one since the one before was over.
            None => prepared.over.map_or(began, |over| began.max(over)).elapsed(),
        };
        prepared.governor.learn(workgroups, time);
        prepared.over = Some(Instant::now());
        read_back.buffer.unmap();
        prepared.read_backs.push(read_back);
        Ok(words.to_vec())
    }

    fn submit(
        &self,
        buffers: &Buffers,
        prepared: &mut Prepared,
        piece: Range<usize>,
        workgroups: u64,
        step: &Step,
        wanted: &[(Tensor, Range<usize>)],
    ) -> Result<Running> {
        let bytes: usize = wanted.iter().map(|(_, bytes)| bytes.len()).sum();
        let read_back = match prepared.read_backs.pop() {
            Some(read_back) if read_back.buffer.size() >= (TICKS + bytes) as u64 => read_back,
            // Room for the results of other steps, too.
            _ => self.read_back((TICKS + bytes).next_power_of_two().max(256))?,
        };
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let timestamp_writes = read_back.clock.as_ref().map(Clock::writes);
        let desc = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
        let mut pass = encoder.begin_compute_pass(&desc);
        self.encode(&prepared.dispatches[piece], step, &mut pass)?;
        drop(pass);
        if let Some(clock) = &read_back.clock {
            clock.resolve(&mut encoder, &read_back.buffer);
        }
        // A step may have no results; no device is asked for an empty range.
        let mut to = TICKS;
        for (t, bytes) in wanted.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let (source, first, len) = (&buffers.tensors[t.0], bytes.start as u64, bytes.len());
            encoder.copy_buffer_to_buffer(source, first, &read_back.buffer, to as u64, len as u64);
            to += len;
        }
        let began = Instant::now();
        let submission = self.queue.submit([encoder.finish()]);
        let mapped = map(&read_back.buffer, wgpu::MapMode::Read, TICKS + bytes);
        Ok(Running { submission, read_back, bytes, mapped, began, workgroups })
    }

    fn read_back(&self, bytes: usize) -> Result<ReadBack> {
        let clock = if self.caps.timestamps { Some(self.clock()?) } else { None };
        Ok(ReadBack { buffer: self.staging(bytes)?, clock })
    }

    pub(super) fn encode(&self, dispatches: &[Ready], step: &Step, pass: &mut wgpu::ComputePass) -> Result<()> {
        for d in dispatches {
            let [x, y, z] = d.groups.map(|extent| extent.groups(step));
            if x.min(y).min(z) == 0 {
                continue;
            }
            if x.max(y).max(z) > self.caps.max_groups {
                let what = format!("a dispatch has {x} × {y} × {z} workgroups, {} fit an axis", self.caps.max_groups);
                return Err(Error::Device { device: self.caps.name.clone(), what });
            }
            pass.set_pipeline(&d.pipeline);
            pass.set_bind_group(0, &d.bindings, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        Ok(())
    }
}

impl Prepared {
    /// How many dispatches from `first` on one submission may hold in `step`, and their workgroups.
    pub(super) fn next(&self, first: usize, step: &Step) -> (usize, u64) {
        self.governor.take(self.dispatches[first..].iter().map(|d| d.workgroups(step)))
    }
}
