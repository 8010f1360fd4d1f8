//! Calls of tools in a model's text, as the families of models write them, while the text comes.
//!
//! Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Mistral: `[TOOL_CALLS]` before a list of such objects,
//! or before a name and its arguments. Llama 3: an object with `parameters`, perhaps behind `<|python_tag|>`. Others, and many that
//! were taught better: the object, or a list, in the place of text or in a fence of Markdown; then the tool must be one there is. What
//! turns out to be no call is text.

use serde_json::{Value as Json, json};

use super::Tokenizer;
use super::stop::begun;

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToolStyle {
    /// Hermes, Qwen.
    Hermes,
    /// Mistral.
    Mistral,
    /// Llama 3.
    Llama3,
    /// An object of JSON in the place of text.
    Json,
}

impl ToolStyle {
    /// The style that a chat template teaches.
    pub fn of_template(source: &str) -> Self {
        let styles = [("<tool_call>", Self::Hermes), ("[TOOL_CALLS]", Self::Mistral), ("<|python_tag|>", Self::Llama3)];
        let found = styles.into_iter().find(|(mark, _)| source.contains(mark));
        match found {
            Some((_, style)) => style,
            None if source.contains("Environment: ipython") => Self::Llama3,
            None => Self::Json,
        }
    }

    /// A grammar in llguidance's variant of Lark: a call of one of `tools`, whose arguments are what the tool describes.
    pub fn grammar(self, tools: &[Json], tokenizer: &Tokenizer) -> String {
        let arguments = if self == Self::Llama3 { "parameters" } else { "arguments" };
        let call = |tool: &Json| {
            let function = &tool["function"];
            let any = json!({ "type": "object" });
            let parameters = if function["parameters"].is_null() { &any } else { &function["parameters"] };
            json!({
                "type": "object",
                "properties": { "name": { "const": function["name"] }, arguments: parameters },
                "required": ["name", arguments],
                "additionalProperties": false,
                "x-guidance": { "whitespace_pattern": SPACES },
            })
        };
        let calls: Vec<_> =
            tools.iter().enumerate().map(|(i, tool)| format!("call{i}: %json {}\n", call(tool))).collect();
        let any: Vec<_> = (0..tools.len()).map(|i| format!("call{i}")).collect();
        // A control token is named by its id, others are text.
        let mark = |text: &str| match tokenizer.id(text).filter(|id| tokenizer.is_control(*id)) {
            Some(id) => format!("<[{id}]>"),
            None => json!(text).to_string(),
        };
        let start = match self {
            Self::Hermes => format!(r#"{} "\n" call "\n" {}"#, mark("<tool_call>"), mark("</tool_call>")),
            Self::Mistral => format!(r#"{} "[" call "]""#, mark("[TOOL_CALLS]")),
            Self::Llama3 | Self::Json => "call".into(),
        };
        format!("start: {start}\ncall: {}\n{}", any.join(" | "), calls.concat())
    }

    fn marker(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("<tool_call>"),
            Self::Mistral => Some("[TOOL_CALLS]"),
            Self::Llama3 => Some("<|python_tag|>"),
            Self::Json => None,
        }
    }

    /// What stands behind a call.
    fn end(self) -> &'static str {
        if self == Self::Hermes { "</tool_call>" } else { "" }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A call begins.
    Call {
        /// The tool.
        name: String,
    },
    /// More of the JSON of its arguments.
    Arguments(String),
}

/// Takes an answer apart.
#[derive(Clone, Debug)]
pub struct ToolCalls {
    style: ToolStyle,
    /// Tools there are.
    names: Vec<String>,
    at: At,
    /// Of the text: what is not passed on yet.
    held: String,
    /// Text has come that is no space.
    begun: bool,
    calls: usize,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Text,
    /// In a call, which begins behind so many bytes of what is held, behind a marker or without one. `end`: what stands behind it.
    /// `sent`: bytes of its arguments, once its name is passed on.
    Call {
        skip: usize,
        marked: bool,
        end: &'static str,
        sent: Option<usize>,
    },
    /// Behind one, and perhaps before its `end`.
    Between {
        end: &'static str,
    },
}

/// Between what JSON consists of, a regular expression: few, as a model that is lost would draw nothing else.
pub(crate) const SPACES: &str = r"[\x20\x0A\x0D\x09]{1,20}";

/// Bytes of a tool's name that stands before its arguments.
const NAME: usize = 256;

/// Between a name and its arguments.
const ARGS: &str = "[ARGS]";

impl ToolCalls {
    /// For answers of a model that knows these tools.
    pub fn new(style: ToolStyle, names: Vec<String>) -> Self {
        Self { style, names, at: At::Text, held: String::new(), begun: false, calls: 0 }
    }

    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// More text of the answer, and what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while match self.at {
            At::Text => self.text(&mut parts),
            At::Call { skip, marked, end, sent } => self.call(skip, marked, end, sent, &mut parts),
            At::Between { end } => self.between(end),
        } {}
        parts
    }

    /// What is left at the end of the answer.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let is_text = match self.at {
            At::Text => self.calls == 0 || !held.trim().is_empty(),
            At::Call { sent, .. } => sent.is_none(),
            At::Between { .. } => false,
        };
        self.at = At::Text;
        if is_text && !held.is_empty() { vec![Part::Text(held)] } else { Vec::new() }
    }

    /// Passes text on up to a call; whether there is more to do.
    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let marker = self.style.marker();
        let marked = marker.and_then(|marker| Some((self.held.find(marker)?, marker)));
        let fenced = fenced(&self.held).filter(|(at, _)| marked.is_none_or(|(marked, _)| *at < marked));
        if let Some((at, Some(skip))) = fenced {
            let skip = skip + self.pass_on_to(at, parts);
            self.at = At::Call { skip, marked: false, end: FENCE, sent: None };
            return true;
        }
        if let (Some((at, marker)), None) = (marked, fenced) {
            let skip = marker.len() + self.pass_on_to(at, parts);
            self.at = At::Call { skip, marked: true, end: self.style.end(), sent: None };
            return true;
        }
        let trimmed = self.held.trim_start();
        let is_marker = marker.is_some_and(|marker| marker.starts_with(trimmed));
        if !self.begun && !is_marker && trimmed.starts_with(['{', '[']) {
            let skip = self.held.len() - trimmed.len();
            self.at = At::Call { skip, marked: false, end: self.style.end(), sent: None };
            return true;
        }
        let begun = marker.map_or(0, |marker| begun(&self.held, marker)).max(begun(&self.held, FENCE));
        let certain = fenced.map_or(self.held.len() - begun, |(at, _)| at);
        self.pass_on_to(certain, parts);
        false
    }

    /// Passes on what stands before `at`, but for the spaces there, which are none of the text if a call follows; how many those are.
    fn pass_on_to(&mut self, at: usize, parts: &mut Vec<Part>) -> usize {
        let certain = self.held[..at].trim_end().len();
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        self.pass_on(&text, parts);
        at - certain
    }

    fn pass_on(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.begun |= !text.trim().is_empty();
        if !text.is_empty() {
            parts.push(Part::Text(text.into()));
        }
    }

    fn call(
        &mut self,
        skip: usize,
        marked: bool,
        behind: &'static str,
        sent: Option<usize>,
        parts: &mut Vec<Part>,
    ) -> bool {
        let call = self.held[skip..].trim_start();
        let skip = self.held.len() - call.len();
        let scanned = match call.chars().next() {
            None => return false,
            Some('{') => scan(call),
            // Of a list, the first.
            Some('[') if sent.is_none() => {
                self.at = At::Call { skip: skip + 1, marked, end: behind, sent };
                return true;
            }
            Some(_) if marked && self.style == ToolStyle::Mistral => scan_named(call),
            Some(_) => None,
        };
        let known = |name: &str| marked || self.names.iter().any(|known| known == name);
        let Some(Scanned { name, arguments, end }) = scanned.filter(|s| s.name.as_deref().is_none_or(known)) else {
            return self.is_no_call(sent, parts);
        };
        let Some(name) = name else {
            return end.is_some() && self.is_no_call(sent, parts);
        };
        if sent.is_none() {
            parts.push(Part::Call { name });
            self.calls += 1;
        }
        let arguments = if end.is_some() && arguments.is_empty() { "{}".into() } else { arguments };
        let new = arguments.get(sent.unwrap_or(0)..).unwrap_or_default();
        if !new.is_empty() {
            parts.push(Part::Arguments(new.into()));
        }
        match end {
            None => self.at = At::Call { skip, marked, end: behind, sent: Some(arguments.len()) },
            Some(end) => {
                self.held.drain(..skip + end);
                self.at = At::Between { end: behind };
            }
        }
        end.is_some()
    }

    /// What looked like a call is text, unless part of it was passed on as one.
    fn is_no_call(&mut self, sent: Option<usize>, parts: &mut Vec<Part>) -> bool {
        let held = std::mem::take(&mut self.held);
        if sent.is_none() {
            self.pass_on(&held, parts);
        }
        self.begun = true;
        self.at = At::Text;
        false
    }

    fn between(&mut self, end: &'static str) -> bool {
        let rest = self.held.trim_start_matches([' ', '\n', '\r', '\t', ',', ';', ']']);
        if !end.is_empty() && end.starts_with(rest) && rest.len() < end.len() || rest.is_empty() {
            return false;
        }
        let rest = rest.strip_prefix(end).unwrap_or(rest);
        self.held = rest.to_string();
        self.at =
            if self.held.starts_with('{') { At::Call { skip: 0, marked: false, end, sent: None } } else { At::Text };
        self.begun = true;
        true
    }
}

/// What opens and closes a block of code in Markdown.
const FENCE: &str = "```";

/// The first block of code that may be JSON: where it begins and, once that has come, how far behind that its value does.
fn fenced(text: &str) -> Option<(usize, Option<usize>)> {
    let begins = |(at, _): (usize, &str)| {
        let block = &text[at + FENCE.len()..];
        let Some((language, body)) = block.split_once('\n') else {
            return "json".starts_with(block.trim_end()).then_some((at, None));
        };
        let value = body.trim_start();
        let is_json = matches!(language.trim(), "" | "json") && (value.is_empty() || value.starts_with(['{', '[']));
        is_json.then(|| (at, (!value.is_empty()).then(|| FENCE.len() + block.len() - value.len())))
    };
    text.match_indices(FENCE).find_map(begins)
}

/// What is known of a call that may go on.
struct Scanned {
    name: Option<String>,
    /// JSON of the arguments, up to where it has come.
    arguments: String,
    /// Bytes of the call, once it is whole.
    end: Option<usize>,
}

/// Reads an object of a call, or its beginning; `None` where it is neither.
fn scan(text: &str) -> Option<Scanned> {
    let mut scanned = Scanned { name: None, arguments: String::new(), end: None };
    let mut at = 1;
    let space = |at: usize| text.len() - text[at..].trim_start().len();
    loop {
        at = space(at);
        match text[at..].chars().next() {
            None => return Some(scanned),
            Some('}') => {
                scanned.end = Some(at + 1);
                return Some(scanned);
            }
            Some(',') => at = space(at + 1),
            Some('"') => {}
            Some(_) => return None,
        }
        if !text[at..].starts_with('"') {
            return text[at..].is_empty().then_some(scanned);
        }
        let Some(key_end) = value_end(text, at)? else { return Some(scanned) };
        let key: String = serde_json::from_str(&text[at..key_end]).ok()?;
        at = space(key_end);
        match text[at..].chars().next() {
            None => return Some(scanned),
            Some(':') => at = space(at + 1),
            Some(_) => return None,
        }
        if text[at..].is_empty() {
            return Some(scanned);
        }
        let end = value_end(text, at)?;
        let value = &text[at..end.unwrap_or(text.len())];
        match key.as_str() {
            "name" if end.is_some() => scanned.name = Some(serde_json::from_str(value).ok()?),
            "arguments" | "parameters" if !value.starts_with('"') => scanned.arguments = value.into(),
            // JSON within a string counts when it is whole.
            "arguments" | "parameters" if end.is_some() => scanned.arguments = serde_json::from_str(value).ok()?,
            _ => {}
        }
        let Some(end) = end else { return Some(scanned) };
        at = end;
    }
}

/// Reads a name and the object of its arguments.
fn scan_named(text: &str) -> Option<Scanned> {
    let Some(at) = text.find('{') else {
        let unknown = Scanned { name: None, arguments: String::new(), end: None };
        return (text.len() <= NAME).then_some(unknown);
    };
    let name = text[..at].trim_end();
    let name = name.strip_suffix(ARGS).unwrap_or(name).trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > NAME || !name.chars().all(is_name) {
        return None;
    }
    let end = value_end(text, at)?;
    Some(Scanned { name: Some(name.into()), arguments: text[at..end.unwrap_or(text.len())].into(), end })
}

/// Where the JSON value that begins at `at` ends, once it is whole; `None` where there is none.
fn value_end(text: &str, at: usize) -> Option<Option<usize>> {
    let bytes = &text.as_bytes()[at..];
    let first = *bytes.first()?;
    if !matches!(first, b'"' | b'{' | b'[') {
        let is_scalar = first.is_ascii_alphanumeric() || first == b'-';
        let end = bytes.iter().position(|b| matches!(b, b',' | b'}' | b']') || b.is_ascii_whitespace());
        return is_scalar.then_some(end.map(|end| at + end));
    }
    let (mut depth, mut in_string, mut escaped) = (0, false, false);
    for (i, b) in bytes.iter().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
        if depth == 0 && !in_string {
            return Some(Some(at + i + 1));
        }
    }
    Some(None)
}
