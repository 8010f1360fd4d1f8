//! The device, and the interpreter that runs a program on it. This module and those below are the only ones that name wgpu.

mod buffers;
mod governor;
mod pipelines;
mod prepared;
mod timing;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use buffers::Buffers;
#[doc(hidden)]
pub use governor::{Governor, SUBMISSION};
pub use pipelines::Pipelines;
pub use prepared::{Prepared, Running};

use crate::error::{Error, Result};
use crate::memory::{Matrices, MatrixShape};

/// What kind of hardware an adapter is, best first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A card with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU behind a virtual machine, or one the driver does not describe.
    Other,
    /// A driver that runs shaders on the CPU.
    Software,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Discrete => "discrete GPU",
            Kind::Integrated => "integrated GPU",
            Kind::Other => "GPU",
            Kind::Software => "software",
        })
    }
}

/// What an adapter is and can do.
#[derive(Clone, Debug)]
pub struct Caps {
    /// As the driver names it.
    pub name: String,
    /// Driver and its version.
    pub driver: String,
    /// vulkan, metal, dx12, …
    pub backend: String,
    /// Hardware.
    pub kind: Kind,
    /// Most bytes of one storage binding: also a multiple of 4 and within the largest buffer.
    pub max_binding: usize,
    /// Most workgroups along one axis of a dispatch.
    pub max_groups: u32,
    /// Invocations of a subgroup, at least; 0: shaders cannot use subgroups, or `FARPAST_DISABLE` names them.
    pub subgroup: u32,
    /// Whether shaders can compute in f16, unless `FARPAST_DISABLE` names it.
    pub f16: bool,
    /// Whether linears may form products of int8, unless `FARPAST_DISABLE` names `dot8`: WGSL has them everywhere.
    pub dot8: bool,
    /// The cooperative matrices that linears may multiply by, unless `FARPAST_DISABLE` names `coopmat`. Of a [`Gpu`]: that it was
    /// opened with.
    pub matrices: Option<Matrices>,
    /// Whether the device's own clock can be read, unless `FARPAST_DISABLE` names it.
    pub timestamps: bool,
}

impl std::fmt::Display for Caps {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} ({}, {}, {})", self.name, self.kind, self.backend, self.driver)
    }
}

/// Which adapter, and how strictly its shaders run.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Index in [`adapters`] or part of a name; `None` takes `WGPU_ADAPTER_NAME`, else the best.
    pub device: Option<String>,
    /// Open it with cooperative matrices, where it has them: they are an experimental feature of wgpu.
    pub coopmat: bool,
    /// Compile shaders with bounds checks: the tests do, production need not.
    pub checked: bool,
}

/// A device of an adapter, ready to run programs.
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    caps: Caps,
    checked: bool,
    /// Pipelines of earlier runs.
    kept: Option<pipelines::Kept>,
    /// Buffers, bind groups, pipelines and query sets made so far.
    created: AtomicUsize,
    /// Text that shaders have replaced by another: a fault that a test has planted.
    fault: Option<(&'static str, &'static str)>,
    failure: Arc<Mutex<Option<Failure>>>,
}

/// What went wrong asynchronously: that the device is lost, or else the first thing.
#[derive(Clone, Debug)]
enum Failure {
    Lost(String),
    Rejected(String),
}

/// No driver leaves a submission running this long; a wait beyond it means that the device is gone.
const WAIT: Duration = Duration::from_secs(300);

/// What a device that has rejected something may still take to end what it runs.
const IDLE: Duration = Duration::from_secs(1);

/// All adapters of the backends that `WGPU_BACKEND` allows, best first.
pub fn adapters() -> Vec<Caps> {
    enumerate().iter().map(caps).collect()
}

/// The adapter that `options` and the environment ask for.
pub fn adapter(options: &DeviceOptions) -> Result<Caps> {
    choose(&enumerate(), options).map(caps)
}

fn choose<'a>(adapters: &'a [wgpu::Adapter], options: &DeviceOptions) -> Result<&'a wgpu::Adapter> {
    let wanted = options.device.clone().or_else(|| std::env::var("WGPU_ADAPTER_NAME").ok());
    let adapter = match &wanted {
        None => adapters.first(),
        Some(wanted) => match wanted.parse::<usize>() {
            Ok(index) => adapters.get(index),
            Err(_) => adapters.iter().find(|a| a.get_info().name.to_lowercase().contains(&wanted.to_lowercase())),
        },
    };
    adapter.ok_or_else(|| {
        let names: Vec<_> = adapters.iter().map(|a| a.get_info().name).collect();
        let found = if names.is_empty() { "none".into() } else { names.join(", ") };
        Error::NoDevice { wanted: wanted.unwrap_or("any GPU adapter".into()), found }
    })
}

fn enumerate() -> Vec<wgpu::Adapter> {
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
    desc.backends = wgpu::Backends::from_env().unwrap_or(wgpu::Backends::all());
    let instance = wgpu::Instance::new(desc);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    // A stable sort: backends of one card stay in wgpu's order of preference.
    adapters.sort_by_key(|a| caps(a).kind);
    adapters
}

fn caps(adapter: &wgpu::Adapter) -> Caps {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
        wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
        wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => Kind::Other,
        wgpu::DeviceType::Cpu => Kind::Software,
    };
    let features = features(adapter);
    Caps {
        name: info.name,
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
        backend: info.backend.to_string(),
        kind,
        max_binding: max_binding(&limits),
        max_groups: limits.max_compute_workgroups_per_dimension,
        subgroup: if features.contains(wgpu::Features::SUBGROUP) { info.subgroup_min_size } else { 0 },
        f16: features.contains(wgpu::Features::SHADER_F16),
        dot8: !is_disabled("dot8"),
        matrices: matrices(adapter),
        timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
    }
}

/// What is used of an adapter where it has it, less what `FARPAST_DISABLE=subgroups,f16,timestamps,pipelines` names;
/// cooperative matrices apart.
fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
    let used = [
        ("subgroups", wgpu::Features::SUBGROUP),
        ("f16", wgpu::Features::SHADER_F16),
        ("timestamps", wgpu::Features::TIMESTAMP_QUERY),
        ("pipelines", wgpu::Features::PIPELINE_CACHE),
    ];
    let allowed = used.into_iter().filter(|(name, _)| !is_disabled(name)).map(|(_, feature)| feature);
    adapter.features() & allowed.fold(wgpu::Features::empty(), |all, feature| all | feature)
}

/// The best of an adapter's cooperative matrices.
fn matrices(adapter: &wgpu::Adapter) -> Option<Matrices> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let (features, subgroup) = (features(adapter), adapter.get_info().subgroup_max_size);
    let has_any = adapter.features().contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    if is_disabled("coopmat")
        || !has_any
        || !features.contains(wgpu::Features::SUBGROUP)
        || !(8..=64).contains(&subgroup)
    {
        return None;
    }
    let found = adapter.cooperative_matrix_properties();
    let has = |size, of| {
        let mut found = found.iter();
        found.any(|p| [p.m_size, p.n_size, p.k_size] == [size; 3] && p.ab_type == of && p.cr_type == F32)
    };
    let f16 = features.contains(wgpu::Features::SHADER_F16);
    let shape = if f16 && has(16, F16) {
        MatrixShape::F16x16
    } else if f16 && has(8, F16) {
        MatrixShape::F16x8
    } else if has(8, F32) {
        MatrixShape::F32x8
    } else {
        return None;
    };
    Some(Matrices { shape, subgroup: subgroup as usize })
}

/// Whether `FARPAST_DISABLE` names it.
fn is_disabled(name: &str) -> bool {
    let disabled = std::env::var("FARPAST_DISABLE").unwrap_or_default();
    disabled.split(',').any(|d| d.trim().eq_ignore_ascii_case(name))
}

/// Some drivers allow a binding beyond the largest buffer.
fn max_binding(limits: &wgpu::Limits) -> usize {
    let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size) & !3;
    usize::try_from(most).unwrap_or(usize::MAX & !3)
}

impl Gpu {
    /// Opens the adapter that `options` and the environment ask for, with the limits the adapter has.
    pub fn new(options: &DeviceOptions) -> Result<Self> {
        let adapters = enumerate();
        let adapter = choose(&adapters, options)?;
        let mut caps = caps(adapter);
        caps.matrices = caps.matrices.filter(|_| options.coopmat);
        let request = |required_limits| {
            let mut desc = wgpu::DeviceDescriptor { label: Some("farpast"), required_limits, ..Default::default() };
            desc.required_features = features(adapter);
            if caps.matrices.is_some() {
                desc.required_features |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
                // SAFETY: only shaders of linears use them, within the bounds of their own workgroup memory.
                desc.experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
            }
            pollster::block_on(adapter.request_device(&desc))
        };
        // Some drivers refuse limits that they report.
        let opened = request(adapter.limits()).or_else(|_| request(wgpu::Limits::default()));
        let (device, queue) =
            opened.map_err(|e| Error::Device { device: caps.name.clone(), what: format!("cannot be opened: {e}") })?;
        let caps = Caps { max_binding: max_binding(&device.limits()), ..caps };

        let failure = Arc::new(Mutex::new(None));
        let record = |failure: &Arc<Mutex<Option<Failure>>>| {
            let failure = failure.clone();
            move |new: Failure| {
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                // A lost device rejects what is asked of it before it says that it is lost.
                if !matches!((&*failure, &new), (Some(Failure::Lost(_)), _) | (Some(_), Failure::Rejected(_))) {
                    *failure = Some(new);
                }
            }
        };
        let lost = record(&failure);
        device.set_device_lost_callback(move |reason, why| lost(Failure::Lost(format!("{reason:?}: {why}"))));
        let rejected = record(&failure);
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| rejected(Failure::Rejected(e.to_string()))));
        let (checked, created) = (options.checked, AtomicUsize::new(0));
        Ok(Self { device, queue, caps, checked, kept: None, created, fault: None, failure })
    }

    /// What the adapter is and can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Makes the device unusable, as a driver reset would.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.device.destroy();
    }

    /// Makes `from` in every shader `to`.
    #[doc(hidden)]
    pub fn plant(&mut self, from: &'static str, to: &'static str) {
        self.fault = Some((from, to));
    }

    /// Buffers, bind groups, pipelines and query sets made so far.
    #[doc(hidden)]
    pub fn created(&self) -> usize {
        self.created.load(Ordering::Relaxed)
    }

    /// The failure reported since the device was opened, if any.
    fn check(&self) -> Result<()> {
        let device = self.caps.name.clone();
        let failure = || self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(Failure::Rejected(_)) = failure() {
            // It says that it is lost when it is asked, and nothing runs on it any more.
            let idle = wgpu::PollType::Wait { submission_index: None, timeout: Some(IDLE) };
            let _ = self.device.poll(idle);
        }
        match failure() {
            None => Ok(()),
            Some(Failure::Lost(why)) => Err(Error::DeviceLost { device, why }),
            Some(Failure::Rejected(what)) => Err(Error::Device { device, what }),
        }
    }

    /// Runs `f`, which creates something, and turns what the device says against it into an error.
    fn scoped<T>(&self, what: &str, bytes: u64, f: impl FnOnce() -> T) -> Result<T> {
        self.created.fetch_add(1, Ordering::Relaxed);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let value = f();
        let (memory, validation) = (pollster::block_on(memory.pop()), pollster::block_on(validation.pop()));
        self.check()?;
        let device = self.caps.name.clone();
        match (memory, validation) {
            (None, None) => Ok(value),
            (Some(_), _) => Err(Error::OutOfMemory { device, what: what.into(), bytes }),
            (None, Some(e)) => Err(Error::Device { device, what: format!("{what}: {e}") }),
        }
    }

    /// Waits until `submission` has run.
    fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<()> {
        let poll = wgpu::PollType::Wait { submission_index: Some(submission), timeout: Some(WAIT) };
        let polled = self.device.poll(poll);
        self.check()?;
        polled.map(drop).map_err(|e| Error::DeviceLost { device: self.caps.name.clone(), why: e.to_string() })
    }
}
