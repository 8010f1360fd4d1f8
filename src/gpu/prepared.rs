//! Programs with their pipelines and bind groups created: what is replayed on every step.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::buffers::{Mapped, map};
use super::{Buffers, Gpu};
use crate::error::{Error, Result};
use crate::kernel::{Access, Extent, Kernel, Spec, Step};
use crate::memory::Tensor;
use crate::program::Program;

/// A program ready to run any number of times.
pub struct Prepared {
    pub(super) dispatches: Vec<Ready>,
    /// Most dispatches of one submission: starts low, and the governor sets it from measured time.
    pub(super) per_submission: usize,
    /// The longest submission of the last run but for its last.
    slowest: Duration,
    /// When the last run was over.
    over: Option<Instant>,
}

pub(super) struct Ready {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    groups: [Extent; 3],
}

/// Drivers reset a device whose submission runs for seconds: 2 s on the strictest.
const SUBMISSION: Duration = Duration::from_millis(250);

/// A pipeline is a value: equal keys share it.
type Key<'a> = (&'static str, &'a Spec);

impl Gpu {
    /// Creates the pipelines (each once, in parallel) and bind groups of `programs`.
    pub fn prepare(&self, buffers: &Buffers, programs: &[&Program]) -> Result<Vec<Prepared>> {
        let mut wanted: HashMap<Key, &'static Kernel> = HashMap::new();
        for d in programs.iter().flat_map(|p| &p.dispatches) {
            wanted.insert((d.kernel.name, &d.spec), d.kernel);
        }
        let pipelines = wanted
            .into_par_iter()
            .map(|(key, kernel)| Ok((key, self.pipeline(kernel, key.1)?)))
            .collect::<Result<HashMap<_, _>>>()?;
        programs.iter().map(|p| self.bind(buffers, p, &pipelines)).collect()
    }

    fn bind(
        &self,
        buffers: &Buffers,
        program: &Program,
        pipelines: &HashMap<Key, (wgpu::ComputePipeline, wgpu::BindGroupLayout)>,
    ) -> Result<Prepared> {
        let dispatches = program.dispatches.iter().map(|d| {
            let (pipeline, layout) = &pipelines[&(d.kernel.name, &d.spec)];
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
        Ok(Prepared { dispatches, per_submission: 16, slowest: Duration::ZERO, over: None })
    }

    fn pipeline(&self, kernel: &Kernel, spec: &Spec) -> Result<(wgpu::ComputePipeline, wgpu::BindGroupLayout)> {
        self.scoped(kernel.name, 0, || {
            let source = wgpu::ShaderSource::Wgsl(kernel.wgsl(spec).into());
            let desc = wgpu::ShaderModuleDescriptor { label: Some(kernel.name), source };
            let module = match self.checked {
                true => self.device.create_shader_module(desc),
                // SAFETY: the same module has run with checks in the tests; indices come from checked host inputs.
                false => unsafe {
                    self.device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked())
                },
            };
            let entry = |(i, (_, access)): (usize, &(&str, Access))| {
                let ty = match access {
                    Access::Step => wgpu::BufferBindingType::Uniform,
                    Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
                    Access::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
                };
                wgpu::BindGroupLayoutEntry {
                    binding: i as u32,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                    count: None,
                }
            };
            let entries: Vec<_> = kernel.bindings.iter().enumerate().map(entry).collect();
            let desc = wgpu::BindGroupLayoutDescriptor { label: Some(kernel.name), entries: &entries };
            let layout = self.device.create_bind_group_layout(&desc);
            let desc = wgpu::PipelineLayoutDescriptor {
                label: Some(kernel.name),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            };
            let pipeline_layout = self.device.create_pipeline_layout(&desc);
            let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(kernel.name),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                // Zero-initialisation is slow on some drivers and wrong on others: kernels write before they read.
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            });
            (pipeline, layout)
        })
    }

    /// Runs every dispatch of `prepared` for `step` and waits.
    pub fn run(&self, buffers: &Buffers, prepared: &mut Prepared, step: &Step) -> Result<()> {
        let began = Instant::now();
        let submission = self.submit(buffers, prepared, step, |_| ())?;
        self.wait(submission)?;
        prepared.govern(began.elapsed());
        Ok(())
    }

    /// Begins to run `prepared` for `step`, and to read back the first `bytes` of `t` afterwards.
    pub fn launch(
        &self,
        buffers: &mut Buffers,
        prepared: &mut Prepared,
        step: &Step,
        t: Tensor,
        bytes: usize,
    ) -> Result<Running> {
        // A step may have no results; no device is asked for an empty range.
        let copied = bytes.max(4);
        let staging = match buffers.staging.pop() {
            Some(staging) if staging.size() >= copied as u64 => staging,
            _ => self.staging(copied)?,
        };
        let source = &buffers.tensors[t.0];
        let copy = |encoder: &mut wgpu::CommandEncoder| {
            encoder.copy_buffer_to_buffer(source, 0, &staging, 0, copied as u64);
        };
        let began = Instant::now();
        let submission = self.submit(buffers, prepared, step, copy)?;
        let mapped = map(&staging, wgpu::MapMode::Read, copied);
        Ok(Running { submission, staging, bytes, mapped, began })
    }

    /// Waits for the end of what was launched and returns what was read back.
    pub fn finish(&self, buffers: &mut Buffers, prepared: &mut Prepared, running: Running) -> Result<Vec<u32>> {
        let Running { submission, staging, bytes, mapped, began } = running;
        self.wait(submission)?;
        let mut result = self.mapped(&staging, bytes.max(4), mapped)?;
        result.truncate(bytes);
        // Steps run one after the other: this one since the one before was over.
        prepared.govern(prepared.over.map_or(began, |over| began.max(over)).elapsed());
        prepared.over = Some(Instant::now());
        staging.unmap();
        buffers.staging.push(staging);
        Ok(bytemuck::pod_collect_to_vec(&result))
    }

    /// Submits `prepared` for `step`, in pieces that the governor allows, and `then` behind the last, which is not waited for.
    fn submit(
        &self,
        buffers: &Buffers,
        prepared: &mut Prepared,
        step: &Step,
        then: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<wgpu::SubmissionIndex> {
        self.queue.write_buffer(&buffers.step, 0, bytemuck::bytes_of(step));
        let mut then = Some(then);
        let mut pieces = prepared.dispatches.chunks(prepared.per_submission).peekable();
        let mut slowest = Duration::ZERO;
        while let Some(dispatches) = pieces.next() {
            let mut encoder = self.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            self.encode(dispatches, step, &mut pass)?;
            drop(pass);
            if pieces.peek().is_none() {
                if let Some(then) = then.take() {
                    then(&mut encoder);
                }
                prepared.slowest = slowest;
                return Ok(self.queue.submit([encoder.finish()]));
            }
            let began = Instant::now();
            self.wait(self.queue.submit([encoder.finish()]))?;
            slowest = slowest.max(began.elapsed());
        }
        Ok(self.queue.submit([]))
    }

    pub(super) fn encode(&self, dispatches: &[Ready], step: &Step, pass: &mut wgpu::ComputePass) -> Result<()> {
        for d in dispatches {
            let [x, y, z] = d.groups.map(|extent| extent.groups(step));
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

/// What was launched and is not yet over.
pub struct Running {
    submission: wgpu::SubmissionIndex,
    staging: wgpu::Buffer,
    bytes: usize,
    mapped: Mapped,
    began: Instant,
}

impl Prepared {
    /// Halves the submissions when one ran too long, doubles them when all were far below; `last` is the time of the last.
    fn govern(&mut self, last: Duration) {
        let slowest = self.slowest.max(last);
        if slowest > SUBMISSION {
            self.per_submission = (self.per_submission / 2).max(1);
        } else if slowest < SUBMISSION / 3 {
            self.per_submission = (self.per_submission * 2).min(self.dispatches.len()).max(1);
        }
    }
}
