//! SmolLM2-135M against goldens of an independent implementation (scripts/golden.py).

use std::path::Path;

use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::gpu::DeviceOptions;
use farpast::memory::Element;
use farpast::weights::Weights;
use serde_json::Value;

use crate::model::test_model;

struct Golden {
    json: Value,
    /// For each of 64 positions the logits of `logit_ids`.
    rows: Vec<Vec<f32>>,
    /// All logits after the last position.
    last: Vec<f32>,
}

fn ids(json: &Value) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn golden() -> Golden {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels-tests/golden");
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("smollm2.json")).unwrap()).unwrap();
    let bytes = std::fs::read(folder.join("smollm2_logits.bin")).unwrap();
    let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let width = ids(&json["logit_ids"]).len();
    let (rows, last) = values.split_at(ids(&json["prompt"]).len() * width);
    Golden { rows: rows.chunks(width).map(Vec::from).collect(), last: last.into(), json }
}

fn engine(backend: Backend, kv: Element) -> Engine {
    let weights = Weights::open(test_model()).unwrap();
    let options = EngineOptions { backend, kv, context: 256, batch: 64, ..Default::default() };
    Engine::load(&weights, &options, |_, _| ()).unwrap()
}

fn gpu() -> Backend {
    Backend::Gpu(DeviceOptions { checked: true, ..Default::default() })
}

/// Largest |Δlogit| over what the golden holds, after checking the most likely token of every position.
fn worst(engine: &mut Engine) -> f32 {
    let golden = golden();
    let mut session = engine.session();
    session.push(&ids(&golden.json["prompt"]));
    let logits = engine.logits(&mut session).unwrap();
    assert_eq!(logits.len(), golden.rows.len());
    let logit_ids = ids(&golden.json["logit_ids"]);
    let mut worst = 0f32;
    let mut compare = |got: f32, expected: f32| {
        assert!(got.is_finite());
        worst = worst.max((got - expected).abs());
    };
    for ((got, expected), best) in logits.iter().zip(&golden.rows).zip(ids(&golden.json["argmax"])) {
        assert!(got.iter().all(|x| *x <= got[best as usize]), "token {best} is not the most likely");
        logit_ids.iter().zip(expected).for_each(|(id, x)| compare(got[*id as usize], *x));
    }
    logits[63].iter().zip(&golden.last).for_each(|(got, x)| compare(*got, *x));
    worst
}

fn continues_greedily(engine: &mut Engine) {
    // SwiftShader computes one token a second: it continues the shortest prompt.
    let slow = std::env::var("FARPAST_TEST_DRIVER").is_ok_and(|driver| driver == "swiftshader");
    for case in golden().json["greedy"].as_array().unwrap().iter().take(if slow { 1 } else { 3 }) {
        let mut session = engine.session();
        session.push(&ids(&case["prompt_ids"]));
        let mut got = Vec::new();
        while got.len() < 48 {
            got.extend(engine.step(&mut [&mut session]).unwrap()[0]);
        }
        assert_eq!(got, ids(&case["tokens"]));
    }
}

#[test]
fn logits_equal_an_independent_implementation_with_f32_kv() {
    let error = worst(&mut engine(gpu(), Element::F32));
    println!("max |Δlogit| {error:e}");
    assert!(error <= 2e-3);
}

/// Rounding keys and values to f16 costs what it costs: the references at the same precision are the measure.
#[test]
fn f16_kv_adds_at_most_twice_the_error_of_the_references_at_that_precision() {
    let naive = worst(&mut engine(Backend::Cpu, Element::F16));
    let error = worst(&mut engine(gpu(), Element::F16));
    println!("max |Δlogit| {error:e}, references {naive:e}");
    assert!(error <= 2.0 * naive);
}

#[test]
fn logits_of_the_cpu_interpreter_equal_an_independent_implementation() {
    let error = worst(&mut engine(Backend::Cpu, Element::F32));
    println!("max |Δlogit| {error:e}");
    assert!(error <= 2e-3);
}

#[test]
fn greedy_continuations_equal_an_independent_implementation() {
    continues_greedily(&mut engine(gpu(), Element::F16));
}

#[test]
fn greedy_continuations_of_the_cpu_interpreter_equal_an_independent_implementation() {
    continues_greedily(&mut engine(Backend::Cpu, Element::F32));
}

/// Logits after each of the prompt's tokens, computed `chunk` tokens a step.
fn in_chunks(engine: &mut Engine, prompt: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut session = engine.session();
    let mut rows = Vec::new();
    for tokens in prompt.chunks(chunk) {
        session.push(tokens);
        rows.extend(engine.logits(&mut session).unwrap());
    }
    rows
}

#[test]
fn decode_equals_prefill_bit_for_bit() {
    // A page and a half: SwiftShader computes one token a second.
    let prompt = &ids(&golden().json["prompt"])[..24];
    let mut engine = engine(gpu(), Element::F16);
    let prefill = in_chunks(&mut engine, prompt, 16);
    for chunk in [1, 7] {
        assert_eq!(prefill, in_chunks(&mut engine, prompt, chunk), "{chunk} tokens a step");
    }
}
