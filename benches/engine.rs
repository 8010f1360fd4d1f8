//! Prefill and decode of SmolLM2 (fetched by `cargo run --release --example fetch -- smollm2`), on the adapter found and on
//! the CPU interpreter: `cargo bench --bench engine`. Throughput is tokens: criterion's elements.

#[allow(dead_code)]
#[path = "../kernels-tests/model.rs"]
mod model;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::gpu::DeviceOptions;
use farpast::session::Session;
use farpast::weights::Weights;

/// A session of `depth` computed tokens.
fn at_depth(engine: &mut Engine, depth: u32) -> Session {
    let mut session = engine.session();
    session.push(&(100..100 + depth).collect::<Vec<_>>());
    prefill(engine, &mut session);
    session
}

fn prefill(engine: &mut Engine, session: &mut Session) {
    while engine.step(&mut [session]).expect("a step")[0].is_none() {}
}

fn bench(c: &mut Criterion) {
    let weights = Weights::open(model::test_model()).expect("the model opens");
    for (name, backend) in [("gpu", Backend::Gpu(DeviceOptions::default())), ("cpu", Backend::Cpu)] {
        let options = EngineOptions { backend, context: 1024, sequences: 2, ..Default::default() };
        let mut engine = Engine::load(&weights, &options, |_| ()).expect("the model loads");
        println!("{name}: {}", engine.device());
        let mut group = c.benchmark_group(name);
        group.sample_size(10);
        for n in [128, 512] {
            group.throughput(Throughput::Elements(n));
            group.bench_function(format!("pp{n}"), |b| {
                b.iter(|| at_depth(&mut engine, n as u32));
            });
        }
        const DECODED: u64 = 32;
        for depth in [0, 512] {
            group.throughput(Throughput::Elements(DECODED));
            group.bench_function(format!("tg{DECODED} @ d{depth}"), |b| {
                let start = at_depth(&mut engine, depth + 1);
                b.iter_batched(
                    || start.fork(),
                    |mut session| {
                        // A fork has up to a page to compute again: that is part of the first token.
                        for _ in 0..DECODED {
                            prefill(&mut engine, &mut session);
                        }
                    },
                    BatchSize::PerIteration,
                );
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
