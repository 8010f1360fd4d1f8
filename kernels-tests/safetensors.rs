//! Checkpoints of safetensors: the same models as from GGUF files, what is refused and with which words, and that no file
//! makes the reader panic or allocate more than its length.

use std::collections::BTreeMap;

use farpast::Result;
use farpast::engine::{Backend, Engine, EngineOptions, Loading};
use farpast::format::{self, BF16, F16, F32, Format, Q4_0, Q4_K, Q8_0};
use farpast::kernels::Pairs;
use farpast::memory::{Bytes, Element};
use farpast::models::Config;
use farpast::weights::{Metadata, Value as Field, Weights};
use serde_json::{Value, json};

use crate::allocation::peak;
use crate::cases::Random;
use crate::gguf_writer::GgufWriter;
use crate::safetensors_writer::{Folder, Raw, file, read, with_header};
use crate::toy::{self, CONTEXT, Toy};
use crate::toy_chat::temporary;

#[test]
fn a_model_of_either_kind_of_file_has_the_same_logits() {
    const OTHERS: [&str; 5] = ["llama_window", "smollm3", "gemma2", "phi3_long", "phi3_short"];
    for of in toy::ALL[..4].iter().chain(toy::ALL.iter().filter(|toy| OTHERS.contains(&toy.name))) {
        let formats: &[&Format] = if of.architecture == "qwen2" { &[&F32, &F16, &BF16] } else { &[&F32] };
        for format in formats {
            let toy = Toy { format, ..*of };
            let (config, tensors) = hugging_face(&toy);
            let (gguf, folder) = (toy.weights(), Folder::sharded(&config, &tensors, 3).open().unwrap());
            let what = format!("{} {}", toy.name, format.name);
            let (expected, found) = (logits(&gguf, &toy, cpu()), logits(&folder, &toy, cpu()));
            // Llama's heads are rotated in another order, and their products added so; factors are rounded twice.
            let bound = if ["llama", "smollm3", "phi3"].contains(&toy.architecture) { 1e-5 } else { 0.0 };
            close(&found, &expected, bound, &what);
            if format.name == "F32" {
                close(&logits(&folder, &toy, gpu()), &expected, 1e-4, &what);
            }
        }
    }
}

#[test]
fn one_file_and_shards_in_memory_and_on_disk_are_the_same_checkpoint() {
    let toy = Toy { format: &F16, ..toy::ALL[1] };
    let (config, tensors) = hugging_face(&toy);
    let (single, sharded) = (Folder::new(&config, &tensors), Folder::sharded(&config, &tensors, 4));
    let expected = contents(&single.open().unwrap());
    assert_eq!(contents(&sharded.open().unwrap()), expected);
    assert_eq!(contents(&single.open_at("toy/model.safetensors").unwrap()), expected);
    for folder in [&single, &sharded] {
        let path = temporary("safetensors");
        std::fs::create_dir_all(&path).unwrap();
        folder.0.iter().for_each(|(name, bytes)| std::fs::write(path.join(name), bytes).unwrap());
        assert_eq!(contents(&Weights::open(&path).unwrap()), expected);
        if folder.0.contains_key("model.safetensors") {
            assert_eq!(contents(&Weights::open(path.join("model.safetensors")).unwrap()), expected);
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn weights_are_slices_of_the_file() {
    let toy = Toy { format: &F16, ..toy::ALL[1] };
    let (config, tensors) = hugging_face(&toy);
    let files = Folder::new(&config, &tensors).bytes();
    let weights = Weights::from_files("toy", |path| read(&files, path)).unwrap();
    let whole = files[&std::path::PathBuf::from("toy/model.safetensors")].as_ptr_range();
    let tensor = weights.tensor("blk.1.ffn_up.weight", toy.ffn, toy.hidden).unwrap();
    assert!(whole.contains(&tensor.bytes.as_ptr()));
}

#[test]
fn llama3_scaling_is_the_table_of_gguf_files() {
    let toy = Toy { head_dim: 16, ..toy::ALL[0] };
    let (mut config, tensors) = hugging_face(&toy);
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let folder = Folder::new(&config, &tensors).open().unwrap();
    // The definition by wavelengths.
    let factors: Vec<f32> = (0..8)
        .map(|pair| {
            let wavelength = 2.0 * std::f64::consts::PI * 5000f64.powf(pair as f64 / 8.0);
            let mixed = (64.0 / wavelength - 1.0) / (4.0 - 1.0);
            let scale = match wavelength {
                short if short < 64.0 / 4.0 => 1.0,
                long if long > 64.0 / 1.0 => 1.0 / 8.0,
                _ => (1.0 - mixed) / 8.0 + mixed,
            };
            (1.0 / scale) as f32
        })
        .collect();
    assert!(factors[0] == 1.0 && factors[7] == 8.0 && factors.iter().any(|f| *f > 1.0 && *f < 8.0), "{factors:?}");
    let mut found = [0.0; 8];
    folder.tensor("rope_freqs.weight", 1, 8).unwrap().decode_row(0, &mut found);
    found.iter().zip(&factors).for_each(|(f, e)| assert!((f - e).abs() < 1e-6 * e, "{found:?}, not {factors:?}"));

    let plain = toy.weights();
    let gguf = as_gguf(&plain).vector("rope_freqs.weight", &found).write();
    let gguf = Weights::from_bytes("toy.gguf", Bytes::new(gguf)).unwrap();
    let expected = logits(&gguf, &toy, cpu());
    close(&logits(&folder, &toy, cpu()), &expected, 1e-5, "llama3");
    let unscaled = logits(&plain, &toy, cpu());
    assert!(expected.iter().flatten().zip(unscaled.iter().flatten()).any(|(a, b)| (a - b).abs() > 1e-2), "it matters");
}

#[test]
fn the_output_is_the_embedding_where_the_configuration_says_so() {
    let toy = &toy::ALL[0];
    let (mut config, mut tensors) = hugging_face(toy);
    config["tie_word_embeddings"] = json!(true);
    assert!(!Folder::new(&config, &tensors).open().unwrap().contains("output.weight"));
    config["tie_word_embeddings"] = json!(false);
    assert!(Folder::new(&config, &tensors).open().unwrap().contains("output.weight"));
    tensors.retain(|t| t.name != "lm_head.weight");
    says(
        Folder::new(&config, &tensors).open(),
        &["toy/model.safetensors: tensor lm_head.weight: expected one, as tie_word_embeddings of config.json is false"],
    );
    config.as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(Folder::new(&config, &tensors).open().is_ok());
}

#[test]
fn what_is_no_weight_is_left_out() {
    let (config, mut tensors) = hugging_face(&toy::ALL[0]);
    let before = Folder::new(&config, &tensors).open().unwrap().tensors().len();
    tensors.push(Raw::new("model.layers.0.self_attn.rotary_emb.inv_freq", &F32, &[8], &[1.0; 8]));
    let weights = Folder::new(&config, &tensors).open().unwrap();
    assert_eq!(weights.tensors().len(), before);
    assert!(Engine::load(&weights, &cpu(), |_| ()).is_ok());
    // Of anything else a model would be wrong without.
    tensors.push(Raw::new("model.layers.0.mlp.gate_proj.weight_scale", &F32, &[1], &[1.0]));
    let weights = Folder::new(&config, &tensors).open().unwrap();
    says(Engine::load(&weights, &cpu(), |_| ()), &["mlp.gate_proj.weight_scale", "does not use"]);
}

#[test]
fn metadata_are_those_of_gguf_files() {
    let base = json!({
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 8, "num_attention_heads": 6,
        "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 5000,
    });
    let gelu = json!({ "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 21 });
    let long: Vec<_> = (0..8).map(|i| 1.0 + f64::from(i)).collect();
    for (model, changes, architecture, expected) in [
        (
            "llama",
            json!({}),
            "llama",
            &[
                ("rope.freq_base", "float 5000.0"),
                ("attention.head_count_kv", "integer 2"),
                ("attention.key_length", "integer 16"),
            ][..],
        ),
        (
            "llama",
            json!({ "head_dim": 24, "sliding_window": 7 }),
            "llama",
            &[("attention.key_length", "integer 24"), ("attention.sliding_window", "absent")][..],
        ),
        (
            "llama",
            json!({ "num_key_value_heads": null, "rope_theta": null }),
            "llama",
            &[("attention.head_count_kv", "integer 6"), ("rope.freq_base", "float 10000.0")][..],
        ),
        (
            "mistral",
            json!({ "sliding_window": 7 }),
            "llama",
            &[("attention.sliding_window", "integer 7"), ("attention.sliding_window_pattern", "absent")][..],
        ),
        ("mistral", json!({ "sliding_window": null }), "llama", &[("attention.sliding_window", "absent")][..]),
        (
            "qwen2",
            json!({ "sliding_window": 7, "use_sliding_window": false }),
            "qwen2",
            &[("attention.sliding_window", "absent")][..],
        ),
        (
            "qwen2",
            json!({ "sliding_window": 7, "use_sliding_window": true, "max_window_layers": 8 }),
            "qwen2",
            &[("attention.sliding_window", "absent")][..],
        ),
        (
            "qwen3",
            json!({ "sliding_window": 7, "use_sliding_window": true, "max_window_layers": 0 }),
            "qwen3",
            &[("attention.sliding_window", "integer 7")][..],
        ),
        (
            "smollm3",
            json!({ "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0] }),
            "smollm3",
            &[("block_count", "integer 8")][..],
        ),
        (
            "gemma2",
            json!({ "attn_logit_softcapping": 50, "final_logit_softcapping": 30.5 }),
            "gemma2",
            &[
                ("attn_logit_softcapping", "float 50.0"),
                ("final_logit_softcapping", "float 30.5"),
                ("attention.sliding_window", "integer 21"),
                ("attention.sliding_window_pattern", "integer 2"),
            ][..],
        ),
        (
            "gemma3_text",
            json!({ "rope_local_base_freq": 9000, "rope_scaling": { "rope_type": "linear", "factor": 8 } }),
            "gemma3",
            &[
                ("rope.freq_base_swa", "float 9000.0"),
                ("rope.scaling.type", "string \"linear\""),
                ("rope.scaling.factor", "float 8.0"),
                ("attention.sliding_window_pattern", "integer 6"),
            ][..],
        ),
        (
            "gemma3_text",
            json!({ "rope_parameters": { "full_attention": { "rope_type": "default", "rope_theta": 7e5 }, "sliding_attention": { "rope_theta": 800 } },
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"] }),
            "gemma3",
            &[
                ("rope.freq_base", "float 700000.0"),
                ("rope.freq_base_swa", "float 800.0"),
                ("attention.sliding_window_pattern", "integer 3"),
                ("attention.sliding_window", "integer 21"),
            ][..],
        ),
        (
            "phi3",
            json!({ "sliding_window": 2047, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 1024,
            "rope_scaling": { "type": "longrope", "short_factor": long, "long_factor": long } }),
            "phi3",
            &[
                ("attention.sliding_window", "integer 2047"),
                ("rope.dimension_count", "integer 8"),
                ("rope.scaling.type", "string \"longrope\""),
                ("rope.scaling.original_context_length", "integer 1024"),
                ("rope.scaling.attn_factor", "float 1.0954452"),
            ][..],
        ),
        (
            "qwen2",
            json!({ "rope_scaling": { "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024 } }),
            "qwen2",
            &[
                ("rope.scaling.type", "string \"yarn\""),
                ("rope.scaling.factor", "float 4.0"),
                ("rope.scaling.original_context_length", "integer 1024"),
                ("rope.scaling.attn_factor", "absent"),
                ("rope.scaling.yarn_beta_fast", "absent"),
            ][..],
        ),
        (
            "qwen3",
            json!({ "rope_parameters": { "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.138629436112, "beta_fast": 30, "beta_slow": 2, "rope_theta": 6e4 } }),
            "qwen3",
            &[
                ("rope.scaling.attn_factor", "float 1.0"),
                ("rope.scaling.yarn_beta_fast", "float 30.0"),
                ("rope.scaling.yarn_beta_slow", "float 2.0"),
                ("rope.scaling.original_context_length", "integer 4096"),
                ("rope.freq_base", "float 60000.0"),
            ][..],
        ),
    ] {
        let mut config = with(&base, &json!({ "model_type": model }));
        if model.starts_with("gemma") {
            config = with(&config, &gelu);
        }
        let weights =
            Folder::new(&with(&config, &changes), &[]).open().unwrap_or_else(|e| panic!("{model} {changes}: {e}"));
        let m = weights.metadata();
        assert_eq!(m.string("general.architecture").unwrap(), architecture);
        for (key, expected) in expected.iter().chain(&[("rope.pairs", "string \"halves\"")]) {
            let key = format!("{architecture}.{key}");
            // Numbers of JSON have 64 bits, those of GGUF files 32.
            let found = match m.value(&key) {
                Some(Field::Float(value)) => format!("float {:?}", value as f32),
                found => found.map_or("absent".into(), |value| value.to_string()),
            };
            assert_eq!(found, *expected, "{model} {changes}: {key}");
        }
    }
}

#[test]
fn a_model_that_sees_is_its_text_model() {
    let toy = &toy::ALL[3];
    let (config, tensors) = hugging_face(&Toy { format: &F32, ..*toy });
    let expected = contents(&Folder::new(&config, &tensors).open().unwrap());
    for (inner, outer) in [("language_model.model.", "vision_tower."), ("model.language_model.", "model.vision_tower.")]
    {
        let mut tensors = tensors.clone();
        tensors.iter_mut().for_each(|t| t.name = t.name.replacen("model.", inner, 1));
        tensors.push(Raw::new(&format!("{outer}vision_model.post_layernorm.weight"), &F32, &[3], &[1.0; 3]));
        let config = json!({ "model_type": "gemma3", "text_config": config, "vision_config": { "hidden_size": 3 } });
        assert_eq!(contents(&Folder::new(&config, &tensors).open().unwrap()), expected);
    }
    // What is left out has the values of the class.
    let text =
        json!({ "num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240, "sliding_window": 1024 });
    let weights = Folder::new(&json!({ "model_type": "gemma3", "text_config": text }), &[]).open().unwrap();
    let m = weights.metadata();
    for (key, expected) in [("attention.head_count", 8), ("attention.key_length", 256), ("context_length", 131_072)] {
        assert_eq!(m.u32(&format!("gemma3.{key}")).unwrap(), expected, "{key}");
    }
    assert_eq!(m.f32("gemma3.rope.freq_base").unwrap(), 1e6);
}

#[test]
fn tensors_have_the_names_of_gguf_files() {
    for (model, names) in [
        (
            "phi3",
            "self_attn.qkv_proj.weight=attn_qkv mlp.gate_up_proj.weight=ffn_up post_attention_layernorm.weight=ffn_norm",
        ),
        (
            "gemma2",
            "post_attention_layernorm.weight=post_attention_norm pre_feedforward_layernorm.weight=ffn_norm post_feedforward_layernorm.weight=post_ffw_norm",
        ),
        ("qwen2", "self_attn.q_proj.bias=attn_q self_attn.o_proj.weight=attn_output mlp.gate_proj.weight=ffn_gate"),
    ] {
        let config = with(&minimal(model), &json!({ "num_hidden_layers": 12 }));
        for pair in names.split(' ') {
            let (name, expected) = pair.split_once('=').unwrap();
            let (_, kind) = name.rsplit_once('.').unwrap();
            let tensor = Raw::new(&format!("model.layers.11.{name}"), &F32, &[2], &[1.0; 2]);
            let weights = Folder::new(&config, &[tensor]).open().unwrap();
            assert!(
                weights.contains(&format!("blk.11.{expected}.{kind}")),
                "{model} {name}: {:?}",
                weights.tensors().next()
            );
        }
    }
}

#[test]
fn configurations_that_no_model_here_has_are_refused() {
    let llama = minimal("llama");
    for (config, words) in [
        (
            json!({ "model_type": "mamba" }),
            "model_type: expected one of gemma2, gemma3, gemma3_text, llama, mistral, phi3, qwen2, qwen3, smollm3, found \"mamba\"",
        ),
        (json!({}), "model_type: expected a string, found no such field"),
        (json!({ "model_type": "gemma3" }), "text_config: expected an object"),
        (with(&llama, &json!({ "hidden_size": null })), "hidden_size: expected an integer, found no such field"),
        (with(&llama, &json!({ "hidden_size": -5 })), "invalid value: integer `-5`"),
        (with(&llama, &json!({ "hidden_size": "many" })), "invalid type: string \"many\""),
        (with(&llama, &json!({ "num_hidden_layers": u64::MAX })), "num_hidden_layers: expected at most"),
        (
            with(&llama, &json!({ "num_attention_heads": 0 })),
            "num_attention_heads: expected 1 to hidden_size 8, found 0",
        ),
        (with(&llama, &json!({ "head_dim": u64::MAX })), "dims of a head"),
        (with(&llama, &json!({ "hidden_act": "relu" })), "hidden_act: expected silu, found \"relu\""),
        (
            with(&llama, &json!({ "quantization_config": { "quant_method": "gptq" } })),
            "quantization_config: expected none",
        ),
        (with(&llama, &json!({ "partial_rotary_factor": 1.5 })), "partial_rotary_factor"),
        (
            with(&llama, &json!({ "rope_scaling": { "type": "dynamic" } })),
            "rope_type: expected one of default, linear, yarn, llama3, longrope, found \"dynamic\"",
        ),
        (with(&llama, &json!({ "rope_scaling": { "type": "linear" } })), "rope_scaling: factor: expected a number"),
        (
            with(
                &llama,
                &json!({ "rope_scaling": { "type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4, "original_max_position_embeddings": 1 } }),
            ),
            "low below high",
        ),
        (
            with(&llama, &json!({ "rope_scaling": { "type": "longrope", "original_max_position_embeddings": 1 } })),
            "long_factor: expected a list",
        ),
        (
            with(&llama, &json!({ "rope_scaling": { "type": "longrope", "long_factor": vec![1; 10_000] } })),
            "a list of at most 8192",
        ),
        (
            with(&llama, &json!({ "rope_scaling": { "type": "yarn", "factor": 2, "truncate": false } })),
            "truncate: expected true",
        ),
        (
            with(&llama, &json!({ "layer_types": ["full_attention"] })),
            "layer_types: expected 2 by num_hidden_layers, found 1",
        ),
        (
            with(&llama, &json!({ "layer_types": ["full_attention", "sliding_attention"] })),
            "layer_types: expected windows in all layers, none, or all but each n-th",
        ),
        (
            with(&llama, &json!({ "layer_types": ["full_attention", "linear_attention"] })),
            "unknown variant `linear_attention`",
        ),
        (
            with(&minimal("smollm3"), &json!({ "no_rope_layers": [1, 0] })),
            "no_rope_layers: expected every fourth layer",
        ),
        (with(&minimal("gemma2"), &json!({ "query_pre_attn_scalar": 144 })), "query_pre_attn_scalar: expected 4"),
        (
            with(&minimal("gemma2"), &json!({ "attn_logit_softcapping": null })),
            "attn_logit_softcapping: expected a number",
        ),
    ] {
        says(Folder::new(&config, &[]).open(), &["toy/config.json: ", words]);
    }
    let text = |text: &str| Folder::new(&json!({}), &[]).with("config.json", text).open();
    says(text("{"), &["JSON", "line 1, column 1"]);
    says(
        text(&format!("{{\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))),
        &["model_type: expected a string"],
    );
    says(text(&"{\"text_config\":".repeat(10_000)), &["recursion limit"]);
    says(text(&" ".repeat(2 << 20)), &["length: expected at most 1048576 bytes, found 2097152"]);
    says(text(&format!("{{\"model_type\":\"{}\"}}", "x".repeat(70_000))), &["strings of at most 65536 bytes"]);
    says(Folder::default().open_at("toy/model.safetensors"), &["toy/model.safetensors: "]);
    says(Folder::default().open(), &["toy: config.json: expected one beside the weights, found none"]);
    let empty = Folder::new(&llama, &[]).without("model.safetensors");
    says(empty.open(), &["toy: weights: expected model.safetensors or model.safetensors.index.json, found neither"]);
}

#[test]
fn a_configuration_that_contradicts_tensors_names_both() {
    let (config, tensors) = hugging_face(&Toy { format: &F16, ..toy::ALL[1] });
    let load = |changes: Value| {
        let weights = Folder::new(&with(&config, &changes), &tensors).open()?;
        Engine::load(&weights, &cpu(), |_| ()).map(drop)
    };
    assert!(load(json!({})).is_ok());
    says(
        load(json!({ "intermediate_size": 60 })),
        &[
            "model.layers.0.mlp.gate_proj.weight (blk.0.ffn_gate.weight): expected 60 × 47 by config.json, found 61 × 47 F16",
        ],
    );
    says(load(json!({ "num_hidden_layers": 3 })), &["blk.2.attn_norm.weight", "no such tensor"]);
    says(
        load(json!({ "num_hidden_layers": 1 })),
        &["tensor model.layers.1.", "expected layers below 1 by num_hidden_layers of config.json, found layer 1"],
    );
    says(
        load(json!({ "vocab_size": 304 })),
        &["model.embed_tokens.weight", "expected 304 rows by vocab_size of config.json, found 305 rows"],
    );
}

#[test]
fn an_unsupported_dtype_matters_only_when_asked_for() {
    let (config, mut tensors) = hugging_face(&Toy { format: &F16, ..toy::ALL[1] });
    let i = tensors.iter().position(|t| t.name.ends_with("0.mlp.up_proj.weight")).unwrap();
    tensors[i].bytes.truncate(61 * 47);
    for dtype in ["F8_E4M3", "I8"] {
        tensors[i].dtype = dtype.into();
        let weights = Folder::new(&config, &tensors).open().unwrap();
        says(
            weights.tensor("blk.0.ffn_up.weight", 61, 47),
            &["mlp.up_proj.weight", "expected a format of F32, F16, BF16, found ", dtype],
        );
    }
    tensors[i].dtype = "NEW".into();
    assert_eq!(&*entry(&Folder::new(&config, &tensors).open().unwrap(), "blk.0.ffn_up.weight"), "NEW");
    tensors[i].dtype = "F64".into();
    says(
        Folder::new(&config, &tensors).open(),
        &["mlp.up_proj.weight: data_offsets: expected 22936 bytes, of [61, 47] F64, found 2867 bytes"],
    );
}

#[test]
fn a_header_that_lies_is_refused() {
    let refuses = |file: Vec<u8>, words: &str| {
        says(
            Folder::new(&minimal("llama"), &[]).with("model.safetensors", file).open(),
            &["toy/model.safetensors: ", words],
        );
    };
    let (a, b) = (Raw::new("a", &F32, &[2, 3], &[1.0; 6]), Raw::new("b", &F32, &[2], &[2.0; 2]));
    let with = |change: fn(&mut Raw)| {
        let mut b = b.clone();
        change(&mut b);
        file(&[a.clone(), b])
    };
    assert!(Folder::new(&minimal("llama"), &[a.clone(), b.clone()]).open().is_ok());
    refuses(vec![1; 7], "length: expected at least 8 bytes, found 7");
    refuses(vec![], "length: expected at least 8 bytes, found 0");
    refuses(
        b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
        "length of the header: expected at most 35, with 43 bytes in the file, found 2336927755350992246; the file looks \
         like a Git LFS pointer",
    );
    for len in [61, 1 << 40, u64::MAX] {
        let header = [&u64::to_le_bytes(len)[..], &[b' '; 60]].concat();
        refuses(header, &format!("length of the header: expected at most 60, with 68 bytes in the file, found {len}"));
    }
    refuses([&100u64.to_le_bytes()[..], &[0xff; 100]].concat(), "JSON: expected UTF-8");
    refuses(with_header("[]", &[]), "invalid type: sequence");
    refuses(with_header("{} {}", &[]), "trailing characters");
    refuses(with_header("{\"a\":", &[]), "EOF while parsing");
    refuses(with_header(&format!("{{\"a\":{}", "[".repeat(1 << 20)), &[]), "JSON at line 1");
    refuses(
        with_header("{\"a\\u0062\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", &[]),
        "expected a borrowed string",
    );
    refuses(
        with_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", &[0; 4]),
        "unknown field `x`",
    );
    refuses(with_header("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", &[]), "duplicate field `dtype`");
    refuses(
        with_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", &[0; 4]),
        "at most 8 dims",
    );
    refuses(with_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", &[0; 4]), "integer `-1`");
    refuses(file(&[a.clone(), a.clone()]), "tensor a: expected the name once, found it twice");
    refuses(with(|b| b.dims = vec![3]), "tensor b: data_offsets: expected 12 bytes, of [3] F32, found 8 bytes");
    refuses(with(|b| b.dims = vec![1 << 32, 1 << 32]), "tensor b: shape: expected a size below 2^64 bits");
    refuses(
        with(|b| b.offsets = Some([24, 36])),
        "tensor b: data_offsets: expected a start before an end of at most 32, found 24, 36",
    );
    refuses(with(|b| b.offsets = Some([32, 24])), "found 32, 24");
    refuses(with(|b| b.offsets = Some([u64::MAX, 7])), "tensor b: data_offsets");
    refuses(with(|b| b.offsets = Some([16, 24])), "tensor b: bytes: expected a start at");
    refuses(with(|b| (b.offsets, b.dims) = (Some([28, 32]), vec![1])), "where those before it end");
    let longer = [file(std::slice::from_ref(&a)), vec![0; 3]].concat();
    refuses(longer, "end of the file: expected the end of the last tensor, found 3 bytes that are no tensor's");
    let whole = file(&[a, b]);
    (0..whole.len()).for_each(|len| refuses(whole[..len].to_vec(), "expected "));
}

#[test]
fn an_index_that_lies_is_refused() {
    let (config, tensors) = hugging_face(&Toy { format: &F16, ..toy::ALL[1] });
    let good = Folder::sharded(&config, &tensors, 2);
    const INDEX: &str = "model.safetensors.index.json";
    let index: Value = serde_json::from_slice(&good.0[INDEX]).unwrap();
    let map = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut index = index.clone();
        change(index["weight_map"].as_object_mut().unwrap());
        good.clone().with(INDEX, index.to_string()).open()
    };
    assert!(map(&|_| ()).is_ok());
    let name = "model.norm.weight";
    for path in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "C:x", "./x"] {
        let words = [INDEX, "weight_map of model.norm.weight: expected a file of this folder, found \""];
        says(map(&|map| drop(map.insert(name.into(), json!(path)))), &words);
    }
    says(
        map(&|map| drop(map.insert(name.into(), json!("a\\b")))),
        &[INDEX, "JSON at line 1", "expected a borrowed string"],
    );
    says(map(&|map| drop(map.insert(name.into(), json!("absent.safetensors")))), &["toy/absent.safetensors: "]);
    says(
        map(&|map| drop(map.insert("more".into(), map[name].clone()))),
        &["weight_map of more: expected a tensor of model-0000"],
    );
    says(
        map(&|map| drop(map.remove(name))),
        &["weight_map: expected the 26 tensors of its files once each, found 25 entries"],
    );
    let other = index["weight_map"]["model.embed_tokens.weight"].clone();
    if other != index["weight_map"][name] {
        says(
            map(&|map| drop(map.insert(name.into(), other.clone()))),
            &["weight_map of model.norm.weight: expected a tensor of"],
        );
    }
    for (text, words) in [
        ("{}", "weight_map: expected an object, found no such key"),
        ("[", "JSON"),
        ("{\"weight_map\":3}", "invalid type: integer"),
    ] {
        says(good.clone().with(INDEX, text).open(), &[INDEX, words]);
    }
    // A name of transformers' and of GGUF's for the same tensor.
    let twin = Raw::new("output_norm.weight", &F32, &[47], &[1.0; 47]);
    let both = [tensors.clone(), vec![twin]].concat();
    says(Folder::sharded(&config, &both, 2).open(), &["output_norm.weight", "expected the tensor once"]);
}

#[test]
fn mutated_checkpoints_neither_panic_nor_allocate_much() {
    let toy = Toy { format: &F16, vocab: 9, ffn: 12, hidden: 16, heads: 2, kv_heads: 1, head_dim: 8, ..toy::ALL[1] };
    let (config, tensors) = hugging_face(&toy);
    let scaled = with(
        &config,
        &json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64 } }),
    );
    let few =
        [Raw::new("model.norm.weight", &F32, &[2], &[1.0; 2]), Raw::new("lm_head.weight", &BF16, &[1, 2], &[1.0; 2])];
    let starts = [
        Folder::new(&config, &tensors),
        Folder::sharded(&scaled, &tensors, 3),
        Folder::sharded(&minimal("gemma2"), &few, 2),
    ];
    let (mut opened, n) = (0, 20_000);
    for i in 0..n {
        let mut random = Random(i);
        let mut folder = starts[random.below(starts.len())].clone();
        for _ in 0..1 + random.below(3) {
            let (other, from) = (random.below(folder.0.len()), random.below(starts.len()));
            let donor = starts[from].0.values().nth(other % starts[from].0.len()).unwrap().clone();
            mutate(&mut random, folder.0.values_mut().nth(other).unwrap(), &donor);
        }
        match std::panic::catch_unwind(|| bounded(&folder)) {
            Ok(open) => opened += u64::from(open),
            Err(_) => panic!("mutation {i} (see the panic above)"),
        }
    }
    println!("{n} mutations, {opened} opened");
    assert!(opened > n / 50 && opened < n / 2, "{opened} of {n} opened: mutations are too mild or too harsh");
}

#[test]
fn memory_stays_below_twice_the_files() {
    let empty = |i: usize| Raw { name: i.to_string(), dtype: "I8".into(), dims: vec![0], offsets: None, bytes: vec![] };
    let tensors: Vec<_> = (0..50_000).map(empty).collect();
    assert!(bounded(&Folder::new(&minimal("llama"), &tensors)));
    assert!(bounded(&Folder::sharded(&minimal("llama"), &tensors, 7)));
    let config = |field: String| Folder::new(&json!({}), &[]).with("config.json", format!("{{{field}}}"));
    bounded(&config(format!("\"layer_types\":[{}", "\"full_attention\",".repeat(50_000))));
    bounded(&config(format!("\"no_rope_layers\":[{}", "1,".repeat(400_000))));
    bounded(&config("\"x\":[[],".repeat(100_000)));
    bounded(&config(format!("\"hidden_act\":\"{}\\n\"", "x".repeat(60_000))));
}

#[test]
fn quantised_at_load_a_model_is_that_of_the_quantised_file() {
    let toy =
        Toy { format: &F32, hidden: 256, ffn: 512, heads: 8, kv_heads: 2, head_dim: 32, layers: 2, ..toy::ALL[1] };
    let (config, tensors) = hugging_face(&toy);
    let plain = logits(&toy.weights(), &toy, gpu());
    for (target, embedding) in [(&Q8_0, &Q8_0), (&Q4_0, &Q8_0), (&Q4_K, &Q8_0), (&F16, &F16)] {
        let from_gguf = toy.weights().quantized(target).unwrap();
        let from_folder = Folder::new(&config, &tensors).open().unwrap().quantized(target).unwrap();
        let file = Weights::from_bytes("toy.gguf", Bytes::new(as_gguf(&from_gguf).write())).unwrap();
        for (name, rows, format) in [
            ("blk.0.attn_q.weight", 256, target),
            ("token_embd.weight", toy.vocab, embedding),
            ("output_norm.weight", 1, &F32),
            ("blk.0.attn_q.bias", 1, &F32),
        ] {
            assert_eq!(from_folder.tensor(name, rows, 256).unwrap().format, format, "{name} as {}", target.name);
        }
        let expected = logits(&file, &toy, gpu());
        close(&logits(&from_gguf, &toy, gpu()), &expected, 0.0, target.name);
        close(&logits(&from_folder, &toy, gpu()), &expected, 0.0, target.name);
        let most = difference(&expected, &plain);
        println!("{}: {most:e} from the floats", target.name);
        assert!(most > 0.0 && most < 3.0, "{}: {most:e}", target.name);
    }
    let weights = toy.weights().quantized(&Q4_K).unwrap();
    close(&logits(&weights, &toy, cpu()), &logits(&weights, &toy, gpu()), 1e-4, "the references");
}

#[test]
fn rows_are_encoded_one_by_one_or_together_to_the_same_bytes() {
    let toy = Toy { format: &F32, hidden: 256, head_dim: 32, heads: 8, layers: 1, ..toy::ALL[1] };
    let weights = toy.weights().quantized(&Q4_K).unwrap();
    let rows = weights.tensor("blk.0.attn_q.weight", 256, 256).unwrap();
    let whole = rows.blocks(0..256);
    for (i, expected) in whole.chunks(Q4_K.block_bytes).enumerate() {
        assert_eq!(rows.blocks(i..i + 1)[..], *expected);
        assert_eq!(rows.blocks(i..i + 1)[..], *expected);
        let mut row = [[0.0; 256]; 2];
        rows.decode_row(i, &mut row[0]);
        (Q4_K.decode)(expected, &mut row[1]);
        assert_eq!(row[0], row[1]);
    }
}

#[test]
fn rows_that_are_no_whole_blocks_become_the_next_format() {
    let row = |cols: usize| GgufWriter::new().weights("blk.0.attn_q.weight", &BF16, 2, cols, &vec![0.5; 2 * cols]);
    let cases: [(&Format, usize, &Format); 5] =
        [(&Q4_K, 512, &Q4_K), (&Q4_K, 160, &Q8_0), (&Q4_K, 33, &F16), (&Q8_0, 33, &F16), (&Q4_0, 64, &Q4_0)];
    for (wanted, cols, expected) in cases {
        let weights =
            Weights::from_bytes("toy.gguf", Bytes::new(row(cols).write())).unwrap().quantized(wanted).unwrap();
        assert_eq!(weights.tensor("blk.0.attn_q.weight", 2, cols).unwrap().format, expected, "{} {cols}", wanted.name);
    }
}

#[test]
fn what_is_quantised_already_or_a_vector_stays() {
    let file = GgufWriter::new()
        .weights("blk.0.attn_q.weight", &Q8_0, 2, 32, &[0.5; 64])
        .weights("blk.0.attn_k.bias", &F32, 2, 32, &[0.5; 64])
        .vector("output_norm.weight", &[0.5; 32]);
    let weights = Weights::from_bytes("toy.gguf", Bytes::new(file.write())).unwrap().quantized(&Q4_0).unwrap();
    for (name, rows, format) in
        [("blk.0.attn_q.weight", 2, &Q8_0), ("blk.0.attn_k.bias", 2, &F32), ("output_norm.weight", 1, &F32)]
    {
        assert_eq!(weights.tensor(name, rows, 32).unwrap().format, format, "{name}");
    }
    says(
        weights.quantized(&format::Q6_K),
        &["format to quantise to: expected one of F16, Q8_0, Q4_0, Q4_K, found Q6_K"],
    );
}

#[test]
fn progress_is_of_all_bytes_when_weights_are_encoded() {
    let toy = Toy { format: &F32, hidden: 256, head_dim: 32, ..toy::ALL[1] };
    let weights = toy.weights().quantized(&Q4_0).unwrap();
    let mut seen = vec![];
    let uploaded = |loading| {
        if let Loading::Uploading(done, total) = loading {
            seen.push((done, total));
        }
    };
    Engine::load(&weights, &gpu(), uploaded).unwrap();
    assert!(seen.is_sorted() && seen.last().is_some_and(|(done, total)| done == total), "{:?}", seen.last());
}

/// The toy as transformers would write it: configuration and tensors.
fn hugging_face(toy: &Toy) -> (Value, Vec<Raw>) {
    let weights = toy.weights();
    let config = Config::read(&weights).unwrap();
    let gemma = toy.architecture.starts_with("gemma");
    let mut json = json!({
        "model_type": match toy.name {
            "gemma3" => "gemma3_text",
            "llama_window" => "mistral",
            _ => toy.architecture,
        },
        "hidden_size": toy.hidden, "intermediate_size": toy.ffn, "num_hidden_layers": toy.layers,
        "num_attention_heads": toy.heads, "num_key_value_heads": toy.kv_heads, "head_dim": toy.head_dim,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "vocab_size": toy.vocab,
        "tie_word_embeddings": toy.tied, "torch_dtype": "float32", "architectures": ["Toy"],
        "hidden_act": "silu",
    });
    if gemma {
        json["hidden_activation"] = json!("gelu_pytorch_tanh");
        json["query_pre_attn_scalar"] = json!(toy.head_dim);
        json["sliding_window"] = json!(if toy.name == "gemma3" { 21 } else { 17 });
    }
    match toy.name {
        "gemma3" => json["rope_scaling"] = json!({ "rope_type": "linear", "factor": 8.0 }),
        "gemma2" => {
            json["attn_logit_softcapping"] = json!(1.5);
            json["final_logit_softcapping"] = json!(2.5);
        }
        "llama_window" => json["sliding_window"] = json!(19),
        "phi3_long" | "phi3_short" => {
            let long = toy.name == "phi3_long";
            let factors = |name: &str| values(&weights, name).2;
            json["partial_rotary_factor"] = json!(0.75);
            json["sliding_window"] = if long { json!(29) } else { Value::Null };
            json["original_max_position_embeddings"] = json!(if long { 33 } else { CONTEXT });
            json["rope_scaling"] = json!({
                "type": "longrope", "attention_factor": if long { 1.2 } else { 1.1 },
                "long_factor": factors("rope_factors_long.weight"), "short_factor": factors("rope_factors_short.weight"),
            });
        }
        _ => {}
    }
    let names = weights.tensors().map(|t| t.name).filter(|name| !name.starts_with("rope_factors"));
    let mut tensors: Vec<_> = names.map(|name| tensor(toy, &config, &weights, name)).collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    (json, tensors)
}

fn tensor(toy: &Toy, config: &Config, weights: &Weights, name: &str) -> Raw {
    let (rows, cols, mut values) = values(weights, name);
    let gemma = toy.architecture.starts_with("gemma");
    let (stem, kind) = name.rsplit_once('.').unwrap();
    let part = match stem.rsplit('.').next().unwrap() {
        "token_embd" => "model.embed_tokens",
        "output_norm" => "model.norm",
        "output" => "lm_head",
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_norm" if gemma => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_attention_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if toy.architecture == "phi3" => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        other => panic!("{other} has no name"),
    };
    let name = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((l, _)) => format!("model.layers.{l}.{part}.{kind}"),
        None => format!("{part}.{kind}"),
    };
    if gemma && stem.ends_with("norm") {
        values.iter_mut().for_each(|w| *w -= 1.0);
    }
    if config.pairs == Pairs::Neighbours && (stem.ends_with("attn_q") || stem.ends_with("attn_k")) {
        let d = toy.head_dim;
        let from = |row: usize| row / d * d + row % (d / 2) * 2 + row % d / (d / 2);
        values = (0..rows).flat_map(|row| values[from(row) * cols..][..cols].to_vec()).collect();
    }
    match rows {
        1 => Raw::new(&name, &F32, &[cols], &values),
        _ => Raw::new(&name, toy.format, &[rows, cols], &values),
    }
}

fn values(weights: &Weights, name: &str) -> (usize, usize, Vec<f32>) {
    let dims = weights.tensors().find(|t| t.name == name).unwrap().dims;
    let (cols, rows) = (*dims.last().unwrap() as usize, dims[..dims.len() - 1].iter().product::<u64>() as usize);
    let view = weights.tensor(name, rows, cols).unwrap();
    let mut values = vec![0.0; rows * cols];
    values.chunks_exact_mut(cols).enumerate().for_each(|(i, row)| view.decode_row(i, row));
    (rows, cols, values)
}

/// The same checkpoint as one GGUF file, its weights in the formats that they have when loaded.
fn as_gguf(weights: &Weights) -> GgufWriter {
    let m = weights.metadata();
    let mut file = GgufWriter::new();
    for key in m.keys() {
        file = match m.value(key).unwrap() {
            Field::Integer(value) => file.u32(key, value as u32),
            Field::Float(value) => file.f32(key, value as f32),
            Field::String(text) => file.string(key, std::str::from_utf8(text).unwrap()),
            other => panic!("{key} is {other}"),
        };
    }
    for t in weights.tensors() {
        let (rows, cols, values) = values(weights, t.name);
        file = match t.dims.len() {
            1 => file.vector(t.name, &values),
            _ => {
                let view = weights.tensor(t.name, rows, cols).unwrap();
                file.tensor(t.name, view.format, rows, cols, view.blocks(0..rows).into_owned())
            }
        };
    }
    file
}

/// The least that a model of this type has.
fn minimal(model: &str) -> Value {
    let gemma = model.starts_with("gemma");
    json!({
        "model_type": model, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "query_pre_attn_scalar": 4, "sliding_window": 5,
        "attn_logit_softcapping": 50, "final_logit_softcapping": 30,
        "hidden_act": if gemma { "gelu_pytorch_tanh" } else { "silu" },
    })
}

/// `base` with the fields of `changes`.
fn with(base: &Value, changes: &Value) -> Value {
    let mut all = base.clone();
    changes.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
    all
}

fn cpu() -> EngineOptions {
    EngineOptions { backend: Backend::Cpu, batch: 32, kv: Element::F32, ..EngineOptions::default() }
}

fn gpu() -> EngineOptions {
    EngineOptions { backend: Backend::Gpu(crate::harness::device()), ..cpu() }
}

fn logits(weights: &Weights, toy: &Toy, options: EngineOptions) -> Vec<Vec<f32>> {
    crate::harness::gpu();
    let mut engine = Engine::load(weights, &options, |_| ()).unwrap();
    let mut random = Random(1);
    let mut session = engine.session();
    session.push(&(0..40).map(|_| random.below(toy.vocab) as u32).collect::<Vec<_>>());
    engine.logits(&mut session).unwrap()
}

fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[track_caller]
fn close(found: &[Vec<f32>], expected: &[Vec<f32>], bound: f32, what: &str) {
    assert!(expected.iter().flatten().any(|x| x.abs() > 0.5), "{what}: logits say something");
    let most = difference(found, expected);
    assert!(most <= bound, "{what}: logits differ by {most:e}");
}

/// Metadata as text, and tensors with their values.
fn contents(weights: &Weights) -> (BTreeMap<String, String>, BTreeMap<String, Vec<f32>>) {
    let m = weights.metadata();
    let fields = m.keys().map(|key| (key.into(), m.value(key).unwrap().to_string())).collect();
    (fields, weights.tensors().map(|t| (t.name.into(), values(weights, t.name).2)).collect())
}

fn entry<'a>(weights: &'a Weights, name: &str) -> std::borrow::Cow<'a, str> {
    weights.tensors().find(|t| t.name == name).unwrap().format_name
}

#[track_caller]
fn says<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("no error, but {words:?} was expected") };
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

/// Opens and reads everything; whether it opened. Panics when that allocates more than twice the files and 64 KiB.
fn bounded(folder: &Folder) -> bool {
    let files = folder.bytes();
    let (opened, most) = peak(|| match Weights::from_files("toy", |path| read(&files, path)) {
        Ok(weights) => {
            let m = weights.metadata();
            for key in m.keys() {
                let _ = (m.string(key), m.u32(key), m.optional(key, Metadata::f32));
            }
            for t in weights.tensors() {
                assert!(weights.contains(t.name));
                let cols = *t.dims.last().unwrap() as usize;
                let rows =
                    t.dims[..t.dims.len() - 1].iter().fold(1, |product: usize, d| product.wrapping_mul(*d as usize));
                let _ = weights.tensor(t.name, rows, cols);
            }
            let _ = (weights.tensor("absent", 1, 1), Config::read(&weights));
            true
        }
        Err(error) => {
            assert!(error.to_string().len() < 1000, "{error}");
            false
        }
    });
    let bound = 2 * folder.len() + (64 << 10);
    assert!(most <= bound, "{most} bytes were allocated for files of {}", folder.len());
    opened
}

/// Changes bytes, or the JSON's numbers, words and structure.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>, donor: &[u8]) {
    const PARTS: [&str; 12] =
        ["0", "-1", "18446744073709551615", "1e400", "null", "[", "]", "{", "}", "\"", ",", "\"model.norm.weight\":"];
    if bytes.len() < 2 {
        return;
    }
    let at = random.below(bytes.len());
    // A number in the text, mostly.
    let digit = (at..bytes.len()).find(|i| bytes[*i].is_ascii_digit()).unwrap_or(at);
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..bytes.len().min(at + 1 + random.below(9)))),
        4 => {
            let from = random.below(donor.len());
            let part = donor[from..donor.len().min(from + random.below(64))].to_vec();
            bytes.splice(at..at, part);
        }
        5 => drop(bytes.splice(at..at, PARTS[random.below(PARTS.len())].bytes())),
        6 => drop(bytes.splice(digit..digit + 1, PARTS[random.below(5)].bytes())),
        _ => bytes[digit] = b'0' + random.below(10) as u8,
    }
}
