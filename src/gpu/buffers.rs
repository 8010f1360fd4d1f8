//! The buffers of a memory on the device.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::Duration;

use rayon::prelude::*;

use super::Gpu;
use crate::error::{Error, Result};
use crate::format::SLAB;
use crate::kernel::Step;
use crate::memory::{Host, Memory, Tensor, WeightStack};

/// One buffer for each tensor of a [`Memory`], and the step.
pub struct Buffers {
    pub(super) tensors: Vec<wgpu::Buffer>,
    pub(super) step: wgpu::Buffer,
}

/// Answers when the device has mapped a buffer.
pub(super) type Mapped = mpsc::Receiver<std::result::Result<(), wgpu::BufferAsyncError>>;

/// Asks for the first `bytes` of a buffer, once everything submitted so far has run.
pub(super) fn map(staging: &wgpu::Buffer, mode: wgpu::MapMode, bytes: usize) -> Mapped {
    let (sender, receiver) = mpsc::channel();
    staging.map_async(mode, ..bytes as u64, move |mapped| {
        // The receiver is gone when the wait for it has failed already.
        let _ = sender.send(mapped);
    });
    receiver
}

/// Bytes of weights packed at once: few enough to be in the cache when they are copied.
const CHUNK: usize = 2 << 20;
/// Chunks on their way to the device: while it copies one, the next is packed. Their staging memory is used again, as
/// new memory costs more time than the copy.
const IN_FLIGHT: usize = 3;

/// A finished read-back is mapped at once; beyond this the device is gone.
const MAP: Duration = Duration::from_secs(10);

impl Gpu {
    /// Allocates all tensors and uploads what is known at load. Calls `uploaded` with each tensor's bytes on the way.
    pub fn allocate(&self, memory: &Memory, mut uploaded: impl FnMut(Tensor, usize)) -> Result<Buffers> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let step_usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let step = self.buffer("step", size_of::<Step>(), step_usage)?;
        let tensors = memory.tensors.iter().map(|t| {
            // Four words of a table may be a uniform.
            let uniform = if t.bytes() == 16 { wgpu::BufferUsages::UNIFORM } else { wgpu::BufferUsages::empty() };
            self.buffer(&t.name, t.bytes().max(4), usage | uniform)
        });
        let tensors = tensors.collect::<Result<_>>()?;
        let buffers = Buffers { tensors, step };
        let mut upload = Upload { gpu: self, staging: VecDeque::new() };
        for (i, desc) in memory.tensors.iter().enumerate() {
            match &desc.init {
                Some(Host::Weight(w)) => upload.weight(&buffers, Tensor(i), w, |bytes| uploaded(Tensor(i), bytes))?,
                Some(host) => {
                    self.write_host(&buffers, Tensor(i), host)?;
                    uploaded(Tensor(i), desc.bytes());
                }
                None => uploaded(Tensor(i), desc.bytes()),
            }
        }
        upload.finish()?;
        Ok(buffers)
    }

    pub(super) fn buffer(&self, name: &str, bytes: usize, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
        if bytes > self.caps.max_binding {
            return Err(Error::OutOfMemory {
                device: self.caps.name.clone(),
                what: format!("{name} (a binding has at most {} bytes)", self.caps.max_binding),
                bytes: bytes as u64,
            });
        }
        let size = bytes.next_multiple_of(4) as u64;
        let desc = wgpu::BufferDescriptor { label: Some(name), size, usage, mapped_at_creation: false };
        self.scoped(name, size, || self.device.create_buffer(&desc))
    }

    /// Overwrites a tensor from a host copy.
    pub fn write_host(&self, buffers: &Buffers, t: Tensor, host: &Host) -> Result<()> {
        match host {
            Host::Weight(w) => {
                let mut upload = Upload { gpu: self, staging: VecDeque::new() };
                upload.weight(buffers, t, w, |_| ())?;
                upload.finish()
            }
            other => self.write(buffers, t, other.bytes()),
        }
    }

    /// Writes `bytes` (a multiple of 4) to the start of a tensor, before anything submitted later.
    pub fn write(&self, buffers: &Buffers, t: Tensor, bytes: &[u8]) -> Result<()> {
        self.write_at(buffers, t, 0, bytes)
    }

    /// Writes `bytes` from byte `offset` of a tensor on (both multiples of 4), before anything submitted later.
    pub fn write_at(&self, buffers: &Buffers, t: Tensor, offset: usize, bytes: &[u8]) -> Result<()> {
        self.queue.write_buffer(&buffers.tensors[t.0], offset as u64, bytes);
        self.check()
    }

    /// The first `bytes` of a tensor, after everything submitted so far.
    pub fn read(&self, buffers: &Buffers, t: Tensor, bytes: usize) -> Result<Vec<u8>> {
        self.read_at(buffers, t, 0, bytes)
    }

    /// `bytes` of a tensor from byte `offset` on (both multiples of 4), after everything submitted so far.
    pub fn read_at(&self, buffers: &Buffers, t: Tensor, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        let staging = self.staging(bytes)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&buffers.tensors[t.0], offset as u64, &staging, 0, bytes as u64);
        let submission = self.queue.submit([encoder.finish()]);
        let mapped = map(&staging, wgpu::MapMode::Read, bytes);
        self.wait(submission)?;
        self.mapped(&staging, bytes, mapped)
    }

    /// Memory to read back through.
    pub(super) fn staging(&self, bytes: usize) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.buffer("read-back", bytes, usage)
    }

    /// The first `bytes` of what was mapped; the submission that wrote it has ended.
    pub(super) fn mapped<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        staging: &wgpu::Buffer,
        bytes: usize,
        mapped: Mapped,
    ) -> Result<Vec<T>> {
        self.expect_mapped(mapped)?;
        let view = staging.get_mapped_range(..bytes as u64).map_err(|e| self.lost(e))?;
        Ok(bytemuck::pod_collect_to_vec(&view[..bytes]))
    }

    /// Waits for a mapping after the last use of its buffer.
    fn expect_mapped(&self, mapped: Mapped) -> Result<()> {
        // Another thread's wait may be the one that calls back, a moment after this one's has ended.
        let mapped = mapped.recv_timeout(MAP).map_err(|_| self.lost("a staging buffer was never mapped"))?;
        mapped.map_err(|e| self.lost(e))
    }

    fn lost(&self, why: impl ToString) -> Error {
        Error::DeviceLost { device: self.caps.name.clone(), why: why.to_string() }
    }
}

/// Weights on their way to the device.
struct Upload<'a> {
    gpu: &'a Gpu,
    /// The one used longest ago first, with what used it.
    staging: VecDeque<(wgpu::Buffer, wgpu::SubmissionIndex)>,
}

impl Upload<'_> {
    /// Packs weights and writes them, some slabs at a time. Calls `uploaded` with the bytes of each time.
    fn weight(&mut self, buffers: &Buffers, t: Tensor, w: &WeightStack, mut uploaded: impl FnMut(usize)) -> Result<()> {
        let (format, slab) = (w.format(), w.format().gpu_bytes(SLAB, w.cols()));
        let step = (CHUNK / slab).clamp(1, w.rows().div_ceil(SLAB)) * SLAB;
        let mut gpu = Vec::new();
        for first in (0..w.rows()).step_by(step) {
            let end = w.rows().min(first + step);
            gpu.resize((end - first).div_ceil(SLAB) * slab, 0);
            gpu.par_chunks_exact_mut(slab).enumerate().for_each(|(i, gpu)| {
                let start = first + i * SLAB;
                format.pack_slab((start..end.min(start + SLAB)).map(|row| w.row(row)), gpu);
            });
            self.write(&buffers.tensors[t.0], first / SLAB * slab, &gpu)?;
            uploaded(gpu.len());
        }
        w.release();
        Ok(())
    }

    /// Writes `bytes` from `offset` of a buffer on.
    fn write(&mut self, buffer: &wgpu::Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let gpu = self.gpu;
        let oldest = if self.staging.len() < IN_FLIGHT { None } else { self.staging.pop_front() };
        let (staging, last_use) = match oldest.filter(|(staging, _)| staging.size() >= bytes.len() as u64) {
            Some(oldest) => oldest,
            None => {
                let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
                (gpu.buffer("upload", bytes.len().max(CHUNK), usage)?, gpu.queue.submit([]))
            }
        };
        let mapped = map(&staging, wgpu::MapMode::Write, bytes.len());
        gpu.wait(last_use)?;
        gpu.expect_mapped(mapped)?;
        let view = staging.get_mapped_range_mut(..bytes.len() as u64);
        view.map_err(|e| gpu.lost(e))?.copy_from_slice(bytes);
        staging.unmap();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&staging, 0, buffer, offset as u64, bytes.len() as u64);
        self.staging.push_back((staging, gpu.queue.submit([encoder.finish()])));
        gpu.check()
    }

    /// Waits until everything is on the device.
    fn finish(self) -> Result<()> {
        self.gpu.wait(self.gpu.queue.submit([]))
    }
}
