//! What tests reach into an engine for.

use super::{Device, Engine, EngineOptions, Loading};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kv::PagePool;
use crate::prefix::PrefixCache;
use crate::weights::Weights;

#[doc(hidden)]
impl Engine {
    /// As [`load`](Self::load), on a device with a fault planted, perhaps.
    pub fn load_on_gpu(
        gpu: Gpu,
        weights: &Weights,
        options: &EngineOptions,
        progress: impl FnMut(Loading) + Send,
    ) -> Result<Self> {
        Self::load_on(gpu, weights, options, progress)
    }

    /// Hands out pages from the end of `free`, which names each once. Sessions made before keep the old pool: there must
    /// be none.
    pub fn order_pages(&mut self, free: Vec<u32>) {
        assert_eq!(free.len(), self.memory.capacity.pages, "pages of the pool");
        self.pool = PagePool::in_order(free);
        self.prefixes = PrefixCache::new(&self.pool);
    }

    /// Fills every page that no session holds: values with NaN, keys with large numbers, so that reading one shows. (A key
    /// of NaN may not: exp of NaN is 0 on some drivers.)
    pub fn poison_free_pages(&mut self) -> Result<()> {
        for t in self.page_tensors().collect::<Vec<_>>() {
            // 61280 in f16, also as a scale, 1.3e36 in f32; NaN in both.
            let byte = if self.memory.desc(t).name.ends_with("k_pages") { 0x7b } else { 0xff };
            let page = vec![byte; self.page_bytes(t)];
            for free in self.pool.free() {
                self.write_pages(t, free..free + 1, &page)?;
            }
        }
        Ok(())
    }

    /// Loses the device, as a driver reset does.
    pub fn lose_device(&self) {
        if let Device::Gpu(on) = &self.device {
            on.gpu.lose();
        }
    }
}
