//! Tools of MCP servers, against one in Python that does well, badly, or not at all.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use farpast::agent::Tools;
use farpast::chat::{Conversation, End};
use farpast::constrain::{Grammar, Grammars};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::mcp::{Limits, ServerCommand, Servers};
use farpast::sampler::Sampling;
use farpast::text::{Message, Part};
use farpast::weights::Weights;
use serde_json::{Value as Json, json};

use crate::model::checkpoint;
use crate::toy_chat::temporary;

/// The server in a mode of its own.
pub fn server(mode: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels-tests/mcp_server.py");
    format!("python3 '{}' {mode}", file.display())
}

fn start(lines: &[String], limits: Limits) -> farpast::Result<Servers> {
    let commands: Vec<_> = lines.iter().map(|line| ServerCommand::parse(line).unwrap()).collect();
    Servers::start(&commands, limits)
}

fn call(servers: &mut Servers, name: &str, arguments: Json) -> Result<String, String> {
    servers.call(name, arguments.as_object().unwrap().clone())
}

fn names(servers: &Servers) -> Vec<&str> {
    servers.list().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect()
}

#[test]
fn tools_are_listed_and_called() {
    let mut servers = start(&[server("")], Limits::default()).unwrap();
    // From both pages of the list.
    assert_eq!(names(&servers)[..4], ["add", "weather", "variable", "fail"]);
    let number = json!({ "type": "number" });
    let parameters = json!({ "type": "object", "properties": { "a": number, "b": number }, "required": ["a", "b"] });
    let function = json!({ "name": "add", "description": "Adds two numbers", "parameters": parameters });
    assert_eq!(servers.list()[0], json!({ "type": "function", "function": function }));
    assert_eq!(call(&mut servers, "add", json!({ "a": 1.5, "b": 2 })), Ok("3.5".into()));
    assert_eq!(call(&mut servers, "weather", json!({ "city": "Köln" })), Ok("Köln: 31 °C, thunderstorm".into()));
    assert_eq!(call(&mut servers, "structured", json!({})), Ok(r#"{"degrees":31}"#.into()));
    assert_eq!(call(&mut servers, "picture", json!({})), Ok("[an image, image/png, not shown]\na cat".into()));
    assert_eq!(call(&mut servers, "long", json!({ "bytes": 1 << 20 })).map(|text| text.len()), Ok(1 << 20));
}

#[test]
fn what_goes_wrong_in_a_tool_is_its_answer() {
    let mut servers = start(&[server("")], Limits::default()).unwrap();
    assert_eq!(call(&mut servers, "fail", json!({})), Err("the disk is full".into()));
    assert_eq!(call(&mut servers, "refuse", json!({})), Err("no such thing: refuse".into()));
    assert_eq!(call(&mut servers, "unknown", json!({})), Err("there is no tool unknown".into()));
    let ended = call(&mut servers, "die", json!({})).unwrap_err();
    assert!(ended.contains("closed") && ended.ends_with("its last words: out of ideas"), "{ended}");
    // It stays so.
    assert!(call(&mut servers, "add", json!({ "a": 1, "b": 2 })).is_err());
}

#[test]
fn a_tool_that_never_answers_is_given_up() {
    let limits = Limits { call: Duration::from_millis(300), ..Limits::default() };
    let began = Instant::now();
    let mut servers = start(&[server("")], limits).unwrap();
    assert_eq!(call(&mut servers, "sleep", json!({})), Err("it took more than 300ms".into()));
    // More than a message may have.
    let mut servers = start(&[server("")], limits).unwrap();
    assert_eq!(call(&mut servers, "long", json!({ "bytes": 20 << 20 })), Err("it took more than 300ms".into()));

    let limits = Limits { interrupted: || true, ..Limits::default() };
    let mark = format!("farpast-test-{}", std::process::id());
    let mut interrupted = start(&[server(&format!("sleep {mark}"))], limits).unwrap();
    assert_eq!(call(&mut interrupted, "sleep", json!({})), Err("the user broke it off".into()));
    // One that sleeps on does not outlive what started it, nor hold it up.
    assert!(!cfg!(target_os = "linux") || is_running(&mark));
    drop((servers, interrupted));
    // One that is killed is gone a moment later.
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !is_running(&mark)
    });
    assert!(gone);
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
}

/// Whether a process has this argument.
fn is_running(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut commands = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    commands.any(|command| command.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
}

#[test]
fn two_tools_of_one_name_have_two_names() {
    let mut servers = start(&[server(""), server("")], Limits::default()).unwrap();
    let all = names(&servers);
    assert_eq!((all[0], all[all.len() / 2]), ("add", "add_2"));
    assert_eq!(call(&mut servers, "add_2", json!({ "a": 1, "b": 2 })), Ok("3".into()));
}

#[test]
fn servers_that_do_not_start_are_errors_that_name_them() {
    for (line, seconds, part) in [
        ("no-such-program-of-farpast x".into(), 60, "no-such-program-of-farpast is not found"),
        (server("ends"), 60, "its last words: no licence"),
        (server("endless"), 60, "it has more than 128 tools"),
        (server("mute"), 2, "it took more than 2s to start"),
        ("cat".into(), 2, ""),
    ] {
        let limits = Limits { start: Duration::from_secs(seconds), ..Limits::default() };
        let error = start(std::slice::from_ref(&line), limits).err().unwrap_or_else(|| panic!("{line} has started"));
        let text = error.to_string();
        assert!(text.starts_with(&format!("MCP server {line}: ")) && text.contains(part), "{text}");
    }
    for line in ["", "'open"] {
        assert!(ServerCommand::parse(line).is_err(), "{line}");
    }
}

#[test]
fn configurations_are_those_of_other_programs() {
    let path = temporary("mcp.json");
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        let read = ServerCommand::read(&path);
        fs::remove_file(&path).unwrap();
        read
    };
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels-tests/mcp_server.py");
    let entry = json!({ "command": "python3", "args": [file], "env": { "COLOUR": "blue" }, "alwaysAllow": [] });
    let off = json!({ "command": "none", "disabled": true });
    let commands = read(&json!({ "mcpServers": { "test": entry, "off": off } }).to_string()).unwrap();
    assert_eq!(commands.len(), 1);
    assert_eq!((commands[0].name.as_str(), commands[0].command.as_str()), ("test", "python3"));
    let mut servers = Servers::start(&commands, Limits::default()).unwrap();
    assert_eq!(call(&mut servers, "variable", json!({ "name": "COLOUR" })), Ok("blue".into()));
    for (text, part) in [
        ("{", "expected JSON"),
        ("{}", "mcpServers: expected an object of servers"),
        (r#"{"mcpServers": {"web": {"url": "http://localhost"}}}"#, "mcpServers.web: expected command"),
        (r#"{"mcpServers": {"x": {"command": 3}}}"#, "mcpServers.x: expected command"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(ServerCommand::read(&path).is_err());
}

/// The model is too small to leave off calling by itself; how an answer begins is given, and what it says is up to the model.
#[test]
fn a_packaged_model_calls_a_tool_and_answers_with_what_it_says() {
    let mut servers = start(&[server("weather")], Limits::default()).unwrap();
    assert_eq!(names(&servers), ["weather"]);
    crate::harness::gpu();
    let weights = Weights::open(checkpoint("qwen2.5-coder-0.5b")).unwrap();
    let backend = Backend::Gpu(crate::harness::device());
    let mut engine =
        Engine::load(&weights, &EngineOptions { backend, context: 512, ..Default::default() }, |_| ()).unwrap();
    let mut conversation = Conversation::new(engine.session(), &weights, None).unwrap();
    conversation.set_sampling(Sampling { temperature: 0.0, ..Sampling::default() });
    conversation.set_tools(servers.list()).unwrap();
    conversation.push(Message::new("user", "How warm is it in Rome right now?"));
    let go_on = |_: &Part| ControlFlow::Continue(());
    let answer = conversation.answer(&mut engine, Some(60), go_on).unwrap();
    let [asked] = answer.calls.as_slice() else { panic!("{answer:?}") };
    let arguments: Json = serde_json::from_str(&asked.arguments).unwrap();
    assert_eq!((answer.end, asked.name.as_str(), &arguments), (End::Stop, "weather", &json!({ "city": "Rome" })));

    let (held, before) = (conversation.tokens(), conversation.totals());
    let told = call(&mut servers, "weather", arguments).unwrap();
    conversation.push(Message::new("tool", told).with("name", "weather").with("tool_call_id", asked.id.as_str()));
    let grammar = Grammar::Lark(r#"start: "It is " /[0-9]{1,3}/ " degrees.""#.into());
    let grammars = Grammars::new(conversation.tokenizer(), engine.config().vocab).unwrap();
    conversation.constrain(Some(grammars.constraint(&grammar).unwrap()));
    let answer = conversation.answer(&mut engine, Some(60), go_on).unwrap();
    assert_eq!((answer.end, answer.text.as_str()), (End::Stop, "It is 31 degrees."));
    let (after, drawn) = (conversation.totals(), answer_tokens(&conversation, "It is 31 degrees."));
    println!("{held} tokens, then {} for the result and {drawn} drawn: {after:?}", after.prefilled - before.prefilled);
    // The end of the first turn, the result, and nothing twice.
    assert_eq!((after.prefilled - before.prefilled, after.discarded), (conversation.tokens() - drawn - held + 1, 0));
}

/// Tokens of an answer, with its end.
fn answer_tokens(conversation: &Conversation, text: &str) -> usize {
    let tokens = conversation.session().tokens();
    let decoded = |n: &usize| conversation.tokenizer().decode(&tokens[tokens.len() - n..]) == text;
    (2..tokens.len()).find(decoded).unwrap()
}
