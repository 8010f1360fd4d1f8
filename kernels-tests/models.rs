//! Checkpoints that contradict themselves or hold what no model here has: one error names the field or tensor.

use farpast::engine::{Backend, Engine, EngineOptions, Recorded};
use farpast::gpu::Caps;
use farpast::kernel::Step;
use farpast::memory::{Bytes, Element, Maths, Matrices, MatrixShape};
use farpast::models::Config;
use farpast::program::{Dispatch, Mode, Program};
use farpast::weights::Weights;

use crate::gguf_writer::GgufWriter;
use crate::harness::plain_caps;
use crate::toy::{self, Toy, model_programs};
use crate::toy_chat::toy;

/// What loading the file says.
fn error(file: &GgufWriter, options: EngineOptions) -> String {
    let weights = Weights::from_bytes("toy.gguf", Bytes::new(file.write())).unwrap();
    let loaded = Engine::load(&weights, &options, |_| ());
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
        ("rope.dimension_count", 12, "a multiple of 8, at most the key length 16, found 12"),
        ("rope.dimension_count", 24, "at most the key length 16, found 24"),
        ("rope.dimension_count", 0, "expected 1 to"),
        ("rope.scaling.original_context_length", 0, "expected 1 to"),
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
        ("rope.freq_base_swa", -5.0),
        ("rope.scaling.factor", 0.0),
        ("rope.scaling.factor", f32::INFINITY),
        ("rope.scaling.yarn_beta_fast", f32::NAN),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("attention.layer_norm_rms_epsilon", f32::INFINITY),
    ] {
        let key = format!("llama.{name}");
        says(&error(&with(&key, |file| file.f32(&key, value)), on_cpu()), &[&key, "a finite number above 0"]);
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (name, value, expected) in [
        ("rope.scaling.yarn_ext_factor", 1.5, "from 0 to 1, found 1.5"),
        ("rope.scaling.yarn_ext_factor", f32::NAN, "from 0 to 1, found NaN"),
        (
            "rope.scaling.yarn_beta_fast",
            0.5,
            "rope.scaling.yarn_beta_slow: expected a number from 0.001 to 0.5, found 1",
        ),
        ("rope.scaling.yarn_beta_slow", 33.0, "from 0.001 to 32, found 33"),
        ("rope.scaling.attn_factor", 0.0, "from 0.001 to 1000, found 0"),
        ("attn_logit_softcapping", -50.0, "0 or a number from 0.001 to 1000000, found -50"),
        ("attn_logit_softcapping", 1e-40, "0 or a number"),
        ("final_logit_softcapping", f32::INFINITY, "0 or a number from 0.001 to 1000000, found inf"),
    ] {
        let key = format!("llama.{name}");
        says(&error(&with(&key, |file| file.f32(&key, value)), on_cpu()), &["llama.", expected]);
    }
}

#[test]
fn unknown_architectures_and_scalings_are_refused() {
    let key = "general.architecture";
    says(&error(&with(key, |f| f.string(key, "mamba")), on_cpu()), &[key, "llama, phi3, qwen2", "found mamba"]);
    let key = "llama.rope.scaling.type";
    let expected = [key, "none, linear, yarn or longrope", "found dynamic"];
    says(&error(&with(key, |f| f.string(key, "dynamic")), on_cpu()), &expected);
    // Without what it is scaled by.
    says(&error(&with(key, |f| f.string(key, "yarn")), on_cpu()), &["llama.rope.scaling.factor", "no such key"]);
}

#[test]
fn a_window_in_nobody_knows_which_layers_is_refused() {
    let mut file = named("qwen2").file();
    let key = "qwen2.attention.sliding_window";
    says(&error(&file.clone().u32(key, 5), on_cpu()), &[key, "none in this architecture, found 5"]);
    file = file.u32(key, 0);
    assert!(Weights::from_bytes("qwen2.gguf", Bytes::new(file.write())).and_then(|w| Config::read(&w)).is_ok());
}

#[test]
fn factors_of_rotary_frequencies_are_checked() {
    let freqs = |values: &[f32]| error(&toy(None).vector("rope_freqs.weight", values), on_cpu());
    says(&freqs(&[1.0; 7]), &["rope_freqs.weight", "1 × 8", "found 7"]);
    for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        says(&freqs(&[1.0, 1.0, wrong, 1.0, 1.0, 1.0, 1.0, 1.0]), &["rope_freqs.weight", "finite numbers above 0"]);
    }
    let mut file = named("phi3_long").file();
    file.tensors.retain(|t| t.name != b"rope_factors_short.weight");
    says(&error(&file, on_cpu()), &["rope_factors_short.weight", "no such tensor"]);
}

#[test]
fn stacked_matrices_have_the_rows_of_all_their_parts() {
    for (key, tensor, expected) in [
        ("phi3.attention.head_count_kv", "blk.0.attn_qkv.weight", "256 × 96, found 320 × 96"),
        ("phi3.feed_forward_length", "blk.0.ffn_up.weight", "2 × 96, found 256 × 96"),
    ] {
        let mut file = named("phi3_long").file();
        file.fields.retain(|field| field.key != key.as_bytes());
        says(&error(&file.u32(key, 1), on_cpu()), &[tensor, expected]);
    }
}

#[test]
fn the_27b_gemmas_scale_queries_by_hidden_over_heads() {
    for (name, layers) in [("gemma2", 46), ("gemma3", 62)] {
        let toy = *named(name);
        let of_hidden = toy.hidden as f32 / toy.heads as f32;
        for (layers, dims) in [(toy.layers, toy.head_dim as f32), (layers, of_hidden)] {
            let programs = model_programs(&Toy { layers, ..toy }.weights(), Element::F32, 32);
            let attention =
                |d: &&Dispatch| d.kernel.name.starts_with("attention_") && d.kernel.name != "attention_merge";
            for dispatch in programs.iter().flat_map(|p| &p.dispatches).filter(attention) {
                assert_eq!(dispatch.spec.get_f32("SCALE"), f64::from(1.0 / dims.sqrt()), "{name}");
            }
        }
    }
}

/// Where all weights of a kind have one format; beside the layers there are embed, output_norm, the head and sample.
#[test]
fn layers_take_few_dispatches_in_decode() {
    for (name, each) in [("llama", 6), ("qwen2", 6), ("qwen3", 7), ("gemma3", 9)] {
        let toy = named(name);
        let programs = model_programs(&toy.weights(), Element::F16, 32);
        // With norms apart, with subgroups, on GPUs: prefill, batch and decode of each.
        let plain = Step { n_tokens: 1, n_outputs: 1, n_sequences: 1, n_tiles: 1, max_pages: 1, ..Step::default() };
        let count = |p: &Program| p.dispatches.iter().filter(|d| d.runs(&plain)).count();
        let found: Vec<_> = programs.iter().skip(2).step_by(3).map(count).collect();
        let folded = toy.layers * each + 4;
        assert_eq!(found, [folded + 2 * toy.layers, folded, folded], "{name}");
    }
}

#[test]
fn maths_that_a_device_has_not_are_refused() {
    let weights = named("llama").weights();
    for (maths, name) in [(Maths::F16, "f16"), (Maths::Dot8, "dot8"), (Maths::Coopmat, "coopmat")] {
        let options = EngineOptions { maths, ..Default::default() };
        let error = Recorded::new(&weights, &options, Some(&plain_caps())).err().expect("an error").to_string();
        assert!(error.starts_with("maths: expected f32") && error.ends_with(&format!("found {name}")), "{error}");
    }
}

#[test]
fn cooperative_matrices_are_of_the_linears_of_prefill_alone() {
    let caps = Caps { matrices: Some(Matrices { shape: MatrixShape::F16x8, subgroup: 8 }), ..plain_caps() };
    let recorded = |maths| {
        let options = EngineOptions { maths, ..Default::default() };
        Recorded::new(&named("llama").weights(), &options, Some(&caps)).unwrap().programs
    };
    let [plain, by_matrices] = [Maths::F32, Maths::Coopmat].map(recorded);
    let shaders = |p: &Program| p.dispatches.iter().map(|d| d.kernel.wgsl(&d.spec)).collect::<Vec<_>>();
    for mode in [Mode::Decode, Mode::Batch] {
        assert_eq!(shaders(&plain[mode]), shaders(&by_matrices[mode]));
    }
    let [plain, by_matrices] = [plain, by_matrices].map(|programs| shaders(&programs[Mode::Prefill]));
    let others = plain.iter().zip(&by_matrices).filter(|(a, b)| a != b);
    assert!(others.clone().all(|(_, b)| b.starts_with("// linear") && b.contains("enable wgpu_cooperative_matrix;")));
    // q, k and v, output, gate and up, down.
    assert_eq!(others.count(), 4 * named("llama").layers);
}

fn named(name: &str) -> &'static Toy {
    toy::ALL.iter().find(|toy| toy.name == name).unwrap()
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
