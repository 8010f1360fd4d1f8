//! Compiled shaders, and the file that keeps them from one run to the next where the backend can (Vulkan).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::Gpu;
use crate::cache;
use crate::error::Result;
use crate::kernel::{Access, Kernel, Spec};
use crate::program::Program;

/// A pipeline is a value: equal keys share it.
pub(super) type Key<'a> = (&'static str, &'a Spec);

/// The pipelines of some programs.
pub struct Pipelines<'a>(pub(super) HashMap<Key<'a>, (wgpu::ComputePipeline, wgpu::BindGroupLayout)>);

/// What is kept in a file: the driver's data behind their SHA-256, as drivers check little of it.
pub(super) struct Kept {
    cache: wgpu::PipelineCache,
    file: PathBuf,
    /// What the file held.
    found: Vec<u8>,
}

/// Most bytes of the file.
const LIMIT: u64 = 64 << 20;

const HASH: usize = 32;

impl Gpu {
    /// Creates the pipelines of `programs`, each once, in parallel. Calls `compiled` with how many there are by now and how many
    /// there will be.
    pub fn compile<'a>(
        &self,
        programs: &[&'a Program],
        compiled: impl FnMut(usize, usize) + Send,
    ) -> Result<Pipelines<'a>> {
        let mut wanted: HashMap<Key, &'static Kernel> = HashMap::new();
        for d in programs.iter().flat_map(|p| &p.dispatches) {
            wanted.insert((d.kernel.name, &d.spec), d.kernel);
        }
        let (all, progress) = (wanted.len(), Mutex::new((0, compiled)));
        let pipelines = wanted.into_par_iter().map(|(key, kernel)| {
            let pipeline = self.pipeline(kernel, key.1)?;
            if let Ok(mut progress) = progress.lock() {
                let (done, compiled) = &mut *progress;
                *done += 1;
                compiled(*done, all);
            }
            Ok((key, pipeline))
        });
        Ok(Pipelines(pipelines.collect::<Result<_>>()?))
    }

    fn pipeline(&self, kernel: &Kernel, spec: &Spec) -> Result<(wgpu::ComputePipeline, wgpu::BindGroupLayout)> {
        let mut text = kernel.wgsl(spec);
        if let Some((from, to)) = self.fault {
            text = text.replace(from, to);
        }
        self.scoped(kernel.name, 0, || {
            let source = wgpu::ShaderSource::Wgsl(text.into());
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
                    Access::Step | Access::Uniform => wgpu::BufferBindingType::Uniform,
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
                cache: self.kept.as_ref().map(|kept| &kept.cache),
            });
            (pipeline, layout)
        })
    }

    /// Compiles with what an earlier run left in `folder`, where the backend can.
    pub fn keep_pipelines(&mut self, folder: &Path) {
        let Some(key) = wgpu::util::pipeline_cache_key(&self.device.adapter_info()) else { return };
        if !self.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return;
        }
        let file = folder.join(format!("{key}.bin"));
        let found = cache::read(&file, LIMIT).filter(|found| is_whole(found)).unwrap_or_default();
        let desc = wgpu::PipelineCacheDescriptor { label: None, data: found.get(HASH..), fallback: true };
        // SAFETY: the data are what `save_pipelines` wrote; wgpu checks device, driver and length, the hash above the rest.
        let cache = self.scoped("pipeline cache", 0, || unsafe { self.device.create_pipeline_cache(&desc) });
        self.kept = cache.ok().map(|cache| Kept { cache, file, found });
    }

    /// Writes what has been compiled to the folder, if it is not what was found there.
    pub fn save_pipelines(&self) {
        let Some(Kept { cache, file, found }) = &self.kept else { return };
        let Some(data) = cache.get_data().filter(|data| ((data.len() + HASH) as u64) < LIMIT) else { return };
        let file_holds = [&Sha256::digest(&data)[..], &data].concat();
        if file_holds != *found {
            // The next run compiles again.
            let _ = cache::replace(file, &file_holds);
        }
    }
}

fn is_whole(found: &[u8]) -> bool {
    found.split_at_checked(HASH).is_some_and(|(hash, data)| Sha256::digest(data)[..] == *hash)
}
