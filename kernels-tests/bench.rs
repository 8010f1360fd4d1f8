//! What `bench` measures with.

use std::collections::HashMap;
use std::time::Duration;

use farpast::Error;
use farpast::bench::{Peak, Peaks, Shape, cases};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::kernel::{Cost, Step};

use crate::cases::Setup;
use crate::harness::{self, gpu};
use crate::shaders::validate;
use crate::toy;

const SHORT: Duration = Duration::from_millis(1);

#[test]
fn the_peaks_compute_what_their_references_say() {
    for (name, peak) in [("copy", Peak::copy(10_000)), ("fma", Peak::fma(3, 2))] {
        let Peak { memory, program } = peak;
        let d = &program.dispatches[0];
        validate(&d.kernel.wgsl(&d.spec)).unwrap();
        let steps = vec![Step::default()];
        let (name, values, magnitudes) = (name.into(), HashMap::new(), HashMap::new());
        harness::expect_equal(&Setup {
            name,
            memory,
            program,
            steps,
            values,
            magnitudes,
            tolerance: crate::cases::TOLERANCE,
        });
    }
    let copy = Peak::copy(10_000);
    // Three workgroups of 64 invocations, 4 vec4 each.
    let bytes = 3 * 64 * 4 * 16;
    assert_eq!(copy.program.cost(&Step::default(), &copy.memory), Cost { read: bytes, written: bytes, flops: 0 });
    let fma = Peak::fma(3, 2);
    assert_eq!(fma.program.cost(&Step::default(), &fma.memory).flops, 3 * 64 * 2 * 24 * 4 * 2);
}

#[test]
fn more_work_takes_more_time() {
    let best = |rounds| {
        let Peak { memory, program } = Peak::fma(8, rounds);
        let buffers = gpu().allocate(&memory, |_, _| ()).unwrap();
        let mut prepared = gpu().prepare(&buffers, &[&program]).unwrap();
        let seconds = gpu().measure(&buffers, &mut prepared[0], &Step::default(), SHORT).unwrap();
        assert!(!seconds.is_empty() && seconds.iter().all(|s| s.is_finite() && *s >= 0.0), "{seconds:?}");
        seconds.into_iter().fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (best(64), best(4096));
    assert!(many > 4.0 * few, "{few} s, 64 times as much {many} s");
}

#[test]
fn the_roof_is_the_slower_of_memory_and_arithmetic() {
    let peaks = Peaks { bytes: 10.0, flops: 1000.0 };
    let seconds = |read, flops| peaks.least_seconds(&Cost { read, written: 10, flops });
    assert_eq!((seconds(10, 100), seconds(10, 5000)), (2.0, 5.0));
}

#[test]
fn kernels_in_shapes_of_models_run() {
    let shape = Shape::named("1b").unwrap();
    let wanted = ["rmsnorm", "norm_rope_store", "swiglu", "attention_merge"].map(String::from);
    let found: Vec<_> = cases(gpu(), shape, &wanted).unwrap().collect();
    assert!(found.len() >= wanted.len());
    for case in &found {
        assert!(case.costs().iter().all(|cost| cost.bytes() > 0) && case.bytes() > 0, "{}", case.name);
        let buffers = case.allocate(gpu()).unwrap();
        let mut prepared = gpu().prepare(&buffers, &[&case.program]).unwrap();
        gpu().measure(&buffers, &mut prepared[0], &case.step, SHORT).unwrap();
    }
    let mut names: Vec<_> = cases(gpu(), shape, &[]).unwrap().map(|case| case.name).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert!(names.len() == all && all > found.len(), "{names:?}");

    let error = |result: farpast::Result<()>| match result.unwrap_err() {
        Error::Request { what, found, .. } => (what, found),
        other => panic!("{other}"),
    };
    assert_eq!(error(Shape::named("70b").map(drop)), ("shape".into(), "70b".into()));
    assert_eq!(error(cases(gpu(), shape, &["matvec".into()]).map(drop)), ("kernel".into(), "matvec".into()));
}

#[test]
fn a_profile_has_every_dispatch_of_the_step_once() {
    gpu();
    for backend in [Backend::Cpu, Backend::Gpu(harness::device())] {
        let options = EngineOptions { backend, batch: 32, ..EngineOptions::default() };
        let mut engine = Engine::load(&toy::ALL[2].weights(), &options, |_| ()).unwrap();
        for (depth, n) in [(0, 19), (19, 1)] {
            let mut session = engine.session();
            session.push(&vec![1; depth]);
            if depth > 0 {
                engine.step(&mut [&mut session]).unwrap();
                session.rewind(depth);
            }
            session.push(&vec![2; n]);
            let profile = engine.profile(session, SHORT).unwrap();
            // A dispatch without workgroups is none.
            let costs: Vec<Cost> = engine.costs(depth, n, true).filter(|cost| *cost != Cost::default()).collect();
            assert_eq!(profile.iter().map(|kernel| kernel.costs.len()).sum::<usize>(), costs.len());
            let of_kernels: Cost = profile.iter().flat_map(|kernel| kernel.costs.iter().copied()).sum();
            assert_eq!(of_kernels, costs.into_iter().sum());
            assert!(profile.iter().all(|kernel| !kernel.seconds.is_empty()));
        }
        let empty = engine.session();
        assert!(matches!(engine.profile(empty, SHORT), Err(Error::Request { .. })));
        // The pages of what was profiled are free again.
        assert_eq!(engine.free_pages(), engine.capacity().pages);
    }
}
