//! The packaged models against goldens of an independent implementation in f64 (scripts/golden_models.py).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farpast::constrain::{Grammar, Grammars};
use farpast::engine::{Backend, Engine, EngineOptions, Profiled};
use farpast::gpu::DeviceOptions;
use farpast::memory::Element;
use farpast::sampler::{Dry, Penalties, Sampling};
use farpast::text::Special;
use farpast::weights::Weights;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::model::checkpoint;

const MODELS: [&str; 3] = ["smollm2", "qwen2.5-coder-0.5b", "gemma3-270m"];

/// Largest |Δlogit| with f32 keys and values.
const BOUND: f32 = 2e-3;

/// SwiftShader computes one token a second of the smallest model, and less of the others.
fn slow() -> bool {
    std::env::var("FARPAST_TEST_DRIVER").is_ok_and(|driver| driver == "swiftshader")
}

fn models() -> &'static [&'static str] {
    if slow() { &MODELS[..1] } else { &MODELS }
}

struct Golden {
    json: Value,
    /// After each of the prompt's tokens the logits of `logit_ids`.
    rows: Vec<Vec<f32>>,
    /// After the last one the logits of every `last_step`-th id.
    last: Vec<f32>,
}

fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels-tests/golden").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden_file(name)).unwrap()).unwrap()
}

fn ids(json: &Value) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn golden(model: &str) -> Golden {
    let json = golden_json(&format!("{model}.json"));
    let bytes = std::fs::read(golden_file(&format!("{model}_logits.bin"))).unwrap();
    let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let width = ids(&json["logit_ids"]).len();
    let (rows, last) = values.split_at(ids(&json["prompt"]).len() * width);
    Golden { rows: rows.chunks(width).map(Vec::from).collect(), last: last.into(), json }
}

fn engine(model: &str, backend: Backend, kv: Element) -> Engine {
    let options = EngineOptions { backend, kv, context: 256, batch: 64, ..Default::default() };
    Engine::load(&Weights::open(checkpoint(model)).unwrap(), &options, |_| ()).unwrap()
}

/// Largest |Δlogit| over what the golden holds, after checking the most likely token of every position.
fn error(model: &str, backend: Backend, kv: Element) -> f32 {
    let golden = golden(model);
    let mut engine = engine(model, backend, kv);
    let logits = in_chunks(&mut engine, &ids(&golden.json["prompt"]), 64);
    assert_eq!((logits.len(), golden.rows.len()), (64, 64));
    for (row, best) in logits.iter().zip(ids(&golden.json["argmax"])) {
        assert!(row.iter().all(|x| *x <= row[best as usize]), "{model}: {best} is not the most likely");
    }
    let columns = ids(&golden.json["logit_ids"]);
    let rows = logits.iter().map(|row| columns.iter().map(|id| row[*id as usize]).collect::<Vec<_>>());
    let last = logits[63].iter().step_by(golden.json["last_step"].as_u64().unwrap() as usize);
    let found: Vec<f32> = rows.flatten().chain(last.copied()).collect();
    let expected: Vec<f32> = golden.rows.into_iter().flatten().chain(golden.last).collect();
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|x| x.is_finite()), "{model}");
    let error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{model} on {}, KV {kv:?}: max |Δlogit| {error:e}", engine.device());
    error
}

fn continues_greedily(model: &str, backend: Backend, kv: Element) {
    let golden = golden(model);
    let mut engine = engine(model, backend, kv);
    for case in golden.json["greedy"].as_array().unwrap().iter().take(if slow() { 1 } else { usize::MAX }) {
        let expected = ids(&case["tokens"]);
        let mut session = engine.session();
        session.push(&ids(&case["prompt_ids"]));
        let mut found = Vec::new();
        while found.len() < expected.len() {
            found.extend(engine.step(&mut [&mut session]).unwrap()[0]);
        }
        assert_eq!(found, expected, "{model} after {}", case["prompt"]);
    }
}

fn gpu() -> Backend {
    Backend::Gpu(DeviceOptions { checked: true, ..Default::default() })
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
fn logits_equal_an_independent_implementation_with_f32_kv() {
    for model in models() {
        assert!(error(model, gpu(), Element::F32) <= BOUND, "{model}");
    }
}

#[test]
fn logits_of_the_cpu_interpreter_equal_an_independent_implementation() {
    for model in models() {
        assert!(error(model, Backend::Cpu, Element::F32) <= BOUND, "{model}");
    }
}

/// Rounding keys and values to f16 costs what it costs: the references at the same precision are the measure.
#[test]
fn f16_kv_adds_at_most_twice_the_error_of_the_references_at_that_precision() {
    for model in models() {
        let naive = error(model, Backend::Cpu, Element::F16);
        assert!(error(model, gpu(), Element::F16) <= 2.0 * naive, "{model}");
    }
}

#[test]
fn greedy_continuations_equal_an_independent_implementation() {
    for model in models() {
        continues_greedily(model, gpu(), Element::F16);
    }
}

#[test]
fn greedy_continuations_of_the_cpu_interpreter_equal_an_independent_implementation() {
    for model in models() {
        continues_greedily(model, Backend::Cpu, Element::F32);
    }
}

#[test]
fn decode_equals_prefill_bit_for_bit() {
    for model in models() {
        // A page and a half, for the slow drivers.
        let prompt = &ids(&golden(model).json["prompt"])[..24];
        let mut engine = engine(model, gpu(), Element::F16);
        let prefill = in_chunks(&mut engine, prompt, 16);
        for chunk in [1, 7] {
            assert_eq!(prefill, in_chunks(&mut engine, prompt, chunk), "{model}, {chunk} tokens a step");
        }
    }
}

#[test]
fn q8_0_kv_diverges_by_less_than_a_thousandth_of_a_nat() {
    if !slow() {
        let f32 = distributions(MODELS[0], Element::F32);
        let divergence = divergence(MODELS[0], Element::Q8_0, &f32);
        // 0 would be no rounding at all.
        assert!((1e-7..=1e-3).contains(&divergence), "{divergence:e}");
    }
}

#[test]
#[ignore = "minutes for each model"]
fn divergences_of_every_kv_format() {
    for model in MODELS {
        let f32 = distributions(model, Element::F32);
        for kv in [Element::F16, Element::Q8_0, Element::Q4_0] {
            divergence(model, kv, &f32);
        }
    }
}

/// Log-probabilities of the next token after each of 256 tokens of English behind 1,024 others.
fn distributions(model: &str, kv: Element) -> Vec<Vec<f32>> {
    const FIRST: usize = 1024;
    const LAST: usize = 1280;
    let weights = Weights::open(checkpoint(model)).unwrap();
    let text = std::fs::read_to_string(golden_file("english.txt")).unwrap();
    let tokenizer = farpast::chat::tokenizer(&weights).unwrap();
    let mut tokens = tokenizer.with_bos(tokenizer.encode(&text, Special::AsText).unwrap());
    tokens.truncate(LAST);
    let options = EngineOptions { backend: gpu(), kv, context: LAST, batch: 128, ..Default::default() };
    let mut engine = Engine::load(&weights, &options, |_| ()).unwrap();
    let mut session = engine.session();
    session.push(&tokens);
    let mut rows = Vec::new();
    let log_softmax = |row: &[f32]| {
        let most = row.iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x));
        let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
        row.iter().map(|x| x - most - sum.ln() as f32).collect()
    };
    engine.each_logits(&mut session, FIRST, |_, row| rows.push(log_softmax(row))).unwrap();
    assert_eq!(rows.len(), LAST - FIRST);
    rows
}

/// Mean KL divergence, in nats a token, of what a model says with these keys and values from what it says with exact ones.
fn divergence(model: &str, kv: Element, exact: &[Vec<f32>]) -> f64 {
    let found = distributions(model, kv);
    let kl = |(p, q): (&Vec<f32>, &Vec<f32>)| {
        p.iter().zip(q).map(|(p, q)| f64::from(*p).exp() * f64::from(p - q)).sum::<f64>()
    };
    let each: Vec<_> = exact.iter().zip(&found).map(kl).collect();
    let mean = each.iter().sum::<f64>() / each.len() as f64;
    let best = |row: &Vec<f32>| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    let same = exact.iter().zip(&found).filter(|(p, q)| best(p) == best(q)).count();
    let most = each.iter().copied().fold(0.0, f64::max);
    println!(
        "{model}, KV {kv:?}: KL {mean:.2e} a token on average, {most:.2e} at most; the most likely is the same after {same} of {}",
        each.len()
    );
    mean
}

#[test]
fn perplexity_of_512_tokens_is_that_of_an_independent_implementation() {
    if !slow() {
        perplexity_equals(MODELS[0], gpu(), 512);
        perplexity_equals(MODELS[0], Backend::Cpu, 512);
    }
}

#[test]
#[ignore = "minutes for each model"]
fn perplexity_of_4096_tokens_is_that_of_an_independent_implementation() {
    for model in MODELS {
        perplexity_equals(model, gpu(), 4096);
    }
}

/// Scores the tokens after the first in one context of `length` tokens, with f16 keys and values.
fn perplexity_equals(model: &str, backend: Backend, length: usize) {
    const OUTPUTS: usize = 64;
    let golden = &golden_json("perplexity.json")[model];
    let weights = Weights::open(checkpoint(model)).unwrap();
    let text = std::fs::read_to_string(golden_file("english.txt")).unwrap();
    let tokenizer = farpast::chat::tokenizer(&weights).unwrap();
    let mut tokens = tokenizer.with_bos(tokenizer.encode(&text, Special::AsText).unwrap());
    tokens.truncate(golden["tokens"].as_u64().unwrap() as usize);
    let digest = Sha256::digest(bytemuck::cast_slice::<u32, u8>(&tokens));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(golden["ids_sha256"], digest, "{model}: tokens");

    // Logits come back for as many tokens a step as there may be sequences.
    let sizes = EngineOptions { context: length, batch: OUTPUTS, sequences: OUTPUTS, ..Default::default() };
    let options = EngineOptions { backend, pages: length.div_ceil(16), ..sizes };
    let mut engine = Engine::load(&weights, &options, |_| ()).unwrap();
    let mut session = engine.session();
    let mut losses = Vec::new();
    for chunk in tokens[..length].chunks(OUTPUTS) {
        session.push(chunk);
        for row in engine.logits(&mut session).unwrap() {
            let Some(target) = tokens[..length].get(losses.len() + 1) else { break };
            let best = row.iter().fold(f32::NEG_INFINITY, |best, x| best.max(*x));
            let sum: f64 = row.iter().map(|x| f64::from(x - best).exp()).sum();
            losses.push(sum.ln() - f64::from(row[*target as usize] - best));
        }
    }
    for (n, expected) in golden["nll"].as_object().unwrap() {
        let (n, expected) = (n.parse::<usize>().unwrap(), expected.as_f64().unwrap());
        if n > length {
            continue;
        }
        let found = losses[..n - 1].iter().sum::<f64>() / (n - 1) as f64;
        println!("{model} on {}, {n} tokens: NLL {found:.6}, expected {expected:.6}", engine.device());
        assert!((found - expected).exp_m1().abs() <= 3e-3, "{model}: perplexity after {n} tokens");
    }
}

/// By the kernels' own times, on a device that others use too.
#[test]
fn drawing_takes_little_of_a_decode_step() {
    let mut engine = engine("smollm2", Backend::Gpu(DeviceOptions::default()), Element::F16);
    let prompt = ids(&golden_json("smollm2.json")["prompt"]);
    let penalties = Penalties { repeat: 1.1, frequency: 0.1, presence: 0.1, ..Penalties::default() };
    let dry = Dry { multiplier: 0.8, ..Dry::default() };
    let usual = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::default() };
    let cases = [
        ("greedy", Sampling::default(), None),
        ("temperature", Sampling { temperature: 0.8, ..Sampling::default() }, None),
        ("top-p", Sampling { temperature: 0.8, top_p: 0.95, ..Sampling::default() }, None),
        ("top-k, top-p, min-p", usual.clone(), None),
        ("typical-p", Sampling { temperature: 0.8, typical_p: 0.9, ..Sampling::default() }, None),
        ("top-k, top-p, min-p, penalties, DRY", Sampling { penalties, dry, ..usual }, None),
        ("greedy, 5 logprobs", Sampling::default(), Some(5)),
        ("greedy, 20 logprobs", Sampling::default(), Some(20)),
    ];
    for (name, sampling, logprobs) in cases {
        let mut session = engine.session();
        session.push(&prompt);
        engine.step(&mut [&mut session]).unwrap();
        (session.sampling, session.logprobs) = (sampling, logprobs);
        let profile = engine.profile(session, Duration::from_millis(150)).unwrap();
        let seconds = |all: &mut dyn Iterator<Item = &Profiled>| -> f64 {
            all.map(|p| p.seconds.iter().copied().fold(f64::INFINITY, f64::min)).sum()
        };
        let draws = |p: &&Profiled| ["penalize", "sample", "logprobs"].contains(&p.label.as_str());
        let share = seconds(&mut profile.iter().filter(draws)) / seconds(&mut profile.iter());
        println!("{name}: {:.1} % of the kernels' time", 100.0 * share);
        assert!(slow() || share < 0.2, "{name}: {share}");
    }
}

/// One step at a time in turn with free ones, on a device that others use too.
#[test]
fn a_constraint_takes_little_of_a_decode_step() {
    if slow() {
        return;
    }
    let mut engine = engine("smollm2", Backend::Gpu(DeviceOptions::default()), Element::F16);
    let tokenizer = farpast::chat::tokenizer(&Weights::open(checkpoint("smollm2")).unwrap()).unwrap();
    let began = Instant::now();
    let grammars = Grammars::new(&tokenizer, engine.config().vocab).unwrap();
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "minItems": 40,
                "items": {
                    "type": "object",
                    "properties": { "name": { "type": "string" }, "size": { "enum": ["small", "large"] }, "n": { "type": "number" } },
                    "required": ["name", "size", "n"],
                },
            },
        },
        "required": ["items"],
    });
    let vocabulary = began.elapsed();
    let constraint = grammars.constraint(&Grammar::JsonSchema(schema)).unwrap();
    println!("vocabulary {vocabulary:?}, schema {:?}", began.elapsed() - vocabulary);
    let prompt = ids(&golden_json("smollm2.json")["prompt"]);
    let mut best = [f64::INFINITY; 2];
    for _ in 0..3 {
        for (constrained, best) in [false, true].into_iter().zip(&mut best) {
            let mut session = engine.session();
            session.push(&prompt);
            session.constrain(constrained.then(|| constraint.clone()));
            engine.step(&mut [&mut session]).unwrap();
            let began = Instant::now();
            for _ in 0..40 {
                engine.step(&mut [&mut session]).unwrap();
            }
            *best = best.min(began.elapsed().as_secs_f64());
        }
    }
    let [free, constrained] = best;
    println!("a constrained step takes {:.3} of a free one's {:.1} ms", constrained / free, 1e3 * free / 40.0);
    let mut session = engine.session();
    session.push(&prompt);
    session.constrain(Some(constraint.clone()));
    (0..40).for_each(|_| _ = engine.step(&mut [&mut session]).unwrap());
    let (mut followed, began) = (constraint.clone(), Instant::now());
    for id in &session.tokens()[prompt.len()..] {
        followed.take(*id).unwrap();
        followed.allowed().unwrap();
    }
    let mask = began.elapsed().as_secs_f64();
    println!("masks take {:.3} ms each, {:.1} % of a step", 1e3 * mask / 40.0, 100.0 * mask / free);
    assert!(constrained / free < 1.5, "{constrained} of {free}");
}
