//! Requests of OpenAI's API, read field by field. What another server would do and this one does not is refused.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Map, Value as Json, json};

use super::fields::Fields;
use super::refusal::{Refusal, Result};
use crate::constrain::Grammar;
use crate::sampler::{ALTERNATIVES, BIASES, Dry, Penalties, Sampling};
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
    /// Texts at which DRY's sequences break, where a request says so.
    pub breakers: Option<Vec<String>>,
    /// With how many alternatives the logprobs of each token are wanted, if they are.
    pub logprobs: Option<usize>,
    /// What the answer must be, and the field that says so.
    pub grammar: Option<(Grammar, &'static str)>,
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
    /// One of these must be called, where there are any.
    pub forced: Vec<Json>,
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
        let (tools, forced) = tools(&mut fields)?;
        let variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
        let grammar = response_format(&mut fields)?;
        if grammar.is_some() && !forced.is_empty() {
            return Err(fields.wrong("response_format", "absent where a tool must be called"));
        }
        fields.only("text", &[json!({ "type": "text" })])?;
        let wanted = fields.boolean("logprobs")?.unwrap_or(false);
        let alternatives = fields.integer("top_logprobs", 0..=ALTERNATIVES as i64)?;
        if !wanted && alternatives.is_some_and(|n| n > 0) {
            return Err(fields.wrong("top_logprobs", "absent without logprobs"));
        }
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
        common.logprobs = wanted.then_some(alternatives.unwrap_or(0) as usize);
        common.grammar = grammar.map(|grammar| (grammar, "response_format")).or(common.grammar);
        fields.finish()?;
        Ok(Self { messages, tools, forced, variables, common })
    }
}

impl CompletionRequest {
    pub fn read(mut fields: Fields) -> Result<Self> {
        let prompts = prompts(&mut fields, "prompt")?;
        let logprobs = fields.integer("logprobs", 0..=ALTERNATIVES as i64)?;
        fields.only("echo", &[json!(false)])?;
        fields.only("suffix", &[json!("")])?;
        let best_of = fields.integer("best_of", 1..=CHOICES)?;
        let mut common = Common::read(&mut fields)?;
        common.logprobs = logprobs.map(|n| n as usize);
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
            // vLLM's and llama.cpp's.
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0) as f32,
            typical_p: fields.number("typical_p", 0.0..=1.0)?.unwrap_or(1.0) as f32,
            penalties: penalties(fields)?,
            dry: dry(fields)?,
            logit_bias: logit_bias(fields)?,
        };
        let breakers = strings(fields, "dry_sequence_breakers", "an array of up to 16 strings, none of them empty")?;
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
            breakers,
            logprobs: None,
            grammar: guided(fields)?,
            ignore_end: fields.boolean("ignore_eos")?.unwrap_or(false),
            stream,
            include_usage,
            user: fields.string("user")?,
        })
    }
}

fn penalties(fields: &mut Fields) -> Result<Penalties> {
    let default = Penalties::default();
    Ok(Penalties {
        last_n: last_n(fields, "repeat_last_n")?.unwrap_or(default.last_n),
        repeat: fields.number("repetition_penalty", 1e-3..=1e3)?.unwrap_or(1.0) as f32,
        frequency: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
        presence: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
    })
}

/// llama.cpp's, all of them.
fn dry(fields: &mut Fields) -> Result<Dry> {
    let default = Dry::default();
    Ok(Dry {
        multiplier: fields.number("dry_multiplier", 0.0..=100.0)?.unwrap_or(0.0) as f32,
        base: fields.number("dry_base", 1.0..=1e3)?.map_or(default.base, |base| base as f32),
        allowed_length: fields
            .integer("dry_allowed_length", 0..=i64::from(u32::MAX))?
            .map_or(default.allowed_length, |n| n as usize),
        last_n: last_n(fields, "dry_penalty_last_n")?.unwrap_or(default.last_n),
        ..default
    })
}

/// A number of tokens, of which -1 are all.
fn last_n(fields: &mut Fields, name: &str) -> Result<Option<usize>> {
    let n = fields.integer(name, -1..=i64::from(u32::MAX))?;
    Ok(n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>> {
    let expected = format!("an object of up to {BIASES} token ids, each with a number from -100 to 100");
    let map = fields.object("logit_bias")?.unwrap_or_default();
    let bias = |(id, bias): (&String, &Json)| {
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((id.parse().ok()?, bias as f32))
    };
    let biases: Option<Vec<_>> = map.iter().map(bias).collect();
    biases.filter(|biases| biases.len() <= BIASES).ok_or_else(|| fields.wrong("logit_bias", expected))
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

fn response_format(fields: &mut Fields) -> Result<Option<Grammar>> {
    let Some(format) = fields.take("response_format") else { return Ok(None) };
    let mut format = Fields::of(format, "response_format")?;
    let grammar = match format.string("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(Grammar::JsonObject),
        Some("json_schema") => {
            let described = format.take("json_schema").ok_or_else(|| format.missing("json_schema"))?;
            let mut described = Fields::of(described, "response_format.json_schema")?;
            let schema = described.take("schema").ok_or_else(|| described.missing("schema"))?;
            // Whether it is strict or not, it is followed.
            described.boolean("strict")?;
            described.string("name")?;
            described.string("description")?;
            described.finish()?;
            Some(Grammar::JsonSchema(schema))
        }
        _ => return Err(format.wrong("type", "text, json_object or json_schema")),
    };
    format.finish()?;
    Ok(grammar)
}

/// vLLM's fields for the same and more.
fn guided(fields: &mut Fields) -> Result<Option<(Grammar, &'static str)>> {
    let schema = fields.take("guided_json").map(|schema| (Grammar::JsonSchema(schema), "guided_json"));
    let regex = fields.string("guided_regex")?.map(|regex| (Grammar::Regex(regex), "guided_regex"));
    let lark = fields.string("guided_grammar")?.map(|lark| (Grammar::Lark(lark), "guided_grammar"));
    let mut all = [schema, regex, lark].into_iter().flatten();
    match (all.next(), all.next()) {
        (_, Some((_, name))) => Err(fields.wrong(name, "the only one of guided_json, guided_regex and guided_grammar")),
        (first, None) => Ok(first),
    }
}

/// The functions that may be called, and of which one must be.
fn tools(fields: &mut Fields) -> Result<(Vec<Json>, Vec<Json>)> {
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
    }
    let choice = fields.take("tool_choice").unwrap_or(json!("auto"));
    let named = |tool: &&Json| tool["function"]["name"] == choice["function"]["name"];
    let forced: Vec<_> = match &choice {
        choice if choice == "none" => return Ok((Vec::new(), Vec::new())),
        choice if choice == "auto" => Vec::new(),
        choice if choice == "required" => tools.clone(),
        choice if choice["type"] == "function" => tools.iter().filter(named).cloned().collect(),
        choice => return Err(Refusal::unsupported("tool_choice", choice)),
    };
    if forced.is_empty() && choice != "auto" {
        return Err(fields.wrong("tool_choice", "auto, none, required or one of the tools"));
    }
    // Where the model may also answer in words nothing makes its arguments what they should be.
    let strict = tools.iter().position(|tool| tool["function"]["strict"] == true);
    match strict.filter(|_| forced.is_empty()) {
        Some(i) => Err(Refusal::unsupported(
            format!("tools[{i}].function.strict"),
            "true without a tool_choice that forces a call",
        )),
        None => Ok((tools, forced)),
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let expected = "a string, or an array of up to 16 strings, none of them empty";
    match fields.take("stop") {
        Some(Json::String(text)) if !text.is_empty() => Ok(vec![text]),
        Some(Json::Array(items)) => texts(items).ok_or_else(|| fields.wrong("stop", expected)),
        None => Ok(Vec::new()),
        Some(_) => Err(fields.wrong("stop", expected)),
    }
}

fn strings(fields: &mut Fields, name: &str, expected: &str) -> Result<Option<Vec<String>>> {
    match fields.take(name) {
        None => Ok(None),
        Some(Json::Array(items)) => texts(items).map(Some).ok_or_else(|| fields.wrong(name, expected)),
        Some(_) => Err(fields.wrong(name, expected)),
    }
}

/// Up to 16 strings, none of them empty.
fn texts(items: Vec<Json>) -> Option<Vec<String>> {
    let text = |item| match item {
        Json::String(text) if !text.is_empty() => Some(text),
        _ => None,
    };
    if items.len() <= 16 { items.into_iter().map(text).collect() } else { None }
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
