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
        let (mut first, mut total) = (0, Duration::ZERO);
        while first < prepared.dispatches.len() {
            let (taken, _) = prepared.next(first, step);
            let dispatches = &prepared.dispatches[first..first + taken];
            first += taken;
            let encode =
                |pass: &mut wgpu::ComputePass| (0..times).try_for_each(|_| self.encode(dispatches, step, pass));
            total += if self.caps.timestamps { self.on_device(encode)? } else { self.on_host(encode)? };
        }
        Ok(total)
    }

    /// By the device's clock.
    fn on_device(&self, encode: impl FnOnce(&mut wgpu::ComputePass) -> Result<()>) -> Result<Duration> {
        let (clock, staging) = (self.clock()?, self.staging(TICKS)?);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let desc = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(clock.writes()) };
        encode(&mut encoder.begin_compute_pass(&desc))?;
        clock.resolve(&mut encoder, &staging);
        let submission = self.queue.submit([encoder.finish()]);
        let mapped = map(&staging, wgpu::MapMode::Read, TICKS);
        self.wait(submission)?;
        let ticks: Vec<u64> = self.mapped(&staging, TICKS, mapped)?;
        Ok(self.between([ticks[0], ticks[1]]))
    }

    pub(super) fn clock(&self) -> Result<Clock> {
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let ticks = self.buffer("timestamps", TICKS, usage)?;
        let desc = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count: 2 };
        let queries = self.scoped("timestamps", TICKS as u64, || self.device.create_query_set(&desc))?;
        Ok(Clock { queries, ticks })
    }

    /// Time between two readings of the clock.
    pub(super) fn between(&self, [began, ended]: [u64; 2]) -> Duration {
        let nanoseconds = ended.saturating_sub(began) as f64 * f64::from(self.queue.get_timestamp_period());
        Duration::from_nanos(nanoseconds as u64)
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

/// Reads the device's clock where a pass begins and where it ends.
pub(super) struct Clock {
    queries: wgpu::QuerySet,
    ticks: wgpu::Buffer,
}

/// Bytes of the two readings.
pub(super) const TICKS: usize = 2 * wgpu::QUERY_SIZE as usize;

impl Clock {
    pub(super) fn writes(&self) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        }
    }

    /// Leaves the readings at the start of `to`.
    pub(super) fn resolve(&self, encoder: &mut wgpu::CommandEncoder, to: &wgpu::Buffer) {
        encoder.resolve_query_set(&self.queries, 0..2, &self.ticks, 0);
        encoder.copy_buffer_to_buffer(&self.ticks, 0, to, 0, TICKS as u64);
    }
}
