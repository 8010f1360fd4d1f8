//! What tests reach into an engine for.

use super::{Device, Engine};
use crate::error::Result;
use crate::kv::{PAGE, PagePool};
use crate::memory::stride;

#[doc(hidden)]
impl Engine {
    /// Hands out pages from the end of `free`, which names each once. Sessions made before keep the old pool: there must
    /// be none.
    pub fn order_pages(&mut self, free: Vec<u32>) {
        assert_eq!(free.len(), self.memory.capacity.pages, "pages of the pool");
        self.pool = PagePool::in_order(free);
    }

    /// Fills every page that no session holds with NaN.
    pub fn poison_free_pages(&mut self) -> Result<()> {
        let rows = self.config.attention.kv_heads * PAGE;
        for t in self.memory.handles().filter(|t| self.memory.desc(*t).name.ends_with("_pages")) {
            let desc = self.memory.desc(t);
            let page = desc.bytes() / desc.rows * rows;
            match &mut self.device {
                Device::Gpu(on) => {
                    let mut bytes = on.gpu.read(&on.buffers, t, desc.bytes())?;
                    for free in self.pool.free() {
                        bytes[free as usize * page..][..page].fill(0xff);
                    }
                    on.gpu.write(&on.buffers, t, &bytes)?;
                }
                Device::Cpu { host } => {
                    let elements = rows * stride(desc.cols);
                    for free in self.pool.free() {
                        (0..elements).for_each(|i| host[t.0].set_kv(free as usize * elements + i, f32::NAN));
                    }
                }
            }
        }
        Ok(())
    }

    /// The first `rows` rows of logits of the last step: one for each session that got a token, in their order.
    pub fn last_logits(&self, rows: usize) -> Result<Vec<Vec<f32>>> {
        let v = self.config.vocab;
        let logits = self.read(self.io.logits, 0, rows * stride(v))?;
        Ok(logits.chunks(stride(v)).map(|row| row[..v].iter().map(|bits| f32::from_bits(*bits)).collect()).collect())
    }

    /// Loses the device, as a driver reset does.
    pub fn lose_device(&self) {
        if let Device::Gpu(on) = &self.device {
            on.gpu.lose();
        }
    }
}
