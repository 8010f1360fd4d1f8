//! The buffers of a memory on the device.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::Duration;

use super::Gpu;
use crate::error::{Error, Result};
use crate::kernel::Step;
use crate::memory::{Host, Memory, Tensor, WeightRows};

/// One buffer for each tensor of a [`Memory`], and the step.
pub struct Buffers {
    pub(super) tensors: Vec<wgpu::Buffer>,
    pub(super) step: wgpu::Buffer,
}

/// Bytes of weights laid out at once: few enough to be in the cache when they are copied.
const CHUNK: usize = 2 << 20;
/// Chunks on their way to the device: while it copies one, the next is laid out. Their staging memory is used again, as
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
        let tensors =
            memory.tensors.iter().map(|t| self.buffer(&t.name, t.bytes().max(4), usage)).collect::<Result<_>>()?;
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

    fn buffer(&self, name: &str, bytes: usize, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
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
            Host::F32(v) => self.write(buffers, t, bytemuck::cast_slice(v)),
            Host::F16(v) => self.write(buffers, t, bytemuck::cast_slice(v)),
            Host::U32(v) => self.write(buffers, t, bytemuck::cast_slice(v)),
            Host::Weight(w) => {
                let mut upload = Upload { gpu: self, staging: VecDeque::new() };
                upload.weight(buffers, t, w, |_| ())?;
                upload.finish()
            }
        }
    }

    /// Writes `bytes` (a multiple of 4) to the start of a tensor, before anything submitted later.
    pub fn write(&self, buffers: &Buffers, t: Tensor, bytes: &[u8]) -> Result<()> {
        self.queue.write_buffer(&buffers.tensors[t.0], 0, bytes);
        self.check()
    }

    /// The first `bytes` of a tensor, after everything submitted so far.
    pub fn read(&self, buffers: &Buffers, t: Tensor, bytes: usize) -> Result<Vec<u8>> {
        self.read_at(buffers, t, 0, bytes)
    }

    /// `bytes` of a tensor from byte `offset` on (both multiples of 4), after everything submitted so far.
    pub fn read_at(&self, buffers: &Buffers, t: Tensor, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.buffer("read-back", bytes, usage)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&buffers.tensors[t.0], offset as u64, &staging, 0, bytes as u64);
        let submission = self.queue.submit([encoder.finish()]);
        self.map(&staging, wgpu::MapMode::Read, submission)?;
        let view = staging.get_mapped_range(..).map_err(|e| self.lost(e))?;
        Ok(view[..bytes].to_vec())
    }

    /// Maps a buffer that `submission` is the last to use.
    fn map(&self, staging: &wgpu::Buffer, mode: wgpu::MapMode, submission: wgpu::SubmissionIndex) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        staging.map_async(mode, .., move |mapped| {
            // The receiver is gone when the wait below has failed already.
            let _ = sender.send(mapped);
        });
        self.wait(submission)?;
        // Another thread's wait may be the one that calls back, a moment after this one's has ended.
        let mapped = receiver.recv_timeout(MAP).map_err(|_| self.lost("a staging buffer was never mapped"))?;
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
    /// Lays weights out and writes them, some rows at a time. Calls `uploaded` with the bytes of each time.
    fn weight(&mut self, buffers: &Buffers, t: Tensor, w: &WeightRows, mut uploaded: impl FnMut(usize)) -> Result<()> {
        let (format, buffer) = (w.format, &buffers.tensors[t.0]);
        let heads = |rows: usize| rows * w.cols / format.block_len * format.head_bytes;
        // The plane before the heads, which are padded to words behind the last row only.
        let bodies = |rows: usize| (format.gpu_bytes)(rows, w.cols) - heads(rows).next_multiple_of(4);
        // Heads of four rows are whole words.
        let step = (CHUNK / (format.gpu_bytes)(4, w.cols)).max(1) * 4;
        let mut gpu = Vec::new();
        for first in (0..w.rows).step_by(step) {
            let n = step.min(w.rows - first);
            gpu.resize((format.gpu_bytes)(n, w.cols), 0);
            (format.repack)(&w.blocks(first..first + n), n, w.cols, &mut gpu);
            let head = (bodies(w.rows) + heads(first), gpu.len() - bodies(n));
            self.write(buffer, &gpu, [(bodies(first), bodies(n)), head])?;
            uploaded(gpu.len());
        }
        w.bytes.release();
        Ok(())
    }

    /// Writes `bytes` to parts of a buffer: of each its offset and length.
    fn write(&mut self, buffer: &wgpu::Buffer, bytes: &[u8], parts: [(usize, usize); 2]) -> Result<()> {
        let gpu = self.gpu;
        let oldest = if self.staging.len() < IN_FLIGHT { None } else { self.staging.pop_front() };
        let (staging, last_use) = match oldest.filter(|(staging, _)| staging.size() >= bytes.len() as u64) {
            Some(oldest) => oldest,
            None => {
                let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
                (gpu.buffer("upload", bytes.len().max(CHUNK), usage)?, gpu.queue.submit([]))
            }
        };
        gpu.map(&staging, wgpu::MapMode::Write, last_use)?;
        let view = staging.get_mapped_range_mut(..bytes.len() as u64);
        view.map_err(|e| gpu.lost(e))?.copy_from_slice(bytes);
        staging.unmap();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut from = 0;
        for (to, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            encoder.copy_buffer_to_buffer(&staging, from, buffer, to as u64, len as u64);
            from += len as u64;
        }
        self.staging.push_back((staging, gpu.queue.submit([encoder.finish()])));
        gpu.check()
    }

    /// Waits until everything is on the device.
    fn finish(self) -> Result<()> {
        self.gpu.wait(self.gpu.queue.submit([]))
    }
}
