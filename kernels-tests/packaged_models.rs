//! Greedy continuations of the packaged models by transformers 5.24 (its GGUF loader, f32), the CPU interpreter and the GPU.

use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::gpu::DeviceOptions;
use farpast::memory::Element;
use farpast::weights::Weights;

use crate::model::checkpoint;

fn continues(name: &str, prompt: &[u32], expected: &[u32]) {
    let weights = Weights::open(checkpoint(name)).unwrap();
    let gpu = Backend::Gpu(DeviceOptions { checked: true, ..Default::default() });
    for backend in [Backend::Cpu, gpu] {
        let options = EngineOptions { backend, kv: Element::F32, context: 128, batch: 32, ..Default::default() };
        let mut engine = Engine::load(&weights, &options, |_, _| ()).unwrap();
        let mut session = engine.session();
        session.push(prompt);
        let mut found = Vec::new();
        while found.len() < expected.len() {
            found.extend(engine.step(&mut [&mut session]).unwrap()[0]);
        }
        assert_eq!(found, expected, "{name} on {}", engine.device());
    }
}

#[test]
fn gemma3_continues_as_transformers() {
    // "The capital of France is"
    let prompt = [2, 818, 5279, 529, 7001, 563];
    let expected = [
        506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506, 7488, 3207, 528, 7001, 532, 506, 1855, 7488,
        3207, 528, 3879, 236761, 1030,
    ];
    continues("gemma3-270m", &prompt, &expected);
}

#[test]
fn qwen2_continues_as_transformers() {
    // A user's "Write a Python function that reverses a string." in ChatML.
    let prompt =
        [151644, 872, 198, 7985, 264, 13027, 729, 429, 17431, 288, 264, 914, 13, 151645, 198, 151644, 77091, 198];
    let expected = [
        8420, 594, 264, 13027, 729, 429, 17431, 288, 264, 914, 1447, 73594, 12669, 198, 750, 9931, 3904, 1141, 982,
        262, 671, 9008, 458, 4287,
    ];
    continues("qwen2.5-coder-0.5b", &prompt, &expected);
}
