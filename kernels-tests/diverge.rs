//! Both interpreters side by side find nothing in a good model, and exactly the fault that is planted.

use farpast::engine::{Backend, Diverge, EngineOptions};
use farpast::kernel::Kernel;
use farpast::memory::{Bytes, Element};
use farpast::program::Mode;
use farpast::weights::Weights;

use crate::toy_chat::toy;

const TOKENS: [u32; 21] = [65, 3, 66, 200, 257, 9, 9, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32];
const TOLERANCE: f64 = 1e-4;

#[test]
fn interpreters_agree_on_every_dispatch() {
    for kv in Element::KV.map(|(_, kv)| kv) {
        let mut diverge = load(kv);
        let report = diverge.run(&TOKENS, 3, TOLERANCE, |_, _| {}).unwrap();
        assert!(report.first.is_none(), "{}", report.first.unwrap());
        let [prefill, decode] = [Mode::Prefill, Mode::Decode].map(|mode| diverge.program(mode).dispatches.len());
        // 20 tokens in batches of 16, the last one, and three drawn.
        assert_eq!(report.dispatches, 2 * prefill + 4 * decode);
        let all = ["embed", "linear", "linear_rope", "sample"];
        assert!(all.iter().all(|kernel| report.worst.contains_key(kernel)), "{:?}", report.worst.keys());
    }
}

#[test]
fn corrupt_weight_is_named_by_the_first_dispatch_that_reads_it() {
    let mut diverge = load(Element::F32);
    diverge.corrupt("blk.1.ffn_norm.weight", &7f32.to_le_bytes()).unwrap();
    let report = diverge.run(&TOKENS, 0, TOLERANCE, |_, _| {}).unwrap();
    let first = report.first.expect("a difference");
    let norms = diverge.program(Mode::Prefill).dispatches.iter().enumerate();
    let fourth = norms.filter(|(_, d)| d.kernel.name == "rmsnorm").map(|(i, _)| i).nth(3).unwrap();
    assert_eq!((first.mode, first.dispatch, first.kernel), (Mode::Prefill, fourth, "rmsnorm"), "{first}");
    assert_eq!((first.tensor.as_str(), first.element.1), ("h", 0), "{first}");
}

#[test]
fn fault_in_a_shader_is_named() {
    let mut diverge = load(Element::F32);
    let program = diverge.program_mut(Mode::Decode);
    let (i, d) = program.dispatches.iter_mut().enumerate().filter(|(_, d)| d.kernel.name == "swiglu").nth(1).unwrap();
    let source = d.kernel.source.replacen("min(-gate", "min(gate", 1);
    assert_ne!(source, d.kernel.source, "the fault is planted");
    let Kernel { name: _, source: _, bindings, reference, cost } = *d.kernel;
    let name = "swiglu with a fault";
    d.kernel = Box::leak(Box::new(Kernel { name, source: source.leak(), bindings, reference, cost }));
    let first = diverge.run(&TOKENS, 0, TOLERANCE, |_, _| {}).unwrap().first.expect("a difference");
    assert_eq!((first.mode, first.dispatch, first.kernel, first.tensor.as_str()), (Mode::Decode, i, name, "act"));
    assert!((first.gpu - first.reference).abs() > 1e-4, "{first}");
}

fn load(kv: Element) -> Diverge {
    let weights = Weights::from_bytes("toy.gguf", Bytes::new(toy(None).write())).unwrap();
    let backend = Backend::Gpu(crate::harness::device());
    Diverge::load(&weights, &EngineOptions { backend, batch: 16, context: 48, kv, ..EngineOptions::default() }).unwrap()
}
