//! Answers in the form of OpenAI's API: whole, or as a stream of chunks.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use crate::sampler::Logprobs;
use crate::scheduler::{Event, Reason, Usage};
use crate::text::{Part, Tokenizer, ToolCalls, ToolStyle};

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
    /// Spells tokens where their logprobs are wanted.
    tokenizer: Option<Arc<Tokenizer>>,
    logprobs: Vec<Logprobs>,
    /// How many of those are in chunks already, and characters of their tokens.
    sent: usize,
    offset: usize,
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
    pub fn new(
        head: Arc<Head>,
        index: usize,
        tools: Option<(ToolStyle, Vec<String>)>,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Self {
        let tools = tools.map(|(style, names)| (style, ToolCalls::new(style, names)));
        let (text, calls, logprobs) = (String::new(), Vec::new(), Vec::new());
        Self { head, index, tools, text, calls, tokenizer, logprobs, sent: 0, offset: 0, end: None }
    }

    /// What a stream begins with.
    pub fn first_chunk(&self) -> Option<Json> {
        let delta = json!({ "role": "assistant", "content": "" });
        (self.head.kind == Kind::Chat).then(|| self.chunk(delta, None, Json::Null))
    }

    /// Takes what has come; the chunks it makes.
    pub fn take(&mut self, event: Event) -> Vec<Json> {
        match event {
            Event::Token { text, logprobs, .. } => {
                self.logprobs.extend(logprobs);
                self.add(&text)
            }
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
                let logprobs = self.unsent();
                chunks.push(self.chunk(json!({}), Some(reason), logprobs));
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
        let logprobs = self.unsent();
        self.chunk(delta, None, logprobs)
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

    fn chunk(&self, delta: Json, reason: Option<&str>, logprobs: Json) -> Json {
        let choice = match self.head.kind {
            Kind::Chat => json!({ "index": self.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason }),
            Kind::Completion => {
                let text = delta["content"].as_str().unwrap_or_default();
                json!({ "index": self.index, "text": text, "logprobs": logprobs, "finish_reason": reason })
            }
        };
        self.head.json(true, vec![choice])
    }

    /// Logprobs that are in no chunk yet.
    fn unsent(&mut self) -> Json {
        let (all, offset) = (&self.logprobs[self.sent..], self.offset);
        let json = if all.is_empty() { Json::Null } else { self.logprobs_json(all, offset) };
        self.offset += all.iter().map(|l| self.spelled(l.id).chars().count()).sum::<usize>();
        self.sent = self.logprobs.len();
        json
    }

    /// Logprobs of tokens that begin at character `offset`; null where none are wanted.
    fn logprobs_json(&self, all: &[Logprobs], mut offset: usize) -> Json {
        if self.tokenizer.is_none() {
            return Json::Null;
        }
        // JSON has no infinity.
        let finite = |logprob: f32| logprob.max(-9999.0);
        if self.head.kind == Kind::Chat {
            let one = |(id, logprob): &(u32, f32)| {
                let bytes = self.tokenizer.as_ref().map_or(&[][..], |tokenizer| tokenizer.token_bytes(*id));
                json!({ "token": self.spelled(*id), "logprob": finite(*logprob), "bytes": bytes })
            };
            let each = |l: &Logprobs| {
                let mut json = one(&(l.id, l.logprob));
                json["top_logprobs"] = l.top.iter().map(one).collect();
                json
            };
            return json!({ "content": all.iter().map(each).collect::<Json>(), "refusal": null });
        }
        let begin = |l: &Logprobs| {
            let begin = offset;
            offset += self.spelled(l.id).chars().count();
            begin
        };
        let top = |l: &Logprobs| -> Json {
            let top = l.top.iter().map(|(id, logprob)| (self.spelled(*id), json!(finite(*logprob))));
            top.collect::<Map<_, _>>().into()
        };
        json!({
            "tokens": all.iter().map(|l| self.spelled(l.id)).collect::<Json>(),
            "token_logprobs": all.iter().map(|l| finite(l.logprob)).collect::<Json>(),
            "top_logprobs": all.iter().map(top).collect::<Json>(),
            "text_offset": all.iter().map(begin).collect::<Json>(),
        })
    }

    fn spelled(&self, id: u32) -> String {
        let bytes = self.tokenizer.as_ref().map_or(&[][..], |tokenizer| tokenizer.token_bytes(id));
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn whole(&self) -> Json {
        let (reason, logprobs) = (self.end.map(|(reason, _)| reason), self.logprobs_json(&self.logprobs, 0));
        if self.head.kind == Kind::Completion {
            return json!({ "index": self.index, "text": self.text, "logprobs": logprobs, "finish_reason": reason });
        }
        let mut message = json!({ "role": "assistant", "content": self.text, "refusal": null });
        if !self.calls.is_empty() {
            let call = |(id, name, arguments): &(String, String, String)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            message["tool_calls"] = self.calls.iter().map(call).collect();
            if self.text.is_empty() {
                message["content"] = Json::Null;
            }
        }
        json!({ "index": self.index, "message": message, "logprobs": logprobs, "finish_reason": reason })
    }
}
