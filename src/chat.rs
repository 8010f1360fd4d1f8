//! A conversation with a model: messages in, pieces of text and calls of tools out.
//!
//! Each turn renders all messages with the model's chat template. What the session already holds of the resulting tokens is
//! not computed again, nor are answers whose tokens the template would write otherwise than the model did: they stay as they were
//! drawn, and only what follows them is new. When all no longer fits, the oldest turns are left out; the system message stays.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::constrain::Constraint;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sampler::Sampling;
use crate::session::{Session, common};
use crate::speculation::Speculation;
use crate::text::{Chat, ChatTemplate, Message, Part, StreamDecoder, Tokenizer, ToolCalls, ToolStyle, Vocabulary};
use crate::weights::{Metadata, Weights};

/// The tokenizer that the checkpoint describes: in its metadata, or in the folder that it is or lies in.
pub fn tokenizer(weights: &Weights) -> Result<Tokenizer> {
    if let Some(folder) = folder(weights) {
        return Tokenizer::from_folder(folder);
    }
    let m = weights.metadata();
    let id = |name: &str| m.optional(&format!("tokenizer.ggml.{name}_token_id"), Metadata::u32);
    let token_types = m.optional("tokenizer.ggml.token_type", Metadata::i32s)?;
    let scores = m.optional("tokenizer.ggml.scores", Metadata::f32s)?;
    Tokenizer::new(&Vocabulary {
        model: m.string("tokenizer.ggml.model")?,
        pre: m.optional("tokenizer.ggml.pre", Metadata::string)?,
        tokens: m.strings("tokenizer.ggml.tokens")?.collect(),
        token_types: &token_types.into_iter().flatten().collect::<Vec<_>>(),
        scores: &scores.into_iter().flatten().collect::<Vec<_>>(),
        merges: m.optional("tokenizer.ggml.merges", Metadata::strings)?.into_iter().flatten().collect(),
        strips_after_control: m.optional("general.architecture", Metadata::string)? == Some("phi3")
            && m.string("tokenizer.ggml.model")? == "llama",
        add_space_prefix: m.optional("tokenizer.ggml.add_space_prefix", Metadata::bool)?,
        add_bos: m.optional("tokenizer.ggml.add_bos_token", Metadata::bool)?,
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        pad: id("padding")?,
    })
}

/// The chat template of the checkpoint, from the same place.
pub fn template(weights: &Weights, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    if let Some(folder) = folder(weights) {
        return ChatTemplate::from_folder(folder, tokenizer);
    }
    let m = weights.metadata();
    let template = ChatTemplate::for_model(m.optional("tokenizer.chat_template", Metadata::string)?, tokenizer)?;
    match m.optional("tokenizer.chat_template.tool_use", Metadata::string)? {
        Some(source) => template.with_tool_use(source),
        None => Ok(template),
    }
}

/// The folder of the files that go with a safetensors checkpoint; none for GGUF, which has all in one.
fn folder(weights: &Weights) -> Option<&Path> {
    let path = weights.path();
    let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
    if path.is_dir() { Some(path) } else { path.parent().filter(|_| is_safetensors) }
}

/// Messages so far, and the session that holds their tokens.
pub struct Conversation {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Vec<Message>,
    /// Functions that the model may call, and how it does.
    tools: Vec<Json>,
    style: Option<ToolStyle>,
    /// Calls so far.
    calls: usize,
    session: Session,
    /// So many messages, the last an answer that the model ended, are what the session's tokens say.
    held: Option<usize>,
    /// What each answer must follow.
    constraint: Option<Constraint>,
    totals: Totals,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// The model ended its turn.
    Stop,
    /// The limit on the answer's tokens.
    Limit,
    /// No position is left.
    Context,
    /// The caller broke off.
    Interrupted,
    /// The limit on rounds of tool calls.
    Rounds,
}

/// What came of one turn.
#[derive(Clone, Debug)]
pub struct Answer {
    /// All pieces together, without calls.
    pub text: String,
    /// What the model wants to call. None unless it ended its turn.
    pub calls: Vec<ToolCall>,
    /// Why it is over.
    pub end: End,
    /// Messages that were left out from now on because the context was full.
    pub dropped: usize,
}

/// A call of a tool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ToolCall {
    /// What the answer to it must name.
    pub id: String,
    /// The tool, as the model calls it: there may be none of that name.
    pub name: String,
    /// JSON as the model wrote it, right or wrong.
    pub arguments: String,
}

/// Work done by a conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Prompt tokens that the session already held.
    pub reused: usize,
    /// Prompt tokens computed.
    pub prefilled: usize,
    /// Tokens computed before that were given up: the template wrote earlier turns otherwise, or the context was full.
    pub discarded: usize,
    /// Time for the prompts, up to the first token of the answer.
    pub prefill: Duration,
    /// Tokens of answers after the first.
    pub decoded: usize,
    /// Time for those.
    pub decode: Duration,
}

impl Conversation {
    /// Without messages but for the system's, if there is one.
    /// `session` is an empty one, or one that holds what the messages may begin with.
    pub fn new(session: Session, weights: &Weights, system: Option<&str>) -> Result<Self> {
        let tokenizer = tokenizer(weights)?;
        let template = template(weights, &tokenizer)?;
        let messages: Vec<_> = system.map(|text| Message::new("system", text)).into_iter().collect();
        // A template that the model's file has wrong, or that refuses system messages, should fail before the first turn.
        let probe = [messages.as_slice(), &[Message::new("user", "Hello")]].concat();
        template.encode(&tokenizer, &Chat { messages: &probe, add_generation_prompt: true, ..Chat::default() })?;
        let (tools, style, calls, held, constraint) = (Vec::new(), None, 0, None, None);
        let totals = Totals::default();
        Ok(Self { tokenizer, template, messages, tools, style, calls, session, held, constraint, totals })
    }

    /// How answers are drawn from now on.
    pub fn set_sampling(&mut self, sampling: Sampling) {
        self.session.sampling = sampling;
    }

    /// How tokens of answers are guessed from now on.
    pub fn set_speculation(&mut self, speculation: Option<Speculation>) {
        self.session.speculation = speculation;
    }

    /// What each answer must follow from now on, if anything.
    pub fn constrain(&mut self, constraint: Option<Constraint>) {
        self.constraint = constraint;
    }

    /// Tells the model from now on of these functions, which OpenAI's API describes so. An error where the chat template cannot.
    pub fn set_tools(&mut self, tools: &[Json]) -> Result<()> {
        if self.tools == tools {
            return Ok(());
        }
        let style = if tools.is_empty() { None } else { self.template.tool_style() };
        if style.is_none() && !tools.is_empty() {
            let found = "one that says nothing of them";
            return Err(Error::request("tools", "a model whose chat template tells it of tools", found));
        }
        let before = std::mem::replace(&mut self.tools, tools.to_vec());
        let probe = [&self.messages[..self.first()], &[Message::new("user", "Hello")]].concat();
        if let Err(e) = self.encode(&probe, true) {
            self.tools = before;
            return Err(e);
        }
        (self.style, self.held) = (style, None);
        Ok(())
    }

    /// Adds a message, such as the result of a tool, for the next [`answer`](Self::answer).
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes these for the messages so far.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.held = None;
    }

    /// Messages that the next turn will send, system first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Positions of the context in use.
    pub fn tokens(&self) -> usize {
        self.session.tokens().len()
    }

    /// The session that holds their tokens.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Work done so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Text and tokens of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Forgets all messages but the system's.
    pub fn reset(&mut self) {
        self.messages.truncate(self.first());
        self.session.rewind(0);
        self.held = None;
    }

    /// Sends `text` as the user and passes the answer to `piece` as it comes, with empty pieces while the prompt is computed.
    /// `piece` may break off; what has come is then the answer. `limit` bounds the answer's tokens.
    ///
    /// On an error the messages are as before.
    pub fn say(
        &mut self,
        engine: &mut Engine,
        text: &str,
        limit: Option<usize>,
        mut piece: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let before = self.messages.clone();
        self.push(Message::new("user", text));
        let answer = self.answer(engine, limit, |part| match part {
            Part::Text(text) => piece(text),
            Part::Call { .. } | Part::Arguments(_) => ControlFlow::Continue(()),
        });
        if answer.is_err() {
            self.set_messages(before);
        }
        answer
    }

    /// The model's answer to the messages, which is one of them from then on. As [`say`](Self::say), with calls of tools among the
    /// parts of the answer, and with empty text also while it is open what has come. On an error there is no answer.
    pub fn answer(
        &mut self,
        engine: &mut Engine,
        limit: Option<usize>,
        mut part: impl FnMut(&Part) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let (prompt, dropped) = self.fit(engine.capacity().context)?;
        self.held = None;
        let computed = self.session.computed();
        self.session.constrain(None);
        self.session.set_tokens(&prompt);
        self.session.constrain(self.constraint.clone());
        self.totals.discarded += computed.saturating_sub(self.session.computed());
        // Computed tokens may be fewer than those in common: the last answer's end was drawn and not run.
        self.totals.reused += prompt.len() - self.session.pending().len();

        let names = self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str().map(Into::into)).collect();
        let mut parser = self.style.map(|style| ToolCalls::new(style, names));
        let mut parts = Vec::new();
        // Marks of calls are control tokens in some vocabularies.
        let decoder = if parser.is_some() { StreamDecoder::with_control() } else { StreamDecoder::new() };
        let generated = generate(engine, &mut self.session, &self.tokenizer, decoder, limit, |piece| {
            let mut new = parser.as_mut().map_or_else(|| vec![Part::Text(piece.into())], |parser| parser.push(piece));
            if new.is_empty() {
                // The caller may break off, also while it is open what has come.
                new.push(Part::Text(String::new()));
            }
            let flow = new.iter().try_for_each(&mut part);
            parts.extend(new);
            flow
        })?;
        let rest = parser.map(|mut parser| parser.finish()).unwrap_or_default();
        // The text is over in any case.
        let _ = rest.iter().try_for_each(&mut part);
        parts.extend(rest);
        self.totals.prefilled += generated.prefilled;
        self.totals.prefill += generated.prefill;
        self.totals.decoded += generated.decoded;
        self.totals.decode += generated.decode;

        let (text, mut calls) = self.take_apart(parts);
        let end = generated.end;
        let message = match end == End::Stop && !calls.is_empty() {
            true => called(&text, &calls),
            false => {
                calls.clear();
                Message::new("assistant", generated.text)
            }
        };
        self.messages.push(message);
        self.held = (end == End::Stop).then_some(self.messages.len());
        Ok(Answer { text, calls, end, dropped })
    }

    /// Text and calls of an answer.
    fn take_apart(&mut self, parts: Vec<Part>) -> (String, Vec<ToolCall>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Text(more) => text.push_str(&more),
                Part::Call { name } => {
                    self.calls += 1;
                    // Mistral's templates insist on nine letters or digits.
                    let id = format!("{:09}", self.calls);
                    calls.push(ToolCall { id, name, arguments: String::new() });
                }
                Part::Arguments(more) => calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(&more)),
            }
        }
        (text, calls)
    }

    /// Tokens of the messages, of which the oldest turns are dropped until an answer has room; and how many were dropped.
    fn fit(&mut self, context: usize) -> Result<(Vec<u32>, usize)> {
        // Room for an answer, and so that the next turns need not drop and compute everything again.
        let room = context / 4;
        let mut dropped = 0;
        loop {
            let prompt = self.continued(self.encode(&self.messages, true)?);
            let first = self.first();
            if prompt.len() + room <= context {
                return Ok((prompt, dropped));
            }
            // A turn begins with the user, as templates demand.
            let turn = self.messages[first + 1..].iter().position(|m| m.role == "user");
            match turn {
                Some(rest) => {
                    self.messages.drain(first..first + 1 + rest);
                    self.held = None;
                    dropped += 1 + rest;
                }
                None if prompt.len() < context => return Ok((prompt, dropped)),
                None => {
                    let expected = format!("at most {} tokens in a context of {context}", context - 1);
                    return Err(Error::request("message with system prompt and template", expected, prompt.len()));
                }
            }
        }
    }

    fn encode(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Vec<u32>> {
        let chat = Chat { messages, tools: &self.tools, add_generation_prompt, ..Chat::default() };
        self.template.encode(&self.tokenizer, &chat)
    }

    /// The tokens that the session holds and what `prompt`, all messages in the template's words, has behind the last answer. Just
    /// `prompt` where the template now writes the turns up to there otherwise than before: as one does that leaves out the
    /// reasoning of earlier turns.
    fn continued(&self, prompt: Vec<u32>) -> Vec<u32> {
        let held = self.session.tokens();
        let is_stop = |id: &u32| self.tokenizer.stop_ids().contains(id);
        let Some(messages) = self.held.filter(|_| held.last().is_some_and(is_stop)) else { return prompt };
        let Ok(until) = self.encode(&self.messages[..messages], false) else { return prompt };
        // The answer's end is the last that both have, and nothing but spaces stands behind it.
        let end = until[..common(&until, &prompt)].iter().rposition(is_stop);
        match end.filter(|end| self.tokenizer.decode(&until[end + 1..]).trim().is_empty()) {
            Some(end) => [held, &prompt[end + 1..]].concat(),
            None => prompt,
        }
    }

    /// Index of the first message that is not the system's.
    fn first(&self) -> usize {
        self.messages.first().is_some_and(|m| m.role == "system") as usize
    }
}

/// The message of an answer that calls tools.
fn called(text: &str, calls: &[ToolCall]) -> Message {
    let content = if text.is_empty() { Json::Null } else { text.into() };
    let call = |ToolCall { id, name, arguments }: &ToolCall| {
        // Templates want the object; what is none is told as it is.
        let object = serde_json::from_str(arguments).ok().filter(Json::is_object);
        let arguments = object.unwrap_or_else(|| arguments.as_str().into());
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
    };
    let mut message = Message::new("assistant", "").with("tool_calls", calls.iter().map(call).collect::<Json>());
    message.content = content;
    message
}

/// What came of the pending tokens of a session.
#[derive(Clone, Debug)]
pub struct Generated {
    /// All pieces together.
    pub text: String,
    /// Why it is over.
    pub end: End,
    /// Tokens of the text.
    pub tokens: usize,
    /// Pending tokens computed.
    pub prefilled: usize,
    /// Time for those, up to the first token of the text.
    pub prefill: Duration,
    /// Tokens drawn after the first.
    pub decoded: usize,
    /// Time for those.
    pub decode: Duration,
}

/// Computes the pending tokens of `session`, draws up to `limit` more and passes their text to `piece` as it comes, with empty
/// pieces while the pending ones are computed. `piece` may break off.
pub fn generate(
    engine: &mut Engine,
    session: &mut Session,
    tokenizer: &Tokenizer,
    decoder: StreamDecoder,
    limit: Option<usize>,
    mut piece: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<Generated> {
    let mut writer = Writer { decoder, text: String::new(), tokens: 0, limit };
    let (mut prefilled, mut decoded) = (0, 0);
    let began = Instant::now();
    let mut end = (limit == Some(0)).then_some(End::Limit);
    let mut first = None;
    while end.is_none() && first.is_none() {
        let before = session.pending().len();
        first = engine.step(&mut [&mut *session])?[0];
        prefilled += before - first.map_or(session.pending().len(), |_| 0);
        end = match first {
            Some(id) => writer.take(id, tokenizer, &mut piece),
            None if piece("").is_break() => Some(End::Interrupted),
            None => None,
        };
    }
    let prefill = began.elapsed();
    if end.is_none() && session.tokens().len() <= engine.capacity().context {
        engine.decode(&mut [session], usize::MAX, |ids| {
            decoded += 1;
            end = writer.take(ids[0], tokenizer, &mut piece);
            if end.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    let decode = began.elapsed() - prefill;
    let rest = writer.decoder.finish();
    if !rest.is_empty() {
        writer.text.push_str(rest);
        // The text is over in any case.
        let _ = piece(rest);
    }
    // Decoding ends by itself where no position is left.
    let end = end.unwrap_or(End::Context);
    let Writer { text, tokens, .. } = writer;
    Ok(Generated { text, end, tokens, prefilled, prefill, decoded, decode })
}

struct Writer {
    decoder: StreamDecoder,
    text: String,
    tokens: usize,
    limit: Option<usize>,
}

impl Writer {
    /// Takes the next token; why the text is over if it is.
    fn take(&mut self, id: u32, tokenizer: &Tokenizer, piece: &mut impl FnMut(&str) -> ControlFlow<()>) -> Option<End> {
        if tokenizer.stop_ids().contains(&id) {
            return Some(End::Stop);
        }
        self.tokens += 1;
        let new = self.decoder.push(id, tokenizer);
        self.text.push_str(new);
        match piece(new) {
            ControlFlow::Break(()) => Some(End::Interrupted),
            ControlFlow::Continue(()) if self.limit.is_some_and(|limit| self.tokens >= limit) => Some(End::Limit),
            ControlFlow::Continue(()) => None,
        }
    }
}
