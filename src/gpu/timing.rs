//! How long the device takes for a program: by its own clock where it can be read, else by the host's.

use std::time::{Duration, Instant};

use super::buffers::map;
use super::{Buffers, Gpu, Prepared};
use crate::error::Result;
use crate::kernel::Step;

/// A sample lasts at least so long: far above what either clock can tell apart and what a submission costs.
const SAMPLE: Duration = Duration::from_millis(5);
/// Samples that are taken at least, but one is enough after so many times the budget.
const LEAST: usize = 3;
const PATIENCE: u32 = 8;
/// Runs of one sample at most, so that encoding them stays short.
const MOST: usize = 2000;

impl Gpu {
    /// Seconds that one run of `prepared` in `step` takes, again and again for as long as `budget`. One run comes before, as
    /// drivers compile at the first. What runs write they write many times: the tensors hold nothing sensible afterwards.
    pub fn measure(
        &self,
        buffers: &Buffers,
        prepared: &mut Prepared,
        step: &Step,
        budget: Duration,
    ) -> Result<Vec<f64>> {
        // The governor learns how much a submission may hold.
        self.run(buffers, prepared, step)?;
        let began = Instant::now();
        let once = self.time(buffers, prepared, step, 1)?;
        let times = (SAMPLE.as_secs_f64() / once.as_secs_f64().max(1e-9)).ceil().clamp(1.0, MOST as f64);
        let mut samples = if times == 1.0 { vec![once.as_secs_f64()] } else { Vec::new() };
        let goes_on = |taken: usize| {
            let spent = began.elapsed();
            taken == 0 || spent < budget || taken < LEAST && spent < budget * PATIENCE
        };
        while goes_on(samples.len()) {
            samples.push(self.time(buffers, prepared, step, times as usize)?.as_secs_f64() / times);
        }
        Ok(samples)
    }

    /// Time of `times` runs. A program that is more than a submission may hold is taken in pieces, each repeated.
    fn time(&self, buffers: &Buffers, prepared: &Prepared, step: &Step, times: usize) -> Result<Duration> {
        self.queue.write_buffer(&buffers.step, 0, bytemuck::bytes_of(step));
        // What the write costs is over before the clock starts.
        self.wait(self.queue.submit([]))?;
        prepared.dispatches.chunks(prepared.per_submission).try_fold(Duration::ZERO, |total, dispatches| {
            let encode =
                |pass: &mut wgpu::ComputePass| (0..times).try_for_each(|_| self.encode(dispatches, step, pass));
            let time = if self.caps.timestamps { self.on_device(encode)? } else { self.on_host(encode)? };
            Ok(total + time)
        })
    }

    /// By the device's clock.
    fn on_device(&self, encode: impl FnOnce(&mut wgpu::ComputePass) -> Result<()>) -> Result<Duration> {
        const BYTES: u64 = 2 * wgpu::QUERY_SIZE as u64;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = self.buffer("timestamps", BYTES as usize, usage)?;
        let staging = self.staging(BYTES as usize)?;
        let desc = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count: 2 };
        let query_set = self.scoped("timestamps", BYTES, || self.device.create_query_set(&desc))?;
        let writes = wgpu::ComputePassTimestampWrites {
            query_set: &query_set,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        };
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let desc = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(writes) };
        encode(&mut encoder.begin_compute_pass(&desc))?;
        encoder.resolve_query_set(&query_set, 0..2, &resolved, 0);
        encoder.copy_buffer_to_buffer(&resolved, 0, &staging, 0, BYTES);
        let submission = self.queue.submit([encoder.finish()]);
        let mapped = map(&staging, wgpu::MapMode::Read, BYTES as usize);
        self.wait(submission)?;
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&self.mapped(&staging, BYTES as usize, mapped)?);
        let nanoseconds = ticks[1].saturating_sub(ticks[0]) as f64 * f64::from(self.queue.get_timestamp_period());
        Ok(Duration::from_nanos(nanoseconds as u64))
    }

    /// By the host's clock, less what an empty submission takes.
    fn on_host(&self, encode: impl FnOnce(&mut wgpu::ComputePass) -> Result<()>) -> Result<Duration> {
        let empty = self.submission(|_| Ok(()))?;
        Ok(self.submission(encode)?.saturating_sub(empty))
    }

    fn submission(&self, encode: impl FnOnce(&mut wgpu::ComputePass) -> Result<()>) -> Result<Duration> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encode(&mut encoder.begin_compute_pass(&Default::default()))?;
        let commands = encoder.finish();
        let began = Instant::now();
        self.wait(self.queue.submit([commands]))?;
        Ok(began.elapsed())
    }
}
