//! Ten thousand steps, which must leave nothing behind.

use std::ops::ControlFlow;

use farpast::engine::{Backend, Engine, EngineOptions};

use crate::allocation;
use crate::harness::{is_alone, resident};
use crate::toy::{self, Toy};

const STEPS: usize = 10_000;

/// Bytes that tables of wgpu and the driver may still grow by: less than 8 a step.
const SLACK: isize = 64 << 10;
const RESIDENT_SLACK: isize = 1 << 20;

/// What a process and its engine hold.
#[derive(Debug)]
struct Holds {
    heap: isize,
    resident: isize,
    objects: usize,
    free_pages: usize,
}

impl Holds {
    fn now(engine: &Engine) -> Self {
        Self {
            heap: allocation::held(),
            resident: resident() as isize,
            objects: engine.gpu().unwrap().created(),
            free_pages: engine.free_pages(),
        }
    }
}

#[test]
fn ten_thousand_steps_leave_nothing_behind() {
    let name = "long_run::ten_thousand_steps_leave_nothing_behind";
    if !is_alone(name) {
        return;
    }
    let toy = Toy { layers: 1, hidden: 32, ffn: 32, vocab: 64, ..toy::ALL[2] };
    let options = EngineOptions { backend: Backend::Gpu(crate::harness::device()), batch: 16, ..Default::default() };
    let mut engine = Engine::load(&toy.weights(), &options, |_| ()).unwrap();
    let mut session = engine.session();
    let (mut steps, mut early) = (0, None);
    session.push(&[1, 2, 3]);
    engine.step(&mut [&mut session]).unwrap();
    while steps < STEPS {
        if early.is_none() && steps >= STEPS / 10 {
            early = Some(Holds::now(&engine));
        }
        // To the end of the context and back, by steps and ahead of what is read.
        engine
            .decode(&mut [&mut session], 60, |_| {
                steps += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        for _ in 0..20 {
            engine.step(&mut [&mut session]).unwrap();
            steps += 1;
        }
        session.rewind(4);
    }
    let (early, late) = (early.unwrap(), Holds::now(&engine));
    println!("{early:?}\n{late:?}");
    assert!(late.heap - early.heap <= SLACK, "the heap grew from {} to {} bytes", early.heap, late.heap);
    assert!(late.resident - early.resident <= RESIDENT_SLACK, "{early:?} grew to {late:?}");
    assert_eq!((late.objects, late.free_pages), (early.objects, early.free_pages), "objects and free pages");
}
