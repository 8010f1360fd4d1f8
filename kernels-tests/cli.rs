//! The command line, as its users run it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use farpast::chat::generate;
use farpast::engine::{Backend, Engine, EngineOptions, Recorded};
use farpast::fetch;
use farpast::kernel::Step;
use farpast::memory::{Bytes, Element};
use farpast::models::ARCHITECTURES;
use farpast::program::Mode;
use farpast::sampler::{Dry, Penalties, Sampling};
use farpast::text::StreamDecoder;
use farpast::weights::Weights;
use serde_json::{Value, json};

use crate::gguf_writer::GgufWriter;
use crate::toy_chat::{CONTEXT, LAYERS, billion, temporary, toy, toy_of};

const COMMANDS: [&str; 10] =
    ["chat", "generate", "pull", "inspect", "tokenize", "perplexity", "bench", "eval", "devices", "completions"];

/// The toy with a token that begins every text.
fn with_bos() -> GgufWriter {
    toy(None).bool("tokenizer.ggml.add_bos_token", true)
}

#[test]
fn generate_goes_on_as_the_engine_does() {
    let model = Model::new("generate", &with_bos());
    let draw = ["--device", "cpu", "-n", "12", "-s", "5", "--temp", "0.7", "--top-k", "9", "--top-p", "0.9"];
    let asked = model.run("generate", &[&draw[..], &["-p", "Once"]].concat());
    let sampling = Sampling { temperature: 0.7, top_k: 9, top_p: 0.9, seed: 5, ..Sampling::default() };
    let mut engine = model.engine(Element::F16);
    let mut session = engine.session();
    session.sampling = sampling;
    // The bytes are the ids.
    session.push(&[&[256], "Once".bytes().map(u32::from).collect::<Vec<_>>().as_slice()].concat());
    let drawn: Vec<u8> = (0..12)
        .map(|_| engine.step(&mut [&mut session]).unwrap()[0].unwrap())
        .map(|id| id.try_into().unwrap())
        .collect();
    let expected = String::from_utf8_lossy(&drawn).into_owned();
    assert_eq!(ok(&asked), expected);

    let file = Temporary::new("once.txt", b"Once\n");
    assert_eq!(ok(&model.run("generate", &[&draw[..], &["-f", file.path()]].concat())), expected);
    assert_eq!(ok(&model.run_with("generate", &draw, "Once\n")), expected);

    let answer = parse(&ok(&model.run("generate", &[&draw[..], &["-p", "Once", "--json"]].concat())));
    assert_eq!(answer["text"], expected);
    assert_eq!((&answer["end"], &answer["prompt_tokens"], &answer["tokens"]), (&json!("limit"), &json!(5), &json!(12)));
    assert_eq!((&answer["context"], &answer["device"]), (&json!(CONTEXT), &json!("CPU interpreter")));
    assert!(answer["seconds"]["prefill"].as_f64().unwrap() > 0.0);
}

#[test]
fn every_flag_of_sampling_says_how_tokens_are_drawn() {
    let model = Model::new("sampling", &toy(None));
    let flags = "--device cpu -n 24 -s 5 --temp 0.9 --top-k 90 --typical 0.97 --top-p 0.98 --min-p 0.001 --repeat-last-n -1 \
                 --repeat-penalty 1.3 --presence-penalty 0.2 --frequency-penalty -0.1 --dry-multiplier 0.8 --dry-base 1.5 \
                 --dry-allowed-length 1 --dry-penalty-last-n 50 --dry-sequence-breaker a --dry-sequence-breaker o -l 65+2.5 -l 66-90";
    let flags: Vec<_> = flags.split_whitespace().collect();
    let asked = ok(&model.run("generate", &[&flags[..], &["-p", "Once Once On"]].concat()));
    let breakers = [b'a', b'o'].map(u32::from).into_iter().collect();
    let mut engine = model.engine(Element::F16);
    let mut session = engine.session();
    session.sampling = Sampling {
        temperature: 0.9,
        top_k: 90,
        typical_p: 0.97,
        top_p: 0.98,
        min_p: 0.001,
        penalties: Penalties { last_n: usize::MAX, repeat: 1.3, presence: 0.2, frequency: -0.1 },
        dry: Dry { multiplier: 0.8, base: 1.5, allowed_length: 1, last_n: 50, breakers },
        logit_bias: vec![(65, 2.5), (66, -90.0)],
        seed: 5,
    };
    session.push(&"Once Once On".bytes().map(u32::from).collect::<Vec<_>>());
    let tokenizer = farpast::chat::tokenizer(&model.weights()).unwrap();
    let each = |_: &str| ControlFlow::Continue(());
    let expected =
        generate(&mut engine, &mut session, &tokenizer, StreamDecoder::continuing(), Some(24), each).unwrap();
    assert_eq!(asked, expected.text);
    for (flag, value) in
        [("--min-p", "2"), ("--repeat-penalty", "0"), ("--dry-base", "0.5"), ("-l", "a+1"), ("-l", "5")]
    {
        let refused = model.run("generate", &["--device", "cpu", "-p", "a", flag, value]);
        assert!(!refused.status.success(), "{flag} {value}");
    }
    fails(&model.run("generate", &["--device", "cpu", "-n", "1", "-p", "a", "-l", "999999+1"]), "logit bias");
}

#[test]
fn drafts_change_nothing_but_the_time() {
    let (model, other) = (Model::new("drafts", &toy(None)), Model::new("drafter", &toy_of(8, None)));
    let ask = |command: &str, flags: &[&str]| {
        let asked = ["--device", "cpu", "-n", "40", "-s", "5", "-p", "abc abc abc abc"];
        ok(&model.run(command, &[&asked[..], flags].concat()))
    };
    let eager = ["--spec-type", "ngram-simple", "--prompt-lookup-min", "1", "--prompt-lookup-max", "4"];
    let limited = ["--draft", "5", "--draft-min", "4", "-md", other.path()];
    for command in ["generate", "chat"] {
        let expected = ask(command, &["--temp", "0"]);
        for flags in [&eager[..], &limited, &[&eager[..], &limited].concat(), &["-md", model.path()]] {
            assert_eq!(ask(command, &[&["--temp", "0"], flags].concat()), expected, "{command} {flags:?}");
        }
    }
    let counts = |flags: &[&str]| {
        let answer = parse(&ask("generate", &[&["--json"], flags].concat()));
        ["drafted_tokens", "accepted_tokens"].map(|name| answer[name].as_u64().unwrap())
    };
    let [drafted, accepted] = counts(&["-md", model.path()]);
    assert!(drafted > 20 && accepted == drafted, "{accepted} of {drafted}");
    assert!(counts(&limited)[0] > 0);
    assert_eq!((counts(&[]), counts(&["-md", model.path(), "--draft-max", "0"])), ([0; 2], [0; 2]));
    let mut file = toy(None);
    let ids = file.fields.iter_mut().find(|field| field.key == b"tokenizer.ggml.tokens").unwrap();
    let at = ids.value.windows(10).rposition(|bytes| bytes == b"<|im_end|>").unwrap();
    ids.value[at..at + 10].copy_from_slice(b"<|im_xyz|>");
    let foreign = Model::new("foreign", &file);
    let refused = model.run("generate", &["--device", "cpu", "-p", "a", "-md", foreign.path()]);
    fails(&refused, "vocabulary of the draft model");
}

#[test]
fn generate_and_chat_follow_a_schema_or_a_grammar() {
    let model = Model::new("grammar", &toy(None));
    let file = Temporary::new("grammar.lark", b"start: \"left\" | \"right\"");
    let schema = r#"{"enum": ["left", "right"]}"#;
    for (command, flags, expected) in [
        ("generate", ["--json-schema", schema], ["\"left\"", "\"right\""]),
        ("generate", ["--grammar", "start: \"left\" | \"right\""], ["left", "right"]),
        ("chat", ["--grammar-file", file.path()], ["left", "right"]),
    ] {
        let text = ok(&model.run(command, &[&["--device", "cpu", "-p", "a"][..], &flags].concat()));
        assert!(expected.contains(&text.trim()), "{command} {flags:?}: {text}");
    }
    let wrong = [["--json-schema", "{"], ["--json-schema", r#"{"type": "nonsense"}"#], ["--grammar", "start: nothing"]];
    for flags in wrong {
        fails(&model.run("generate", &[&["--device", "cpu", "-p", "a"][..], &flags].concat()), "expected");
    }
}

#[test]
#[cfg(feature = "mcp")]
fn chat_runs_tools_of_mcp_servers_where_it_may() {
    let template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
                    {{ m.content }}{{ m.tool_calls }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let mut file = toy(Some(template));
    let context = file.fields.iter_mut().find(|field| field.key == b"llama.context_length").unwrap();
    context.value = 1024u32.to_le_bytes().into();
    let model = Model::new("tools", &file);
    let server = crate::mcp::server("add");
    let grammar = r#"start: "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}""#;
    let flags = ["--device", "cpu", "-p", "1 + 2?", "--grammar", grammar, "--tool-rounds", "1"];
    let chat = |more: &[&str]| model.run("chat", &[&flags[..], more].concat());
    let answer = chat(&["--mcp", &server, "--yes"]);
    assert_eq!(ok(&answer), "\n");
    let told = text(&answer.stderr);
    let expected = "[add {\"a\": 1, \"b\": 2}]\n[→ 3]\n[the model wants more tools after 1 rounds]\n";
    assert!(told.ends_with(expected), "{told}");

    fails(&chat(&["--mcp", &server]), "tools without a terminal: expected --yes");
    fails(&chat(&["--yes", "--mcp", "no-such-program-of-farpast"]), "MCP server no-such-program-of-farpast: ");
    fails(&chat(&["--yes", "--mcp-config", "/no/such.json"]), "/no/such.json");
    usage(&chat(&["--yes", "--mcp", "'"]));
    let silent = Model::new("no-tools", &toy(None));
    fails(&silent.run("chat", &[&flags[..], &["--yes", "--mcp", &server]].concat()), "tools: expected a model whose");
}

#[test]
fn generate_ends_with_the_context() {
    let model = Model::new("context", &toy(None));
    let run = |text: &str| model.run("generate", &["--device", "cpu", "-c", "32", "--temp", "0", "--json", "-p", text]);
    let answer = parse(&ok(&run("A text of 23 letters...")));
    // The last position draws a token that has none itself.
    let tokens = answer["tokens"].as_u64().unwrap();
    assert!(answer["end"] == "context" && tokens == 32 - 23 + 1 || answer["end"] == "stop", "{answer}");
    fails(&run(&"x".repeat(33)), "prompt: expected at most 32 tokens, found 33");
}

#[test]
fn flags_of_several_letters_are_the_long_ones() {
    let model = Model::new("flags", &toy(None));
    let common = ["-p", "Hello", "-s", "1", "-n", "8"];
    let short = ["-dev", "cpu", "-sys", "Be kind.", "-ctk", "f32", "-ctv", "f32", "-st", "--context", "128"];
    let long = ["--device", "cpu", "--system-prompt", "Be kind.", "--kv", "f32", "--single-turn", "--ctx-size", "128"];
    let [short, long] = [&short[..], &long[..]].map(|flags| model.run("chat", &[&common[..], flags].concat()));
    assert_eq!(ok(&short), ok(&long));
    assert!(text(&short.stderr).contains("for 128 tokens"), "{}", text(&short.stderr));
    fails(
        &model.run("chat", &["-dev", "cpu", "-p", "x", "-ctk", "f16", "-ctv", "f32"]),
        "--cache-type-v: expected the same",
    );
    usage(&model.run("chat", &["-p", "x", "-ctk", "f16", "--kv", "f32"]));
}

#[test]
fn quantised_keys_and_values_take_the_memory_that_inspect_says() {
    let model = Model::new("quantised", &toy(None));
    let flags = |kv: &'static str| ["--device", "cpu", "-c", "64", "-ctk", kv, "-ctv", kv];
    // Of 16 dims a block of 32 is half filled, and its scale takes a word.
    for (kv, row) in [("f32", 64), ("f16", 32), ("q8_0", 36), ("q4_0", 20)] {
        let all = parse(&ok(&model.run("inspect", &[&flags(kv)[..], &["--json"]].concat())));
        assert_eq!(all["memory"]["kv_format"], kv);
        let rows = 2 * LAYERS as u64 * all["model"]["kv_heads"].as_u64().unwrap() * 64;
        assert_eq!((all["model"]["head_dim"].as_u64(), all["memory"]["kv"].as_u64()), (Some(16), Some(rows * row)));
        ok(&model.run("generate", &[&flags(kv)[..], &["-p", "Hello", "-n", "4"]].concat()));
    }
    let mixed = ["--device", "cpu", "-p", "x", "-ctk", "q8_0", "-ctv", "q4_0"];
    fails(&model.run("generate", &mixed), "--cache-type-v: expected the same");
}

#[test]
fn a_prompt_is_computed_once_where_it_is_kept_in_a_file() {
    let model = Model::new("prompt_cache", &toy(None));
    let file = model.path().to_string() + ".session";
    let prompt = "A prompt that fills two pages of 16 tokens";
    let run = |command: &str, flags: &[&str]| {
        let common = ["--device", "cpu", "-c", "128", "--temp", "0", "-n", "5", "--prompt-cache", &file];
        model.run(command, &[&common[..], flags].concat())
    };
    let generate = |text: &str| {
        let answer = parse(&ok(&run("generate", &["--json", "-p", text])));
        (answer["text"].clone(), answer["cached_tokens"].as_u64().unwrap())
    };
    let (answer, cached) = generate(prompt);
    assert_eq!(cached, 0);
    let written = std::fs::read(&file).unwrap();
    assert_eq!(generate(prompt), (answer, 32));
    // What begins otherwise shares as much, and is kept instead; the beginning of a prompt is kept already.
    assert_eq!(generate(&prompt[..40]).1, 32);
    assert_eq!(std::fs::read(&file).unwrap(), written);
    assert_eq!(generate(&format!("{}, or three of them at least", &prompt[..20])).1, 20);
    assert_ne!(std::fs::read(&file).unwrap(), written);

    std::fs::remove_file(&file).unwrap();
    let answers = ["Hello", "Hello"].map(|text| run("chat", &["-p", text]));
    let [first, second] = answers.each_ref().map(ok);
    let notes = answers.map(|answer| text(&answer.stderr));
    assert!(first == second && !notes[0].contains("prompt cache") && notes[1].contains("prompt cache"), "{notes:?}");

    let written = std::fs::read(&file).unwrap();
    fails(&run("generate", &["-p", "x", "-ctk", "q8_0"]), "KV format: expected q8_0, found f16");
    let window = run("generate", &["-p", "x", "--attention", "window"]);
    assert!(text(&window.stderr).contains("error: attention with --prompt-cache: expected dense"));
    assert_eq!(std::fs::read(&file).unwrap(), written);
}

#[test]
fn inspect_shows_the_file_and_what_it_becomes() {
    let model = Model::new("inspect", &toy(None));
    let sizes = ["--device", "cpu", "-c", "64", "-b", "48", "--kv", "f32"];
    let shown = ok(&model.run("inspect", &[&sizes[..], &["--program", "prefill"]].concat()));
    let all = parse(&ok(&model.run("inspect", &[&sizes[..], &["--program", "prefill", "--json"]].concat())));
    let options = EngineOptions { context: 64, batch: 48, kv: Element::F32, ..on_cpu() };
    let weights = model.weights();
    let Recorded { memory, programs, .. } = Recorded::new(&weights, &options, None).unwrap();
    let prefill = &programs[Mode::Prefill];
    let plan = Engine::load(&weights, &options, |_| ()).unwrap().plan();

    assert_eq!(all["metadata"]["llama.block_count"], LAYERS);
    assert_eq!(all["metadata"]["llama.attention.layer_norm_rms_epsilon"], 1e-5);
    assert_eq!(all["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 258);
    assert!(
        shown.contains("\"Toy\"") && shown.contains("\"\u{100}\", \"\u{101}\", \"\u{102}\", \"\u{103}\", …] of 258")
    );
    let tensors = all["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), weights.tensors().len());
    let expected = json!({ "name": "token_embd.weight", "dims": [258, 64], "format": "Q8_0", "bytes": 258 * 2 * 34 });
    assert!(tensors.contains(&expected), "{all}");
    assert!(shown.contains("token_embd.weight") && shown.contains("258 × 64") && shown.contains("17544 bytes"));
    assert_eq!(all["formats"]["F16"], json!({ "tensors": 2, "elements": 4096, "bytes": 8192, "supported": true }));

    let of = |what: &str| all["memory"][what].as_u64().unwrap() as usize;
    assert_eq!((of("weights"), of("kv"), of("activations")), (plan.weights, plan.kv, plan.activations));
    assert_eq!((of("total"), of("context"), of("batch")), (plan.total(), 64, 48));
    assert!(shown.contains(&format!("{:>14} bytes  in all", plan.total())), "{shown}");

    let program = all["program"].as_array().unwrap();
    assert_eq!(program.len(), prefill.dispatches.len());
    let lines: Vec<_> = shown.lines().rev().take(program.len()).collect();
    for ((d, found), line) in prefill.dispatches.iter().zip(program).zip(lines.iter().rev()) {
        assert_eq!(found["kernel"], d.kernel.name);
        assert_eq!(found["constants"].as_object().unwrap().len(), d.spec.constants().len());
        for t in &d.tensors {
            let name = &memory.desc(*t).name;
            assert!(found["tensors"].as_object().unwrap().values().any(|v| v == name), "{found}");
            assert!(line.contains(&format!("={name}")) && line.contains(d.kernel.name), "{line}");
        }
    }
    // What is available changes from one moment to the next.
    let lasting =
        |shown: String| shown.lines().filter(|l| !l.contains("available")).map(String::from).collect::<Vec<_>>();
    let positional = run(&["inspect", model.path(), "--device", "cpu"]);
    assert_eq!(lasting(ok(&positional)), lasting(ok(&model.run("inspect", &["--device", "cpu"]))));
}

#[test]
fn inspect_shows_files_that_do_not_run() {
    let other =
        GgufWriter { fields: vec![], ..toy(None) }.string("general.architecture", "mamba\u{1b}[2J").f32("x", f32::NAN);
    let model = Model::new("other", &other);
    let shown = ok(&model.run("inspect", &["--device", "cpu"]));
    assert!(shown.contains("blk.0.attn_q.weight") && !shown.contains('\u{1b}'), "{shown}");
    let last = shown.lines().last().unwrap();
    assert!(
        last.starts_with("does not run: ") && last.contains(&format!("expected one of {}", ARCHITECTURES.join(", "))),
        "{last}"
    );
    let all = parse(&ok(&model.run("inspect", &["--device", "cpu", "--json"])));
    assert!(all["error"].as_str().unwrap().contains("one of gemma2, gemma3") && all.get("memory").is_none());
    assert_eq!(all["metadata"]["x"], "NaN");

    let mut unknown = toy(None);
    unknown.tensors[3].kind = 20000;
    let model = Model::new("format", &unknown);
    let shown = ok(&model.run("inspect", &["--device", "cpu"]));
    assert!(shown.contains("ggml type 20000") && shown.contains("(not supported)"), "{shown}");
    assert!(shown.lines().last().unwrap().contains("expected a format of"), "{shown}");
    fails(&model.run("generate", &["--device", "cpu", "-p", "x"]), "expected a format of");
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_what_would() {
    let model = Model::new("large", &toy(None));
    let weights = model.weights();
    let limited = |memory| EngineOptions { context: 256, memory: Some(memory), ..on_cpu() };
    let needed = Recorded::new(&weights, &limited(0), None).unwrap().plan().total();
    let error = Engine::load(&weights, &limited(needed - 1), |_| ()).err().unwrap().to_string();
    let figures = format!("{needed} bytes needed, {} available; a context of 240 would fit", needed - 1);
    assert!(error.ends_with(&figures), "{error}");
    let limit = (needed - 1).to_string();
    let flags = ["--device", "cpu", "-b", "32", "-c", "256", "--memory-limit", &limit];
    for command in ["generate", "chat", "perplexity"] {
        fails(&model.run(command, &[&flags[..], &["-p", "Hello"]].concat()), &error);
    }
    let all = parse(&ok(&model.run("inspect", &[&flags[..], &["--json"]].concat())));
    assert_eq!((&all["memory"]["refused"], &all["memory"]["available"]), (&json!(error), &json!(needed - 1)));
    ok(&model.run("generate", &["--device", "cpu", "-p", "Hello", "-n", "1", "--memory-limit", "1M"]));
    fails(&model.run("generate", &["--device", "cpu", "-p", "Hello", "--memory-limit", "1k"]), "no context would fit");
}

#[test]
fn tokenize_prints_ids_pieces_and_count() {
    let model = Model::new("tokenize", &with_bos());
    let run = |flags: &[&str]| ok(&model.run("tokenize", &[flags, &["-p", "A\n<|im_end|>"]].concat()));
    assert_eq!(run(&["--ids", "--parse-special"]), "[256, 65, 10, 257]\n");
    assert_eq!(run(&["--ids", "--parse-special", "--no-bos", "--show-count"]), "[65, 10, 257]\n3 tokens\n");
    assert_eq!(
        run(&["--parse-special"]),
        "    256 \"<|im_start|>\"\n     65 \"A\"\n     10 \"\\n\"\n    257 \"<|im_end|>\"\n"
    );
    let all = parse(&run(&["--json"]));
    // Typed by a user it is text: ten letters.
    assert_eq!(all["count"], 1 + 2 + 10);
    assert_eq!(all["tokens"][2], json!({ "id": 10, "token": "\u{10a}", "text": "\n" }));
    assert_eq!(ok(&model.run_with("tokenize", &["--ids"], "A\n")), "[256, 65, 10]\n");
}

#[test]
fn perplexity_is_that_of_the_logits() {
    let text: Vec<u8> = (0..203u32).map(|i| b'a' + (i * i / 7 % 23) as u8).collect();
    let file = Temporary::new("perplexity.txt", &text);
    for (name, toy, bos) in [("plain", toy(None), false), ("bos", with_bos(), true)] {
        let model = Model::new(name, &toy);
        let tokens: Vec<u32> = bos.then_some(256).into_iter().chain(text.iter().map(|b| u32::from(*b))).collect();
        let mut engine = model.engine(Element::F32);
        // -ln p of each token of a context but the first.
        let mut nlls = |tokens: &[u32]| {
            let mut session = engine.session();
            session.push(tokens);
            let rows = engine.logits(&mut session).unwrap();
            let nll = |row: &[f32], id: u32| {
                row.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln() - f64::from(row[id as usize])
            };
            rows.iter().zip(&tokens[1..]).map(|(row, id)| nll(row, *id)).collect::<Vec<_>>()
        };
        let flags = ["--device", "cpu", "--kv", "f32", "--json", "-f", file.path()];
        let check = |more: &[&str], expected: &[f64]| {
            let all = parse(&ok(&model.run("perplexity", &[&flags[..], more].concat())));
            let n = expected.len() as f64;
            let mean = expected.iter().sum::<f64>() / n;
            let error = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n / (n - 1.0)).sqrt();
            assert_eq!(all["scored"], expected.len(), "{more:?}");
            for (key, expected) in [
                ("nll", mean),
                ("nll_error", error),
                ("perplexity", mean.exp()),
                ("perplexity_error", mean.exp() * error),
            ] {
                let found = all[key].as_f64().unwrap();
                assert!((found - expected).abs() < 1e-6 * expected, "{more:?} {key}: {found} instead of {expected}");
            }
            all
        };
        let mut second_halves = Vec::new();
        for chunk in tokens.chunks_exact(50) {
            let mut chunk = chunk.to_vec();
            if bos {
                chunk[0] = 256;
            }
            second_halves.extend_from_slice(&nlls(&chunk)[25..]);
        }
        let all = check(&["-c", "50"], &second_halves);
        assert_eq!((&all["chunks"], &all["text_tokens"]), (&json!(4), &json!(tokens.len())));
        check(&["-c", "50", "-b", "7", "--chunks", "3"], &second_halves[..72]);
        check(&["--all"], &nlls(&tokens));
        check(&["--all", "-c", "100"], &nlls(&tokens[..100]));

        let line = ok(&model.run("perplexity", &["--device", "cpu", "-c", "50", "-f", file.path()]));
        assert!(line.starts_with("perplexity ") && line.contains("; 96 tokens scored in 4 contexts of 50"), "{line}");
        fails(&model.run("perplexity", &["--device", "cpu", "-p", "short"]), "text: expected at least 256 tokens");
        fails(&model.run("perplexity", &["--device", "cpu", "-c", "2", "-p", "short"]), "context: expected at least 3");
        fails(&model.run("perplexity", &["--device", "cpu", "--all", "-p", ""]), "context: expected");
    }
}

#[test]
fn pull_prints_where_a_model_is() {
    let path = crate::model::test_model();
    assert_eq!(ok(&run(&["pull", "smollm2"])), format!("{}\n", path.display()));
    let found = parse(&ok(&run(&["pull", "smollm2", "--json"])));
    assert_eq!(found, json!({ "name": "smollm2", "path": path }));
    fails(&run(&["pull", "no-such"]), "model: expected one of smollm2, ");
    usage(&run(&["pull"]));
}

#[cfg(feature = "hub")]
#[test]
fn models_of_the_hub_are_asked_for_by_repository() {
    let cache = temporary("cli-hub");
    let offline = |arguments: &[&str]| {
        farpast(arguments)
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", &cache)
            .env_remove("HF_HUB_CACHE")
            .output()
            .unwrap()
    };
    for arguments in [&["pull", "org/repo:Q8_0"][..], &["generate", "-hf", "org/repo:Q8_0", "-p", "x"]] {
        fails(&offline(arguments), "org/repo");
    }
    usage(&offline(&["inspect", "-hf", "org/repo", "-m", "x"]));
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn devices_end_with_the_cpu() {
    let none = |arguments: &[&str]| farpast(arguments).env("WGPU_BACKEND", "none").output().unwrap();
    let expected = "cpu: the reference of every kernel, slow\n";
    assert_eq!(ok(&none(&["devices"])), expected);
    assert_eq!(ok(&none(&["generate", "--list-devices"])), expected);
    assert_eq!(ok(&none(&["devices", "--json"])), "{\"device\":\"cpu\",\"name\":\"CPU interpreter\"}\n");
    assert!(ok(&run(&["devices"])).ends_with(expected) && ok(&run(&["devices", "-v"])).ends_with(expected));
    let lines = ok(&run(&["devices", "--json"]));
    assert_eq!(lines.lines().map(|line| parse(line)["device"].clone()).next_back(), Some(json!("cpu")));
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = ok(&run(&["completions", shell]));
        for command in COMMANDS {
            assert!(script.contains(command), "{command} in the script of {shell}");
        }
        assert!(script.contains("memory-limit"), "{shell}");
    }
    usage(&run(&["completions", "cmd"]));
}

#[test]
fn help_lists_commands_and_models() {
    let all = ok(&run(&["--help"]));
    for command in COMMANDS {
        assert!(all.lines().any(|line| line.trim().starts_with(&format!("{command} "))), "{command} in {all}");
        let help = ok(&run(&[command, "--help"]));
        assert!(help.contains(&format!("Usage: farpast {command}")), "{help}");
        if help.contains("NAME") && command != "devices" {
            let models = fetch::MODELS.iter().map(|m| m.name).collect::<Vec<_>>().join(", ");
            assert!(help.contains(&models), "{models} in {help}");
        }
    }
    assert!(ok(&run(&["--version"])).contains(env!("CARGO_PKG_VERSION")));
    usage(&run(&[]));
}

#[test]
fn what_cannot_be_done_is_one_line_on_standard_error() {
    for command in ["chat", "generate", "inspect", "tokenize", "perplexity"] {
        let text: &[&str] = if command == "inspect" { &[] } else { &["-p", "x"] };
        fails(&run(&[&[command, "-m", "no/such.gguf"], text].concat()), "no/such.gguf: ");
        usage(&run(&[command, "--no-such-flag"]));
    }
    let model = Model::new("errors", &toy(None));
    fails(&model.run("tokenize", &["-f", "no/such.txt"]), "no/such.txt: ");
    let binary = Temporary::new("binary", b"\xff\xfe");
    fails(&model.run("tokenize", &["-f", binary.path()]), "UTF-8");
    fails(&model.run("generate", &["--device", "cpu", "-p", ""]), "prompt: expected some text, found none");
    fails(
        &model.run("generate", &["--device", "cpu", "-b", "65536", "-p", "x"]),
        "batch: expected at most 65535, found",
    );
    fails(&model.run("generate", &["--device", "cpu", "-b", "0", "-p", "x"]), "batch: expected at least 1, found 0");
    let disabled = |maths| {
        farpast(&["generate", "-m", model.path(), "-p", "x", "--maths", maths]).env("FARPAST_DISABLE", maths).output()
    };
    for maths in ["f16", "dot8", "coopmat"] {
        fails(&disabled(maths).unwrap(), "maths: expected f32");
    }
    usage(&model.run("generate", &["-p", "x", "-f", "y"]));
    usage(&model.run("generate", &["-p", "x", "--memory-limit", "6Q"]));
    usage(&model.run("inspect", &["other.gguf"]));
}

#[test]
fn bench_measures_each_test_in_every_format() {
    let model = Model::new("bench", &toy(None));
    let sizes = ["--device", "cpu", "-p", "16,40", "-n", "0,3", "-d", "0,20", "-r", "2"];
    let run = |more: &[&str]| ok(&model.run("bench", &[&sizes[..], more].concat()));
    let names = ["pp16", "pp40", "tg3", "pp16 @ d20", "pp40 @ d20", "tg3 @ d20"];

    let shown = run(&[]);
    let rows: Vec<Vec<_>> = shown.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    assert_eq!(rows[0], ["model", "size", "params", "backend", "test", "t/s", "GB/s", "GFLOP/s", "% roofline"]);
    assert_eq!(rows[2..].iter().map(|row| row[4]).collect::<Vec<_>>(), names);
    for row in &rows[2..] {
        let (mean, deviation) = row[5].split_once(" ± ").unwrap();
        assert!(mean.parse::<f64>().unwrap() > 0.0 && deviation.parse::<f64>().unwrap() >= 0.0, "{row:?}");
        // The interpreter has no roof.
        assert!(row[0].starts_with("Toy ") && row[3] == "cpu" && row[8] == "–", "{row:?}");
    }
    assert!(shown.contains("CPU interpreter") && shown.contains(env!("CARGO_PKG_VERSION")), "{shown}");

    let all = parse(&run(&["-o", "json", "--no-warmup", "--profile"]));
    assert_eq!((&all["format"], &all["version"]), (&json!("farpast bench"), &json!(1)));
    assert_eq!((&all["model"]["name"], &all["settings"]["context"]), (&json!("Toy"), &json!(60)));
    let results = all["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|row| row["test"].as_str().unwrap()).collect::<Vec<_>>(), names);
    for row in results {
        assert_eq!(row["seconds"].as_array().unwrap().len(), 2);
        assert!(row["bytes_read"].as_u64() > Some(0) && row["flops"].as_u64() > Some(0), "{row}");
    }
    let of_step = |step: &str| -> u64 {
        let kernels = all["profile"].as_array().unwrap().iter();
        let rows = kernels.filter(|row| row["test"].as_str().unwrap().starts_with(step));
        rows.map(|row| row["dispatches"].as_u64().unwrap()).sum()
    };
    let options = EngineOptions { context: 60, ..on_cpu() };
    let Recorded { programs, .. } = Recorded::new(&model.weights(), &options, None).unwrap();
    let step = Step { n_tokens: 1, n_outputs: 1, n_sequences: 1, n_tiles: 1, max_pages: 1, ..Step::default() };
    let plain = |mode| programs[mode].dispatches.iter().filter(|d| d.runs(&step)).count() as u64;
    assert_eq!(of_step("step of 16: "), plain(Mode::Prefill));
    assert_eq!(of_step("step of 1 @ d20: "), plain(Mode::Decode));

    let csv = run(&["-o", "csv"]);
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let test = head.iter().position(|name| *name == "test").unwrap();
    let lines: Vec<_> = lines.collect();
    assert!(lines.iter().all(|line| line.len() == head.len()), "{csv}");
    assert_eq!(lines.iter().map(|line| line[test]).collect::<Vec<_>>(), names);
}

#[test]
fn bench_compares_two_results() {
    let model = Model::new("compare", &toy(None));
    let measured = ok(&model.run("bench", &["--device", "cpu", "-p", "8,9,10", "-n", "2", "-r", "3", "-o", "json"]));
    let with = |seconds: [f64; 4]| {
        let mut all = parse(&measured);
        for (row, seconds) in all["results"].as_array_mut().unwrap().iter_mut().zip(seconds) {
            row["seconds"] = json!([seconds, seconds * 1.01, seconds * 0.99]);
        }
        all
    };
    let write = |name: &str, text: &Value| Temporary::new(name, text.to_string().as_bytes());
    let before = write("before.json", &with([1.0; 4]));
    let after = write("after.json", &with([0.5, 2.0, 1.01, 1.0]));
    let shown = ok(&run(&["bench", "--compare", before.path(), after.path()]));
    let rows: Vec<Vec<_>> = shown.lines().filter(|line| line.starts_with('|')).map(cells).skip(2).collect();
    let found: Vec<_> = rows.iter().map(|row| (row[0], row[3], row[4])).collect();
    assert_eq!(
        found,
        [("pp8", "2.000", "faster"), ("pp9", "0.500", "slower"), ("pp10", "0.990", ""), ("tg2", "1.000", "")]
    );
    assert!(rows[0][1].starts_with("8.00 ± 0.08 t/s") && rows[0][2].starts_with("16.0"), "{shown}");

    let fails_with = |other: &str, part: &str| fails(&run(&["bench", "--compare", before.path(), other]), part);
    fails_with("no/such.json", "no/such.json: ");
    let mut wrong = with([1.0; 4]);
    wrong["version"] = json!(2);
    fails_with(write("version.json", &wrong).path(), "expected \"farpast bench\" of version 1, found");
    let mut wrong = with([1.0; 4]);
    wrong["results"][1]["seconds"] = json!([0.0]);
    fails_with(write("zero.json", &wrong).path(), "a time above 0");
    let mut wrong = with([1.0; 4]);
    wrong["results"] = json!([]);
    fails_with(write("none.json", &wrong).path(), "a test that both have");
    fails_with(write("other.json", &json!({ "perplexity": 3 })).path(), "what bench -o json prints");
    fails_with(Temporary::new("text.json", b"no JSON").path(), "what bench -o json prints");
    usage(&run(&["bench", "--compare", before.path()]));
}

#[test]
fn bench_says_what_it_cannot_measure() {
    let model = Model::new("unmeasured", &toy(None));
    let cpu = |more: &[&str]| model.run("bench", &[&["--device", "cpu"], more].concat());
    fails(&cpu(&["-p", "0", "-n", "0"]), "tests: expected a number of -p or -n above 0, found none");
    let most = format!("at most {CONTEXT}, which the model was trained for");
    fails(&cpu(&["-p", "8", "-n", "0", "-d", &CONTEXT.to_string()]), &most);
    fails(&cpu(&["-p", "32", "-n", "0", "-c", "24"]), "at most 24, the context, found 32");
    usage(&cpu(&["-p", "x"]));
    usage(&cpu(&["-r", "0"]));
    usage(&cpu(&["-o", "xml"]));
    usage(&cpu(&["--kernels"]));
    usage(&run(&["bench", "--shapes", "1b"]));
    fails(&run(&["bench", "--device", "cpu", "--kernels"]), "device: expected a GPU, found cpu");
    let unknown = run(&["bench", "--device", "cpu", "--kernels", "--shapes", "1b,70b"]);
    fails(&unknown, "shape: expected 1b or 7b, found 70b");
    fails(&run(&["bench", "-m", "no/such.gguf"]), "no/such.gguf: ");
    fails(&cpu(&["--no-tune", "-p", "0", "-n", "0"]), "tests: expected");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let model = Model::new("pipe", &toy(None));
    let commands: [&[&str]; 6] = [
        &["generate", "--device", "cpu", "-p", "Hello", "-n", "200", "-m", model.path()],
        &["chat", "--device", "cpu", "-p", "Hello", "-n", "100", "-m", model.path()],
        &["inspect", "--device", "cpu", "-m", model.path(), "--json"],
        &["tokenize", "-p", "Hello", "-m", model.path()],
        &["devices"],
        &["completions", "bash"],
    ];
    for command in commands {
        let mut child = farpast(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(0), "{command:?}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_with_its_code() {
    let model = Model::new("interrupt", &toy(None));
    let long = Temporary::new("long.txt", "Once more. ".repeat(20_000).as_bytes());
    let arguments = ["perplexity", "--device", "cpu", "-m", model.path(), "-f", long.path()];
    let mut child = farpast(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    // From here on it computes.
    assert!(stderr.any(|line| line.unwrap().starts_with("memory ")));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "");
}

/// A file, removed after the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = temporary(&format!("cli-{name}"));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

struct Model(Temporary);

impl Model {
    fn new(name: &str, file: &GgufWriter) -> Self {
        Self(Temporary::new(&format!("{name}.gguf"), &file.write()))
    }

    fn path(&self) -> &str {
        self.0.path()
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Output {
        self.run_with(command, arguments, "")
    }

    fn run_with(&self, command: &str, arguments: &[&str], input: &str) -> Output {
        let mut command = farpast(&[&[command, "-m", self.path()], arguments].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // One that has failed already does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn weights(&self) -> Weights {
        Weights::from_bytes("toy.gguf", Bytes::new(fs::read(Path::new(self.path())).unwrap())).unwrap()
    }

    fn engine(&self, kv: Element) -> Engine {
        Engine::load(&self.weights(), &EngineOptions { kv, ..on_cpu() }, |_| ()).unwrap()
    }
}

fn on_cpu() -> EngineOptions {
    EngineOptions { backend: Backend::Cpu, batch: 32, ..EngineOptions::default() }
}

fn farpast(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpast"));
    command.args(arguments).stdin(Stdio::null()).env_remove("WGPU_ADAPTER_NAME");
    command
}

fn run(arguments: &[&str]) -> Output {
    farpast(arguments).output().unwrap()
}

/// What a successful run printed.
#[track_caller]
fn ok(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Exit code 1, one line that contains `part`, and nothing on standard output.
#[track_caller]
fn fails(output: &Output, part: &str) {
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{stderr}");
    let line = stderr.lines().last().unwrap_or_default();
    assert!(line.starts_with("error: ") && line.contains(part), "{part:?} in {stderr}");
    // Before the error there may only be what was loaded.
    assert!(stderr.lines().count() == 1 || stderr.starts_with("device  "), "{stderr}");
}

/// Exit code 2 and nothing on standard output.
#[track_caller]
fn usage(output: &Output) {
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{}", text(&output.stderr));
}

/// Of a line of a Markdown table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The largest memory that the process had, as the system counts it, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory(command: &mut Command) -> u64 {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kib) = line.and_then(|line| line.trim().strip_suffix(" kB")) {
            peak = kib.parse::<u64>().unwrap() << 10;
        }
        if let Some(exit) = child.try_wait().unwrap() {
            assert!(exit.success(), "{exit}");
            return peak;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_billion_weights_run_in_the_memory_of_their_file_and_600_mib() {
    let path = temporary("billion.gguf");
    fs::write(&path, billion().write()).unwrap();
    let size = fs::metadata(&path).unwrap().len();
    let arguments = ["generate", "-p", "Once", "-n", "2", "-c", "64", "-b", "16", "-m"];
    let peak = peak_memory(Command::new(env!("CARGO_BIN_EXE_farpast")).args(arguments).arg(&path));
    fs::remove_file(&path).unwrap();
    println!("{} MiB of a file of {} MiB", peak >> 20, size >> 20);
    assert!(size > 580 << 20 && peak > size / 2 && peak < size + (600 << 20), "{peak} bytes, the file has {size}");
}
