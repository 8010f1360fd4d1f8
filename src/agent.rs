//! A model that calls tools: what it asks for is run, what comes of it is told to the model, and the model goes on.
//!
//! A turn that ends in calls is a pause: the session keeps its pages while the tools run, and of the next turn only the results are
//! computed. Where the chat template writes earlier turns otherwise once there are results, what differs is computed again;
//! [`Totals::discarded`](crate::chat::Totals::discarded) counts it.

use std::ops::ControlFlow;

use serde_json::{Map, Value as Json};

use crate::chat::{Answer, Conversation, End, ToolCall};
use crate::engine::Engine;
use crate::error::Result;
use crate::text::{Message, Part, Special, Tokenizer};

/// Tools that a model may call.
pub trait Tools {
    /// The functions, as OpenAI's API describes them: name, description and a JSON schema of the parameters.
    fn list(&self) -> &[Json];

    /// Runs one of them. What went wrong is told to the model, as a result is.
    fn call(&mut self, name: &str, arguments: Map<String, Json>) -> Result<String, String>;
}

/// No tools.
impl Tools for () {
    fn list(&self) -> &[Json] {
        &[]
    }

    fn call(&mut self, name: &str, _: Map<String, Json>) -> Result<String, String> {
        Err(format!("there is no tool {name}"))
    }
}

/// How far a model may go with tools.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Turns that end in calls which are run.
    pub rounds: usize,
    /// Bytes of a result that the model is told; nor is it told more than a quarter of the context in a turn. The rest is cut off, with
    /// a note that says so.
    pub result: usize,
    /// Tokens of a turn; `None`: no limit.
    pub tokens: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rounds: 16, result: 32 << 10, tokens: None }
    }
}

/// What happens on the way to an answer.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// More of a turn: text, empty while the prompt is computed, or a call as it is written.
    Part(&'a Part),
    /// The turn is over, and this call is about to be run.
    Call(&'a ToolCall),
    /// What the model is told of it.
    Result(&'a ToolCall, &'a str),
}

/// Sends `text` as the user, and runs the tools that the model calls until it answers without. That last turn is returned; all go to
/// `event` as they come, which may break off.
///
/// Arguments that are no JSON and tools that do not exist are errors that the model is told. After as many rounds as may be, and after
/// breaking off, calls are answered as not run. On an error the messages are as before.
pub fn ask(
    engine: &mut Engine,
    conversation: &mut Conversation,
    tools: &mut dyn Tools,
    text: &str,
    limits: &Limits,
    event: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<Answer> {
    conversation.set_tools(tools.list())?;
    let before = conversation.messages().to_vec();
    conversation.push(Message::new("user", text));
    let answer = rounds(engine, conversation, tools, limits, event);
    if answer.is_err() {
        conversation.set_messages(before);
    }
    answer
}

fn rounds(
    engine: &mut Engine,
    conversation: &mut Conversation,
    tools: &mut dyn Tools,
    limits: &Limits,
    mut event: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<Answer> {
    let (mut round, mut dropped) = (0, 0);
    loop {
        let mut answer = conversation.answer(engine, limits.tokens, |part| event(Event::Part(part)))?;
        dropped += answer.dropped;
        answer.dropped = dropped;
        if answer.calls.is_empty() {
            return Ok(answer);
        }
        let mut end = (round == limits.rounds).then_some(End::Rounds);
        round += 1;
        let tokens = engine.capacity().context / 4 / answer.calls.len();
        for call in &answer.calls {
            if end.is_none() && event(Event::Call(call)).is_break() {
                end = Some(End::Interrupted);
            }
            let result = match end {
                None => run(tools, call).unwrap_or_else(|e| format!("error: {e}")),
                Some(_) => "error: the tool was not run".into(),
            };
            let result = cut(result, limits.result, tokens, conversation.tokenizer())?;
            if end.is_none() && event(Event::Result(call, &result)).is_break() {
                end = Some(End::Interrupted);
            }
            let (name, id) = (call.name.as_str(), call.id.as_str());
            conversation.push(Message::new("tool", result).with("name", name).with("tool_call_id", id));
        }
        if let Some(end) = end {
            return Ok(Answer { end, ..answer });
        }
    }
}

fn run(tools: &mut dyn Tools, call: &ToolCall) -> Result<String, String> {
    let names: Vec<_> = tools.list().iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
    if !names.contains(&call.name.as_str()) {
        return Err(format!("there is no tool {:?}, only {}", call.name, names.join(", ")));
    }
    let arguments = serde_json::from_str(&call.arguments);
    let arguments = arguments.map_err(|e| format!("the arguments are no JSON object: {e}"))?;
    tools.call(&call.name, arguments)
}

/// The text, or as much of its beginning as so many bytes and tokens hold, with a note.
fn cut(mut text: String, bytes: usize, tokens: usize, tokenizer: &Tokenizer) -> Result<String> {
    let all = text.len();
    text.truncate((0..=bytes.min(all)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
    let ids = tokenizer.encode(&text, Special::AsText)?;
    if ids.len() > tokens {
        // The last character may be cut in two.
        text = tokenizer.decode(&ids[..tokens]).trim_end_matches(char::REPLACEMENT_CHARACTER).into();
    }
    if text.len() < all {
        let kept = text.len();
        text.push_str(&format!("\n[cut off after {kept} of {all} bytes]"));
    }
    Ok(text)
}
