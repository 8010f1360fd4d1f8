//! Output that follows a grammar: on a small model that would draw anything else.

use std::ops::ControlFlow;

use farpast::Error;
use farpast::chat::{generate, tokenizer};
use farpast::constrain::{Constraint, GRAMMAR_BYTES, Grammar, Grammars};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::Bytes;
use farpast::sampler::Sampling;
use farpast::text::{StreamDecoder, Tokenizer, ToolStyle};
use farpast::weights::Weights;
use serde_json::{Value as Json, json};

use crate::toy_chat::toy;

struct Model {
    engine: Engine,
    tokenizer: Tokenizer,
    grammars: Grammars,
}

impl Model {
    fn new(backend: Backend) -> Self {
        crate::harness::gpu();
        let weights = Weights::from_bytes("toy.gguf", Bytes::new(toy(None).write())).unwrap();
        let options = EngineOptions { backend, batch: 64, sequences: 3, ..EngineOptions::default() };
        let engine = Engine::load(&weights, &options, |_| ()).unwrap();
        let tokenizer = tokenizer(&weights).unwrap();
        let grammars = Grammars::new(&tokenizer, engine.config().vocab).unwrap();
        Self { engine, tokenizer, grammars }
    }

    fn on_gpu() -> Self {
        Self::new(Backend::Gpu(crate::harness::device()))
    }

    fn constraint(&self, grammar: &Grammar) -> Constraint {
        self.grammars.constraint(grammar).unwrap()
    }

    /// The token that is this byte.
    fn id(&self, byte: u8) -> u32 {
        (0..self.tokenizer.len() as u32).find(|id| self.tokenizer.token_bytes(*id) == [byte]).unwrap()
    }

    /// What is drawn under `grammar`, up to its end.
    fn text(&mut self, grammar: &Grammar, seed: u64) -> String {
        let mut session = self.engine.session();
        session.sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        session.push(&[70, 71, 72]);
        session.constrain(Some(self.constraint(grammar)));
        let Self { engine, tokenizer, .. } = self;
        let each = |_: &str| ControlFlow::Continue(());
        generate(engine, &mut session, tokenizer, StreamDecoder::continuing(), Some(160), each).unwrap().text
    }
}

fn person() -> Json {
    json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 6 }, "age": { "type": "integer", "minimum": 0, "maximum": 150 } },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[test]
fn what_is_drawn_is_what_the_schema_describes() {
    for backend in [Backend::Gpu(crate::harness::device()), Backend::Cpu] {
        let mut model = Model::new(backend);
        for seed in 0..6 {
            let text = model.text(&Grammar::JsonSchema(person()), seed);
            let json: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(json["name"].as_str().is_some_and(|name| name.chars().count() <= 6), "{text}");
            assert!(json["age"].as_u64().is_some_and(|age| age <= 150), "{text}");
            assert_eq!(json.as_object().unwrap().len(), 2, "{text}");
        }
    }
}

#[test]
fn regexes_and_grammars_are_followed_to_their_end() {
    let mut model = Model::on_gpu();
    let several = |all: Vec<String>| all.iter().collect::<std::collections::HashSet<_>>().len() > 1;
    let mut drawn = |grammar: &Grammar| (0..8).map(|seed| model.text(grammar, seed)).collect::<Vec<_>>();
    let dates = drawn(&Grammar::Regex("20[0-9]{2}-(0[1-9]|1[0-2])".into()));
    for date in &dates {
        let month =
            date.strip_prefix("20").and_then(|rest| rest.split_once('-')).map(|(y, m)| (y.len(), m.parse::<u32>()));
        assert!(matches!(month, Some((2, Ok(1..=12)))), "{date}");
    }
    assert!(several(dates), "what is allowed is drawn as the model has it");
    let words = drawn(&Grammar::Lark("start: word (\" \" word)*\nword: \"yes\" | \"no\"".into()));
    let begins = |word: &str| "yes".starts_with(word) || "no".starts_with(word);
    assert!(words.iter().all(|text| !text.is_empty() && text.split(' ').all(begins)), "{words:?}");
    let one = drawn(&Grammar::Regex("just this".into()));
    assert!(one.iter().all(|text| text == "just this"), "{one:?}");
}

#[test]
fn any_object_of_json_is_one() {
    let model = Model::on_gpu();
    let constraint = model.constraint(&Grammar::JsonObject);
    let follow = |text: &str| {
        let mut constraint = constraint.clone();
        text.bytes()
            .map(|byte| model.id(byte))
            .all(|id| constraint.allowed().is_ok_and(|set| set.contains(id)) && constraint.take(id).is_ok())
    };
    assert!(follow("{\"a\": [1, null, {\"b\": \"\\n é\"}], \"c\": -1.5e3}"));
    for wrong in ["[1]", "{a", "{\"a\":,", "{\"a\": 01", "text"] {
        assert!(!follow(wrong), "{wrong}");
    }
}

/// Constrained and free sessions in one step, steps and decoding, rewound and forked: each gets what it gets alone.
#[test]
fn a_constraint_holds_for_its_session_alone_however_it_is_stepped() {
    let mut model = Model::on_gpu();
    let grammar = Grammar::Regex("[0-9]{40}".into());
    let session = |model: &Model, constrained: bool| {
        let mut session = model.engine.session();
        session.sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
        session.push(&[80, 81]);
        session.constrain(constrained.then(|| model.constraint(&grammar)));
        session
    };
    let alone = |model: &mut Model, constrained: bool| {
        let mut session = session(model, constrained);
        (0..20).for_each(|_| _ = model.engine.step(&mut [&mut session]).unwrap());
        session.tokens()[2..].to_vec()
    };
    let (free, bound) = (alone(&mut model, false), alone(&mut model, true));
    assert!(bound.iter().all(|id| model.tokenizer.token_bytes(*id).iter().all(u8::is_ascii_digit)), "{bound:?}");
    assert_ne!(free, bound);
    let (mut a, mut b) = (session(&model, false), session(&model, true));
    model.engine.step(&mut [&mut a, &mut b]).unwrap();
    model.engine.decode(&mut [&mut a, &mut b], 19, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((&a.tokens()[2..], &b.tokens()[2..]), (&free[..], &bound[..]));
    b.rewind(9);
    let mut fork = b.fork();
    for session in [&mut b, &mut fork] {
        model.engine.step(&mut [&mut *session]).unwrap();
        model.engine.decode(&mut [&mut *session], 11, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(&session.tokens()[2..], &bound[..19]);
    }
    // What does not follow is an error, and nothing is drawn.
    b.push(&[model.id(b'x')]);
    let before = b.tokens().len();
    assert!(matches!(model.engine.step(&mut [&mut b]), Err(Error::Request { .. })));
    assert!(matches!(model.engine.step(&mut [&mut b]), Err(Error::Request { .. })), "and stays one");
    assert_eq!(b.tokens().len(), before);
}

#[test]
fn after_its_end_only_the_end_of_the_turn_may_come() {
    let model = Model::on_gpu();
    let mut constraint = model.constraint(&Grammar::Regex("a".into()));
    let a = model.id(b'a');
    assert!(constraint.allowed().unwrap().contains(a));
    constraint.take(a).unwrap();
    let allowed = constraint.allowed().unwrap();
    let vocab = model.engine.config().vocab as u32;
    let ids: Vec<_> = (0..vocab).filter(|id| allowed.contains(*id)).collect();
    assert_eq!(ids, model.tokenizer.stop_ids());
    constraint.rewind(1);
    assert!(constraint.allowed().unwrap().contains(a));
}

#[test]
fn grammars_that_cannot_be_honoured_are_refused() {
    let model = Model::on_gpu();
    let schemas = [
        json!(5),
        json!(false),
        json!({ "type": "nonsense" }),
        json!({ "type": "array", "uniqueItems": true }),
        json!({ "not": { "type": "string" } }),
        json!({ "$ref": "http://example.com/schema.json" }),
        json!({ "type": "string", "pattern": "(" }),
        json!({ "enum": ["x".repeat(GRAMMAR_BYTES)] }),
    ];
    let others = [
        Grammar::Regex("(".into()),
        Grammar::Regex("x".repeat(GRAMMAR_BYTES + 1)),
        Grammar::Lark("start: nothing".into()),
        Grammar::Lark(String::new()),
    ];
    for grammar in schemas.into_iter().map(Grammar::JsonSchema).chain(others) {
        let e = model
            .grammars
            .constraint(&grammar)
            .expect_err(&format!("{grammar:?}").chars().take(80).collect::<String>());
        assert!(matches!(e, Error::Request { .. }), "{e}");
    }
}

#[test]
fn forced_calls_are_calls_in_every_style() {
    let mut model = Model::on_gpu();
    let tool = |name: &str, parameters: Json| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let tools = [tool("greet", person()), tool("stop \"it\"", json!(null))];
    for style in [ToolStyle::Hermes, ToolStyle::Mistral, ToolStyle::Llama3, ToolStyle::Json] {
        for (seed, tools) in [(0, &tools[..1]), (1, &tools[..1]), (2, &tools[..])] {
            let lark = style.grammar(tools, &model.tokenizer);
            let text = model.text(&Grammar::Lark(lark), seed);
            if text.chars().count() > 120 {
                continue;
            }
            let mut calls = farpast::text::ToolCalls::new(style, vec!["greet".into(), "stop \"it\"".into()]);
            let mut parts = calls.push(&text);
            parts.extend(calls.finish());
            assert_eq!(calls.calls(), 1, "{style:?}: {text}: {parts:?}");
        }
    }
}
