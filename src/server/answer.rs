//! Answers in the form of OpenAI's API: whole, or as a stream of chunks.

use serde_json::{Value as Json, json};

use crate::scheduler::{Event, Reason, Usage};
use crate::text::{Part, ToolCalls, ToolStyle};

/// What is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Chat,
    Completion,
}

/// What all chunks of an answer begin with.
pub(super) struct Head {
    pub kind: Kind,
    pub id: String,
    pub created: u64,
    pub model: String,
    /// Answers to each prompt.
    pub n: usize,
}

/// One answer on its way.
pub(super) struct Choice {
    head: std::sync::Arc<Head>,
    index: usize,
    tools: Option<(ToolStyle, ToolCalls)>,
    text: String,
    calls: Vec<(String, String, String)>,
    /// Once it is over.
    pub end: Option<(&'static str, Usage)>,
}

impl Head {
    fn object(&self, streams: bool) -> &'static str {
        match (self.kind, streams) {
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Completion, _) => "text_completion",
        }
    }

    fn json(&self, streams: bool, choices: Vec<Json>) -> Json {
        json!({
            "id": self.id,
            "object": self.object(streams),
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// The whole answer.
    pub fn whole(&self, choices: &[Choice]) -> Json {
        let mut json = self.json(false, choices.iter().map(Choice::whole).collect());
        json["usage"] = self.usage(choices);
        json
    }

    /// A prompt counts once, however many answers it has.
    fn usage(&self, choices: &[Choice]) -> Json {
        let all = || choices.iter().filter_map(|choice| choice.end.map(|(_, usage)| usage));
        let (drawn, prompt): (usize, usize) =
            (all().map(|usage| usage.drawn).sum(), all().step_by(self.n).map(|usage| usage.prompt).sum());
        let cached: usize = all().step_by(self.n).map(|usage| usage.cached).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": drawn,
            "total_tokens": prompt + drawn,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }

    /// The last chunk of a stream.
    pub fn usage_chunk(&self, choices: &[Choice]) -> Json {
        let mut json = self.json(true, Vec::new());
        json["usage"] = self.usage(choices);
        json
    }
}

impl Choice {
    /// `tools`: how the model calls them, and their names.
    pub fn new(head: std::sync::Arc<Head>, index: usize, tools: Option<(ToolStyle, Vec<String>)>) -> Self {
        let tools = tools.map(|(style, names)| (style, ToolCalls::new(style, names)));
        Self { head, index, tools, text: String::new(), calls: Vec::new(), end: None }
    }

    /// What a stream begins with.
    pub fn first_chunk(&self) -> Option<Json> {
        let delta = json!({ "role": "assistant", "content": "" });
        (self.head.kind == Kind::Chat).then(|| self.chunk(delta, None))
    }

    /// Takes what has come; the chunks it makes.
    pub fn take(&mut self, event: Event) -> Vec<Json> {
        match event {
            Event::Token { text, .. } => self.add(&text),
            Event::Finished { text, reason, usage } => {
                let mut chunks = self.add(&text);
                let left = self.tools.as_mut().map(|(_, calls)| calls.finish()).unwrap_or_default();
                chunks.extend(left.into_iter().map(|part| self.part(part)));
                let reason = match reason {
                    Reason::Stop if !self.calls.is_empty() => "tool_calls",
                    Reason::Stop | Reason::Cancelled => "stop",
                    Reason::Length => "length",
                };
                self.end = Some((reason, usage));
                chunks.push(self.chunk(json!({}), Some(reason)));
                chunks
            }
            Event::Failed(_) => Vec::new(),
        }
    }

    fn add(&mut self, text: &str) -> Vec<Json> {
        let parts = match &mut self.tools {
            Some((_, calls)) => calls.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Text(text.into())],
        };
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    fn part(&mut self, part: Part) -> Json {
        let delta = match part {
            Part::Text(text) => {
                self.text.push_str(&text);
                json!({ "content": text })
            }
            Part::Call { name } => {
                let id = self.call_id();
                self.calls.push((id.clone(), name.clone(), String::new()));
                let function = json!({ "name": name, "arguments": "" });
                let index = self.calls.len() - 1;
                json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
            }
            Part::Arguments(text) => {
                let index = self.calls.len().saturating_sub(1);
                if let Some((_, _, arguments)) = self.calls.last_mut() {
                    arguments.push_str(&text);
                }
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
            }
        };
        self.chunk(delta, None)
    }

    /// Nine letters and digits, which Mistral's templates insist on, behind what others expect.
    fn call_id(&self) -> String {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hash = DefaultHasher::new();
        (&self.head.id, self.index, self.calls.len()).hash(&mut hash);
        let letters = format!("{:016x}", hash.finish());
        match self.tools {
            Some((ToolStyle::Mistral, _)) => letters[..9].into(),
            _ => format!("call_{}", &letters[..9]),
        }
    }

    fn chunk(&self, delta: Json, reason: Option<&str>) -> Json {
        let choice = match self.head.kind {
            Kind::Chat => json!({ "index": self.index, "delta": delta, "logprobs": null, "finish_reason": reason }),
            Kind::Completion => {
                let text = delta["content"].as_str().unwrap_or_default();
                json!({ "index": self.index, "text": text, "logprobs": null, "finish_reason": reason })
            }
        };
        self.head.json(true, vec![choice])
    }

    fn whole(&self) -> Json {
        let reason = self.end.map(|(reason, _)| reason);
        if self.head.kind == Kind::Completion {
            return json!({ "index": self.index, "text": self.text, "logprobs": null, "finish_reason": reason });
        }
        let mut message = json!({ "role": "assistant", "content": self.text, "refusal": null });
        if !self.calls.is_empty() {
            let call = |(id, name, arguments): &(String, String, String)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            message["tool_calls"] = self.calls.iter().map(call).collect();
            if self.text.is_empty() {
                message["content"] = Json::Null;
            }
        }
        json!({ "index": self.index, "message": message, "logprobs": null, "finish_reason": reason })
    }
}
