//! The buffers of a memory on the device.

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
    /// Read-back memory that nothing uses now.
    pub(super) staging: Vec<wgpu::Buffer>,
}

/// Answers when the device has mapped a buffer.
pub(super) type Mapped = mpsc::Receiver<std::result::Result<(), wgpu::BufferAsyncError>>;

/// Asks for the first `bytes` of a buffer, once everything submitted so far has run.
pub(super) fn map(staging: &wgpu::Buffer, bytes: usize) -> Mapped {
    let (sender, receiver) = mpsc::channel();
    staging.map_async(wgpu::MapMode::Read, ..bytes as u64, move |mapped| {
        // The receiver is gone when the wait for it has failed already.
        let _ = sender.send(mapped);
    });
    receiver
}

/// Bytes of weights in flight to the device: more would hold a second copy of the model in staging memory.
const UPLOAD: usize = 16 << 20;

/// Bytes of a weight that are packed and written at once.
const PIECE: usize = 4 << 20;

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
        let buffers = Buffers { tensors, step, staging: Vec::new() };
        let mut in_flight = 0;
        for (i, desc) in memory.tensors.iter().enumerate() {
            if let Some(init) = &desc.init {
                self.write_host(&buffers, Tensor(i), init)?;
                in_flight += desc.bytes();
            }
            uploaded(Tensor(i), desc.bytes());
            if in_flight > UPLOAD {
                self.wait(self.queue.submit([]))?;
                in_flight = 0;
            }
        }
        self.wait(self.queue.submit([]))?;
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
            Host::Weight(w) => self.write_weight(buffers, t, w),
        }
    }

    /// Packs a piece while the device copies the one before.
    fn write_weight(&self, buffers: &Buffers, t: Tensor, w: &WeightStack) -> Result<()> {
        let (format, slab) = (w.format(), w.format().gpu_bytes(SLAB, w.cols()));
        let slabs = (PIECE / slab).clamp(1, w.rows().div_ceil(SLAB));
        let mut piece = vec![0; slabs * slab];
        let mut before = None;
        for first in (0..w.rows()).step_by(slabs * SLAB) {
            let rows = first..w.rows().min(first + slabs * SLAB);
            let piece = &mut piece[..rows.len().div_ceil(SLAB) * slab];
            piece.par_chunks_exact_mut(slab).enumerate().for_each(|(i, gpu)| {
                let start = first + i * SLAB;
                format.pack_slab((start..rows.end.min(start + SLAB)).map(|row| w.row(row)), gpu);
            });
            self.queue.write_buffer(&buffers.tensors[t.0], (first / SLAB * slab) as u64, piece);
            if let Some(before) = before.replace(self.queue.submit([])) {
                self.wait(before)?;
            }
        }
        self.check()
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
        let staging = self.staging(bytes)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&buffers.tensors[t.0], offset as u64, &staging, 0, bytes as u64);
        let submission = self.queue.submit([encoder.finish()]);
        let mapped = map(&staging, bytes);
        self.wait(submission)?;
        self.mapped(&staging, bytes, mapped)
    }

    /// Memory to read back through.
    pub(super) fn staging(&self, bytes: usize) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.buffer("read-back", bytes, usage)
    }

    /// The first `bytes` of what was mapped; the submission that wrote it has ended.
    pub(super) fn mapped(&self, staging: &wgpu::Buffer, bytes: usize, mapped: Mapped) -> Result<Vec<u8>> {
        let lost = |why: String| Error::DeviceLost { device: self.caps.name.clone(), why };
        // Another thread's wait may be the one that calls back, a moment after this one's has ended.
        let mapped = mapped.recv_timeout(MAP).map_err(|_| lost("a read-back was never mapped".into()))?;
        mapped.map_err(|e| lost(e.to_string()))?;
        let view = staging.get_mapped_range(..bytes as u64).map_err(|e| lost(e.to_string()))?;
        Ok(view[..bytes].to_vec())
    }
}
