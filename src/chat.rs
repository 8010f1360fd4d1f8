//! A conversation with a model: messages in, pieces of text out.
//!
//! Each turn renders all messages with the model's chat template. What the session already holds of the resulting tokens is
//! not computed again. When they no longer fit, the oldest turns are left out; the system message stays.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::constrain::Constraint;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sampler::Sampling;
use crate::session::Session;
use crate::speculation::Speculation;
use crate::text::{Chat, ChatTemplate, Message, StreamDecoder, Tokenizer, Vocabulary};
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
    session: Session,
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
}

/// What came of one turn.
#[derive(Clone, Debug)]
pub struct Answer {
    /// All pieces together.
    pub text: String,
    /// Why it is over.
    pub end: End,
    /// Messages that were left out from now on because the context was full.
    pub dropped: usize,
}

/// Work done by a conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Prompt tokens that the session already held.
    pub reused: usize,
    /// Prompt tokens computed.
    pub prefilled: usize,
    /// Time for those, up to the first token of the answer.
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
        Ok(Self { tokenizer, template, messages, session, constraint: None, totals: Totals::default() })
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
        piece: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let before = self.messages.clone();
        self.messages.push(Message::new("user", text));
        let answer = self.answer(engine, limit, piece);
        match &answer {
            Ok(answer) => self.messages.push(Message::new("assistant", answer.text.as_str())),
            Err(_) => self.messages = before,
        }
        answer
    }

    fn answer(
        &mut self,
        engine: &mut Engine,
        limit: Option<usize>,
        piece: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let context = engine.capacity().context;
        let (prompt, dropped) = self.fit(context)?;
        self.session.constrain(None);
        self.session.set_tokens(&prompt);
        self.session.constrain(self.constraint.clone());
        // Computed tokens may be fewer than those in common: the last answer's end was drawn and not run.
        let pending = self.session.pending().len();
        self.totals.reused += prompt.len() - pending;

        let generated = generate(engine, &mut self.session, &self.tokenizer, StreamDecoder::new(), limit, piece)?;
        let Generated { text, end, .. } = generated;
        self.totals.prefilled += generated.prefilled;
        self.totals.prefill += generated.prefill;
        self.totals.decoded += generated.decoded;
        self.totals.decode += generated.decode;
        Ok(Answer { text, end, dropped })
    }

    /// Tokens of the messages, of which the oldest turns are dropped until an answer has room; and how many were dropped.
    fn fit(&mut self, context: usize) -> Result<(Vec<u32>, usize)> {
        // Room for an answer, and so that the next turns need not drop and compute everything again.
        let room = context / 4;
        let mut dropped = 0;
        loop {
            let chat = Chat { messages: &self.messages, add_generation_prompt: true, ..Chat::default() };
            let prompt = self.template.encode(&self.tokenizer, &chat)?;
            let first = self.first();
            if prompt.len() + room <= context {
                return Ok((prompt, dropped));
            }
            // A turn begins with the user, as templates demand.
            let turn = self.messages[first + 1..].iter().position(|m| m.role == "user");
            match turn {
                Some(rest) => {
                    self.messages.drain(first..first + 1 + rest);
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

    /// Index of the first message that is not the system's.
    fn first(&self) -> usize {
        self.messages.first().is_some_and(|m| m.role == "system") as usize
    }
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
