//! The cases of the kernel tests, timed on the best device: one run of all their steps, submission and wait included.

use std::time::Duration;

use criterion::{Criterion, Throughput};
use farpast::gpu::{DeviceOptions, Gpu};
use farpast::memory::Host;

#[allow(dead_code)]
#[path = "../kernels-tests/cases.rs"]
mod cases;
#[allow(dead_code)]
#[path = "../kernels-tests/gguf_writer.rs"]
mod gguf_writer;

fn main() -> farpast::Result<()> {
    let gpu = Gpu::new(&DeviceOptions::default())?;
    println!("{}", gpu.caps());
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    for case in cases::all() {
        bench(&gpu, &mut criterion, &case.setup())?;
    }
    criterion.final_summary();
    Ok(())
}

fn bench(gpu: &Gpu, criterion: &mut Criterion, setup: &cases::Setup) -> farpast::Result<()> {
    let buffers = gpu.allocate(&setup.memory, |_, _| ())?;
    for (t, host) in setup.hosts() {
        if !matches!(host, Host::Weight(_)) {
            gpu.write_host(&buffers, t, &host)?;
        }
    }
    let mut prepared = gpu.prepare(&buffers, &[&setup.program])?;
    let name = setup.program.dispatches[0].kernel.name;
    let mut group = criterion.benchmark_group(name);
    let bytes = setup.steps.iter().map(|step| setup.program.cost(step, &setup.memory).bytes()).sum();
    group.throughput(Throughput::Bytes(bytes));
    group.bench_function(&setup.name, |b| {
        b.iter(|| {
            for step in &setup.steps {
                gpu.run(&buffers, &mut prepared[0], step).expect("the device runs");
            }
        })
    });
    group.finish();
    Ok(())
}
