//! Checkpoints that contradict themselves or hold what no model here has: one error names the field or tensor.

use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::Bytes;
use farpast::weights::Weights;

use crate::gguf_writer::GgufWriter;
use crate::toy_chat::toy;

/// What loading the file says.
fn error(file: &GgufWriter, options: EngineOptions) -> String {
    let weights = Weights::from_bytes("toy.gguf", Bytes::new(file.write())).unwrap();
    let loaded = Engine::load(&weights, &options, |_, _| ());
    loaded.err().expect("an error").to_string()
}

fn on_cpu() -> EngineOptions {
    EngineOptions { backend: Backend::Cpu, ..Default::default() }
}

/// The toy with another value of one field.
fn with(key: &str, change: impl FnOnce(GgufWriter) -> GgufWriter) -> GgufWriter {
    let mut file = toy(None);
    file.fields.retain(|field| field.key != key.as_bytes());
    change(file)
}

fn says(found: &str, expected: &[&str]) {
    for part in expected.iter().chain(&["toy.gguf"]) {
        assert!(found.contains(part), "{found:?} lacks {part:?}");
    }
}

#[test]
fn sizes_that_no_model_has_are_refused() {
    for (name, value, expected) in [
        ("attention.head_count", 0, "expected 1 to 16777216, found 0"),
        ("attention.head_count", u32::MAX, "expected 1 to"),
        ("attention.head_count_kv", 3, "a divisor of 4 heads, found 3"),
        ("attention.key_length", 12, "a multiple of 8, found 12"),
        ("attention.value_length", 8, "the key length 16, found 8"),
        ("rope.dimension_count", 8, "the key length 16, found 8"),
        ("attention.sliding_window", 5, "expected none, found 5"),
        ("block_count", 3, "no such tensor"),
        ("embedding_length", 65, "token_embd.weight"),
        ("feed_forward_length", 95, "ffn_gate.weight"),
        ("context_length", 1 << 25, "context_length"),
    ] {
        let key = format!("llama.{name}");
        says(&error(&with(&key, |file| file.u32(&key, value)), on_cpu()), &[expected]);
    }
    // More heads than elements would leave heads of none.
    says(
        &error(&with("llama.attention.head_count", |f| f.u32("llama.attention.head_count", 128)), on_cpu()),
        &["found 0"],
    );
}

#[test]
fn numbers_that_would_compute_nan_are_refused() {
    for (name, value) in [
        ("rope.freq_base", 0.0),
        ("rope.freq_base", f32::NAN),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("attention.layer_norm_rms_epsilon", f32::INFINITY),
    ] {
        let key = format!("llama.{name}");
        says(&error(&with(&key, |file| file.f32(&key, value)), on_cpu()), &[&key, "a finite number above 0"]);
    }
}

#[test]
fn unknown_architectures_and_scalings_are_refused() {
    let key = "general.architecture";
    says(&error(&with(key, |f| f.string(key, "mamba")), on_cpu()), &[key, "llama, qwen2", "found mamba"]);
    let key = "llama.rope.scaling.type";
    says(&error(&with(key, |f| f.string(key, "yarn")), on_cpu()), &[key, "none or linear", "found yarn"]);
}

#[test]
fn tensors_missing_or_unknown_are_named() {
    let mut file = toy(None);
    file.tensors.retain(|t| t.name != b"blk.1.ffn_up.weight");
    says(&error(&file, on_cpu()), &["blk.1.ffn_up.weight", "no such tensor"]);
    let file = toy(None).vector("blk.0.attn_output.bias", &[0.0; 64]);
    says(&error(&file, on_cpu()), &["blk.0.attn_output.bias", "does not use"]);
}

#[test]
fn sizes_that_no_step_could_use_are_refused() {
    let file = toy(None);
    for (options, expected) in [
        (EngineOptions { sequences: 0, ..on_cpu() }, "sequences: expected at least 1, found 0"),
        (EngineOptions { batch: 1, sequences: 2, ..on_cpu() }, "batch: expected at least 2, found 1"),
        (EngineOptions { pages: 1, ..on_cpu() }, "pages: expected at least 16, found 1"),
        (EngineOptions { context: 1 << 25, ..on_cpu() }, "context: expected at most"),
    ] {
        let found = error(&file, options);
        assert!(found.contains(expected), "{found}");
    }
}
