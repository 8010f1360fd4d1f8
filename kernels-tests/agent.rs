//! A model that calls tools, on a small one that a grammar makes call them.

use std::ops::ControlFlow;

use farpast::Error;
use farpast::agent::{self, Event, Limits, Tools};
use farpast::chat::{Conversation, End, template, tokenizer};
use farpast::constrain::{Constraint, Grammar, Grammars};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::{Bytes, Element};
use farpast::sampler::Sampling;
use farpast::text::{Chat, Message, Part};
use farpast::weights::Weights;
use serde_json::{Map, Value as Json, json};

use crate::toy_chat::toy;

/// As that of Qwen: calls are written in a spelling of its own, and results are turns of the user.
const TEMPLATE: &str = r#"{% for tool in tools or [] %}{{ tool.function.name }} <tool_call> {% endfor %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user
<tool_response>{{ m.content }}</tool_response><|im_end|>
{% elif m.tool_calls %}<|im_start|>assistant
{{ m.content or '' }}{% for call in m.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// In another spelling than the template's.
const CALL: &str = r#"<tool_call>{"name":"add",  "arguments":{"b":2,"a":1}}</tool_call>"#;

const CONTEXT: usize = 1024;

struct Model {
    engine: Engine,
    weights: Weights,
    grammars: Grammars,
}

impl Model {
    fn new(template: &str, backend: Backend) -> Self {
        let mut file = toy(Some(template));
        let context = file.fields.iter_mut().find(|field| field.key == b"llama.context_length").unwrap();
        context.value = (CONTEXT as u32).to_le_bytes().into();
        let weights = Weights::from_bytes("toy.gguf", Bytes::new(file.write())).unwrap();
        let options = EngineOptions { backend, batch: 32, kv: Element::F32, ..EngineOptions::default() };
        let engine = Engine::load(&weights, &options, |_| {}).unwrap();
        let grammars = Grammars::new(&tokenizer(&weights).unwrap(), engine.config().vocab).unwrap();
        Self { engine, weights, grammars }
    }

    fn conversation(&self) -> Conversation {
        Conversation::new(self.engine.session(), &self.weights, None).unwrap()
    }

    /// One that answers with one of these texts.
    fn answering(&self, texts: &[&str], seed: u64) -> Conversation {
        let mut conversation = self.conversation();
        conversation.constrain(Some(self.one_of(texts)));
        // Any is as likely.
        conversation.set_sampling(Sampling { temperature: 1e3, seed, ..Sampling::default() });
        conversation
    }

    fn one_of(&self, texts: &[&str]) -> Constraint {
        let texts: Vec<_> = texts.iter().map(|text| json!(text).to_string()).collect();
        self.grammars.constraint(&Grammar::Lark(format!("start: {}", texts.join(" | ")))).unwrap()
    }
}

/// A tool that adds, and how often it did.
struct Adding {
    tools: Vec<Json>,
    calls: usize,
    result: Option<String>,
}

impl Adding {
    fn new() -> Self {
        Self { tools: vec![json!({ "type": "function", "function": { "name": "add" } })], calls: 0, result: None }
    }
}

impl Tools for Adding {
    fn list(&self) -> &[Json] {
        &self.tools
    }

    fn call(&mut self, name: &str, arguments: Map<String, Json>) -> Result<String, String> {
        assert_eq!(name, "add");
        self.calls += 1;
        let number = |name: &str| arguments.get(name).and_then(Json::as_i64).ok_or_else(|| format!("no {name}"));
        let sum = number("a")? + number("b")?;
        Ok(self.result.clone().unwrap_or_else(|| sum.to_string()))
    }
}

fn any_event(_: Event) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn any_part(_: &Part) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn any_text(_: &str) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn result(text: &str) -> Message {
    Message::new("tool", text).with("name", "add").with("tool_call_id", "000000001")
}

/// What the model was told.
fn results(conversation: &Conversation) -> Vec<&str> {
    let results = conversation.messages().iter().filter(|message| message.role == "tool");
    results.map(|message| message.content.as_str().unwrap()).collect()
}

#[test]
fn behind_a_call_only_its_result_is_computed_and_the_logits_are_those_of_the_whole() {
    crate::harness::gpu();
    for backend in [Backend::Cpu, Backend::Gpu(crate::harness::device())] {
        let mut model = Model::new(TEMPLATE, backend);
        let mut conversation = model.answering(&[CALL], 1);
        conversation.set_tools(Adding::new().list()).unwrap();
        conversation.push(Message::new("user", "What is 1 + 2?"));
        let answer = conversation.answer(&mut model.engine, None, any_part).unwrap();
        assert_eq!((answer.end, answer.text.as_str(), answer.calls.len()), (End::Stop, "", 1));
        assert_eq!((answer.calls[0].name.as_str(), answer.calls[0].arguments.as_str()), ("add", r#"{"b":2,"a":1}"#));

        let (held, before) = (conversation.session().tokens().to_vec(), conversation.totals());
        assert_eq!(before.prefilled + answer_tokens(CALL) + 1, held.len());
        conversation.push(result("3"));
        conversation.constrain(None);
        conversation.answer(&mut model.engine, Some(1), any_part).unwrap();
        let (tokens, after) = (conversation.session().tokens(), conversation.totals());
        let (context, _) = tokens.split_at(tokens.len() - 1);
        // What the model drew stays as it was, and behind it stands what the template says of the result.
        assert_eq!(context[..held.len()], held);
        let new = "\n<|im_start|>user\n<tool_response>3</tool_response><|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(conversation.tokenizer().decode_with_control(&context[held.len()..]), new);
        // The end of the turn was drawn and not computed.
        assert_eq!(after.prefilled - before.prefilled, context.len() - held.len() + 1);
        assert_eq!((after.discarded, after.reused - before.reused), (0, held.len() - 1));

        let kept = model.engine.last_logits(1).unwrap().remove(0);
        let mut fresh = model.engine.session();
        fresh.push(context);
        let whole = model.engine.logits(&mut fresh).unwrap().pop().unwrap();
        let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&kept), bits(&whole), "{}", model.engine.device());
    }
}

/// The toy has a token for each byte.
fn answer_tokens(text: &str) -> usize {
    text.len()
}

#[test]
fn what_a_template_writes_otherwise_later_is_computed_again_and_counted() {
    // Earlier answers lose their beginning, as those of models that reason do.
    let forgetful =
        TEMPLATE.replace("{{ m.content }}<|im_end|>", "{{ m.content if loop.last else m.content[4:] }}<|im_end|>");
    let mut model = Model::new(&forgetful, Backend::Cpu);
    let mut conversation = model.answering(&["one two three"], 1);
    conversation.say(&mut model.engine, "Count", None, any_text).unwrap();
    assert_eq!(conversation.totals().discarded, 0);
    conversation.say(&mut model.engine, "Go on", Some(1), any_text).unwrap();
    assert!(conversation.totals().discarded > "two three".len(), "{:?}", conversation.totals());

    let tokenizer = tokenizer(&model.weights).unwrap();
    let chat = Chat { messages: &conversation.messages()[..3], add_generation_prompt: true, ..Chat::default() };
    let whole = template(&model.weights, &tokenizer).unwrap().encode(&tokenizer, &chat).unwrap();
    assert_eq!(conversation.session().tokens()[..whole.len()], whole);
    assert!(
        tokenizer.decode(&whole).contains("assistant\ntwo three") || tokenizer.decode(&whole).contains(" two three")
    );
}

#[test]
fn tools_are_run_until_the_model_answers_without() {
    let mut model = Model::new(TEMPLATE, Backend::Cpu);
    let texts = [CALL, "It is three."];
    for seed in 0..64 {
        let (mut conversation, mut tools) = (model.answering(&texts, seed), Adding::new());
        let mut events = Vec::new();
        let answer =
            agent::ask(&mut model.engine, &mut conversation, &mut tools, "1 + 2?", &Limits::default(), |event| {
                match event {
                    Event::Part(Part::Text(text)) if text.is_empty() => {}
                    Event::Part(Part::Text(text)) => events.push(format!("text {text}")),
                    Event::Part(_) => {}
                    Event::Call(call) => events.push(format!("call {} {}", call.name, call.arguments)),
                    Event::Result(_, result) => events.push(format!("result {result}")),
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!((answer.end, answer.text.as_str()), (End::Stop, "It is three."));
        let roles: Vec<_> = conversation.messages().iter().map(|message| message.role.as_str()).collect();
        let rounds = ["assistant", "tool"].repeat(tools.calls);
        assert_eq!(roles, [&["user"], rounds.as_slice(), &["assistant"]].concat());
        // Nothing was computed twice, in as many rounds as there were.
        let totals = conversation.totals();
        assert_eq!(totals.discarded, 0);
        if tools.calls == 1 {
            assert_eq!(events[..2], [r#"call add {"b":2,"a":1}"#, "result 3"]);
            assert_eq!(events[2..].iter().map(|text| &text[5..]).collect::<String>(), "It is three.");
            let call = &conversation.messages()[1];
            assert_eq!(call.content, Json::Null);
            assert_eq!(call.extra["tool_calls"][0]["function"]["arguments"], json!({ "a": 1, "b": 2 }));
            assert_eq!(conversation.messages()[2], result("3"));
            return;
        }
    }
    panic!("no seed calls once");
}

#[test]
fn rounds_are_limited_and_the_calls_left_are_answered() {
    let mut model = Model::new(TEMPLATE, Backend::Cpu);
    let (mut conversation, mut tools) = (model.answering(&[CALL], 1), Adding::new());
    let limits = Limits { rounds: 2, ..Limits::default() };
    let answer = agent::ask(&mut model.engine, &mut conversation, &mut tools, "?", &limits, any_event).unwrap();
    assert_eq!((answer.end, tools.calls), (End::Rounds, 2));
    assert_eq!(results(&conversation), ["3", "3", "error: the tool was not run"]);
    conversation.constrain(Some(model.one_of(&["Well."])));
    let answer = agent::ask(&mut model.engine, &mut conversation, &mut tools, "And?", &limits, any_event).unwrap();
    assert_eq!((answer.end, answer.text.as_str()), (End::Stop, "Well."));
}

#[test]
fn what_is_wrong_with_a_call_is_told_to_the_model() {
    let mut model = Model::new(TEMPLATE, Backend::Cpu);
    let written = |call: &str| format!("<tool_call>{call}</tool_call>");
    for (call, expected) in [
        (r#"{"name": "sub", "arguments": {}}"#, r#"error: there is no tool "sub", only add"#),
        (r#"{"name": "add", "arguments": {a: 1}}"#, "error: the arguments are no JSON object: key must be a string"),
        (r#"{"name": "add", "arguments": [1, 2]}"#, "error: the arguments are no JSON object: invalid type: sequence"),
        (r#"{"name": "add", "arguments": {"a": 1}}"#, "error: no b"),
        (r#"{"name": "add"}"#, "error: no a"),
        // Never whole.
        (r#"{"name": "add", "arguments": {"a": "#, "error: the arguments are no JSON object: expected value"),
    ] {
        let (mut conversation, mut tools) = (model.answering(&[&written(call)], 1), Adding::new());
        let limits = Limits { rounds: 1, ..Limits::default() };
        let answer = agent::ask(&mut model.engine, &mut conversation, &mut tools, "?", &limits, any_event).unwrap();
        assert_eq!(answer.end, End::Rounds, "{call}");
        let told = results(&conversation);
        assert!(told[0].starts_with(expected), "{call}: {}", told[0]);
    }
}

#[test]
fn long_results_are_cut_to_bytes_and_to_a_quarter_of_the_context() {
    let mut model = Model::new(TEMPLATE, Backend::Cpu);
    for (limit, kept) in [(11, 10), (100_000, CONTEXT / 4)] {
        let (mut conversation, mut tools) = (model.answering(&[CALL], 1), Adding::new());
        tools.result = Some("ü".repeat(1000));
        let limits = Limits { rounds: 1, result: limit, ..Limits::default() };
        agent::ask(&mut model.engine, &mut conversation, &mut tools, "?", &limits, any_event).unwrap();
        let expected = format!("{}\n[cut off after {kept} of 2000 bytes]", "ü".repeat(kept / 2));
        assert_eq!(results(&conversation)[0], expected);
    }
}

#[test]
fn breaking_off_leaves_calls_answered_and_the_conversation_goes_on() {
    let mut model = Model::new(TEMPLATE, Backend::Cpu);
    let (mut conversation, mut tools) = (model.answering(&[CALL], 1), Adding::new());
    let stop = |event: Event| match event {
        Event::Call(_) => ControlFlow::Break(()),
        Event::Part(_) | Event::Result(..) => ControlFlow::Continue(()),
    };
    let limits = Limits::default();
    let answer = agent::ask(&mut model.engine, &mut conversation, &mut tools, "?", &limits, stop).unwrap();
    assert_eq!((answer.end, tools.calls), (End::Interrupted, 0));
    assert_eq!(results(&conversation), ["error: the tool was not run"]);
    conversation.constrain(Some(model.one_of(&["Well."])));
    let answer = agent::ask(&mut model.engine, &mut conversation, &mut tools, "And?", &limits, stop).unwrap();
    assert_eq!(answer.text, "Well.");
    assert_eq!(conversation.messages().len(), 5);
}

#[test]
fn one_can_break_off_while_a_call_is_written() {
    let mut model = Model::new(TEMPLATE, Backend::Cpu);
    let mut conversation = model.answering(&[CALL], 1);
    conversation.set_tools(Adding::new().list()).unwrap();
    conversation.push(Message::new("user", "?"));
    let mut drawn = 0;
    let answer = conversation.answer(&mut model.engine, None, |_| {
        drawn += 1;
        if drawn == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let answer = answer.unwrap();
    assert_eq!((answer.end, answer.calls.len()), (End::Interrupted, 0));
    // No part of it has been told apart yet, of 9 or, with those of the prompt, fewer.
    let text = conversation.messages()[1].content.as_str().unwrap();
    assert!(!text.is_empty() && text.len() <= 9 && CALL.starts_with(text), "{text}");
}

#[test]
fn an_answer_cut_off_within_a_call_calls_nothing() {
    let mut model = Model::new(TEMPLATE, Backend::Cpu);
    let (mut conversation, mut tools) = (model.answering(&[CALL], 1), Adding::new());
    let limits = Limits { tokens: Some(CALL.len() - 8), ..Limits::default() };
    let answer = agent::ask(&mut model.engine, &mut conversation, &mut tools, "?", &limits, any_event).unwrap();
    assert_eq!((answer.end, answer.calls.len(), tools.calls), (End::Limit, 0, 0));
    assert_eq!(conversation.messages()[1], Message::new("assistant", &CALL[..CALL.len() - 8]));
}

#[test]
fn a_template_that_says_nothing_of_tools_is_refused() {
    let mut model = Model::new(farpast::text::CHATML, Backend::Cpu);
    let mut conversation = model.conversation();
    let limits = Limits::default();
    let refused = agent::ask(&mut model.engine, &mut conversation, &mut Adding::new(), "?", &limits, any_event);
    assert!(matches!(&refused, Err(Error::Request { what, .. }) if what == "tools"), "{refused:?}");
    assert!(conversation.messages().is_empty());
    conversation.constrain(Some(model.one_of(&["Well."])));
    let answer = agent::ask(&mut model.engine, &mut conversation, &mut (), "?", &limits, any_event).unwrap();
    assert_eq!(answer.text, "Well.");
}
