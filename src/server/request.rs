//! Requests of OpenAI's API, read field by field. What another server would do and this one does not is refused.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Map, Value as Json, json};

use super::fields::Fields;
use super::refusal::{Refusal, Result};
use crate::sampler::Sampling;
use crate::text::Message;

/// What requests of either kind say.
pub(super) struct Common {
    pub model: Option<String>,
    /// Answers to each prompt.
    pub n: usize,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    /// Of the first answer; others have the seeds after it.
    pub sampling: Sampling,
    pub ignore_end: bool,
    pub stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub include_usage: bool,
    /// Whose turn it is.
    pub user: Option<String>,
}

pub(super) struct ChatRequest {
    pub messages: Vec<Message>,
    /// Functions that may be called; none where the request says so.
    pub tools: Vec<Json>,
    /// More variables for the template.
    pub variables: Map<String, Json>,
    pub common: Common,
}

pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub(super) struct CompletionRequest {
    pub prompts: Vec<Prompt>,
    pub common: Common,
}

pub(super) struct EmbeddingRequest {
    pub model: Option<String>,
    pub input: Vec<Prompt>,
    /// Whether numbers are wanted as f32 in base64.
    pub base64: bool,
}

/// Answers to one prompt, at most, and prompts of one request.
const CHOICES: i64 = 16;
const PROMPTS: usize = 64;
const MESSAGES: usize = 4096;
const TOOLS: usize = 128;

impl ChatRequest {
    pub fn read(mut fields: Fields) -> Result<Self> {
        let messages = messages(&mut fields)?;
        let tools = tools(&mut fields)?;
        let variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
        for name in ["response_format", "text"] {
            fields.only(name, &[json!({ "type": "text" })])?;
        }
        fields.only("logprobs", &[json!(false)])?;
        fields.only("top_logprobs", &[json!(0)])?;
        fields.only("modalities", &[json!(["text"])])?;
        fields.only("parallel_tool_calls", &[json!(true)])?;
        let completion = fields.integer("max_completion_tokens", 1..=i64::from(u32::MAX))?.map(|n| n as usize);
        let mut common = Common::read(&mut fields)?;
        if let (Some(a), Some(b)) = (completion, common.max_tokens)
            && a != b
        {
            return Err(fields.wrong("max_tokens", "as max_completion_tokens, or absent"));
        }
        common.max_tokens = completion.or(common.max_tokens);
        fields.finish()?;
        Ok(Self { messages, tools, variables, common })
    }
}

impl CompletionRequest {
    pub fn read(mut fields: Fields) -> Result<Self> {
        let prompts = prompts(&mut fields, "prompt")?;
        fields.only("logprobs", &[])?;
        fields.only("echo", &[json!(false)])?;
        fields.only("suffix", &[json!("")])?;
        let best_of = fields.integer("best_of", 1..=CHOICES)?;
        let common = Common::read(&mut fields)?;
        if best_of.is_some_and(|best_of| best_of as usize != common.n) {
            return Err(Refusal::unsupported("best_of", "another number than n"));
        }
        fields.finish()?;
        Ok(Self { prompts, common })
    }
}

impl EmbeddingRequest {
    pub fn read(mut fields: Fields) -> Result<Self> {
        let input = prompts(&mut fields, "input")?;
        let base64 = match fields.string("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(fields.wrong("encoding_format", "float or base64")),
        };
        let model = fields.string("model")?;
        fields.string("user")?;
        fields.finish()?;
        Ok(Self { model, input, base64 })
    }
}

impl Common {
    fn read(fields: &mut Fields) -> Result<Self> {
        let n = fields.integer("n", 1..=CHOICES)?.unwrap_or(1) as usize;
        let max_tokens = fields.integer("max_tokens", 1..=i64::from(u32::MAX))?.map(|n| n as usize);
        let sampling = Sampling {
            temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0) as f32,
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32,
            // vLLM's, where -1 keeps all.
            top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0).max(0) as u32,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map_or_else(random, |seed| seed as u64),
            ..Sampling::default()
        };
        for name in ["frequency_penalty", "presence_penalty", "min_p"] {
            fields.only(name, &[json!(0), json!(0.0)])?;
        }
        fields.only("repetition_penalty", &[json!(1), json!(1.0)])?;
        fields.only("logit_bias", &[json!({})])?;
        fields.only("service_tier", &[json!("auto"), json!("default")])?;
        fields.only("store", &[json!(false)])?;
        let stop = stop(fields)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = stream_options(fields, stream)?;
        // Labels of the caller's own change nothing here.
        fields.object("metadata")?;
        Ok(Self {
            model: fields.string("model")?,
            n,
            max_tokens,
            stop,
            sampling,
            ignore_end: fields.boolean("ignore_eos")?.unwrap_or(false),
            stream,
            include_usage,
            user: fields.string("user")?,
        })
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

fn messages(fields: &mut Fields) -> Result<Vec<Message>> {
    let items = fields.array("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if !(1..=MESSAGES).contains(&items.len()) {
        return Err(fields.wrong("messages", format!("1 to {MESSAGES} messages")));
    }
    let read = |(i, item): (usize, Json)| {
        Message::from_json(item).map_err(|e| Refusal::invalid(format!("messages[{i}]"), format!("messages[{i}]: {e}")))
    };
    items.into_iter().enumerate().map(read).collect()
}

fn tools(fields: &mut Fields) -> Result<Vec<Json>> {
    let tools = fields.array("tools")?.unwrap_or_default();
    if tools.len() > TOOLS {
        return Err(fields.wrong("tools", format!("at most {TOOLS} tools")));
    }
    for (i, tool) in tools.iter().enumerate() {
        let path = format!("tools[{i}]");
        if tool["type"] != "function" {
            return Err(Refusal::unsupported(format!("{path}.type"), "a tool that is no function"));
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            let param = format!("{path}.function.name");
            let message = format!("{param} must be a string");
            return Err(Refusal::invalid(param, message));
        }
        if !matches!(tool["function"]["parameters"], Json::Null | Json::Object(_)) {
            let param = format!("{path}.function.parameters");
            let message = format!("{param} must be an object");
            return Err(Refusal::invalid(param, message));
        }
        if tool["function"]["strict"] == true {
            return Err(Refusal::unsupported(format!("{path}.function.strict"), true));
        }
    }
    match fields.take("tool_choice") {
        None => Ok(tools),
        Some(choice) if choice == "auto" => Ok(tools),
        Some(choice) if choice == "none" => Ok(Vec::new()),
        Some(choice) => Err(Refusal::unsupported("tool_choice", choice)),
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let expected = "a string, or an array of up to 16 strings, none of them empty";
    let stop = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Json::String(text)) => vec![Json::String(text)],
        Some(Json::Array(items)) if items.len() <= 16 => items,
        Some(_) => return Err(fields.wrong("stop", expected)),
    };
    let text = |item| match item {
        Json::String(text) if !text.is_empty() => Ok(text),
        _ => Err(fields.wrong("stop", expected)),
    };
    stop.into_iter().map(text).collect()
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool> {
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        return Err(fields.wrong("stream_options", "absent without stream"));
    }
    let mut options = Fields::of(options, "stream_options")?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    options.only("include_obfuscation", &[json!(false)])?;
    options.finish()?;
    Ok(include_usage)
}

fn prompts(fields: &mut Fields, name: &str) -> Result<Vec<Prompt>> {
    let expected = format!("a string, an array of tokens, or an array of up to {PROMPTS} of either");
    let tokens = |items: &[Json]| -> Option<Vec<u32>> {
        items.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let prompt = fields.take(name).ok_or_else(|| fields.missing(name))?;
    let one = |prompt: &Json| match prompt {
        Json::String(text) => Some(Prompt::Text(text.clone())),
        Json::Array(items) if !items.is_empty() => Some(Prompt::Tokens(tokens(items)?)),
        _ => None,
    };
    let prompts = match (&prompt, one(&prompt)) {
        (_, Some(prompt)) => Some(vec![prompt]),
        (Json::Array(items), None) if (1..=PROMPTS).contains(&items.len()) => items.iter().map(one).collect(),
        _ => None,
    };
    prompts.ok_or_else(|| fields.wrong(name, expected))
}
