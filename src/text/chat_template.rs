//! The Jinja template of a checkpoint, which turns a chat into the text that the model was trained on.
//!
//! Renders as `apply_chat_template` of Hugging Face transformers does. Templates and messages are both untrusted: what
//! a template may cost is bounded, and control tokens typed by a user stay text (see [`ChatTemplate::encode`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value};
use serde_json::Map;
use serde_json::Value as Json;

use crate::error::{Error, Result};
use crate::text::{Tokenizer, ToolStyle};

/// The format of models that have `<|im_start|>` and no template.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Bytes of a template's source.
const MAX_SOURCE: usize = 256 << 10;
/// Letters `+-*/%~` in the source: minijinja folds a chain of constants at quadratic cost before any fuel counts.
const MAX_OPERATORS: usize = 8192;
/// Bytes of rendered text.
const MAX_OUTPUT: usize = 16 << 20;
/// Instructions of one rendering; 64 bytes of any intermediate string cost one too, so this bounds memory as well.
const MAX_FUEL: u64 = 1_000_000;
/// Bytes of stack, of which untouched pages take no memory. minijinja recurses: parsing into operators, at most one for
/// each byte of the source; comparing and dropping into lists, of which [`MAX_FUEL`] buys about 600,000, 500 bytes each.
const STACK: usize = 512 << 20;
/// Nested macro calls, loops and blocks, in minijinja's units.
const MAX_RECURSION: usize = 200;
/// Lists and maps within each other that `tojson` writes.
const MAX_JSON_DEPTH: usize = 128;

/// One message of a chat.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// "system", "user", "assistant", "tool", or what else the template knows.
    pub role: String,
    /// Text, null beside tool calls, or a list of parts as in OpenAI's API. Parts of text are joined by line feeds for a
    /// template that cannot read them.
    pub content: Json,
    /// `tool_calls`, `name`, `tool_call_id`, `reasoning_content` and whatever else the template may read.
    pub extra: Map<String, Json>,
}

/// What is rendered: messages and how.
#[derive(Clone, Debug, Default)]
pub struct Chat<'a> {
    /// In order of the conversation.
    pub messages: &'a [Message],
    /// Functions the model may call, as OpenAI's API describes them.
    pub tools: &'a [Json],
    /// Texts that the answer should rest on.
    pub documents: &'a [Json],
    /// End with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// More variables, such as `enable_thinking`.
    pub extra: Map<String, Json>,
    /// What `strftime_now` takes for now, in UTC; the clock if `None`.
    pub now: Option<SystemTime>,
}

/// A parsed template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    /// Characters of the source that could be taken for markers.
    private: BTreeSet<char>,
}

const NAME: &str = "template";
const TOOL_USE: &str = "tool_use";

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: Json::String(content.into()), extra: Map::new() }
    }

    /// The message with one more field.
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Json>) -> Message {
        self.extra.insert(field.into(), value.into());
        self
    }

    /// A message in the form of OpenAI's API. There the arguments of tool calls are JSON within a string; templates want
    /// the object.
    pub fn from_json(json: Json) -> Result<Message> {
        let Json::Object(mut extra) = json else {
            return Err(Error::request("message", "an object", kind_of(&json)));
        };
        let role = match extra.shift_remove("role") {
            Some(Json::String(role)) => role,
            other => return Err(Error::request("role of a message", "a string", kind_of(&other.unwrap_or_default()))),
        };
        let content = extra.shift_remove("content").unwrap_or_default();
        if !matches!(content, Json::Null | Json::String(_) | Json::Array(_)) {
            return Err(Error::request("content of a message", "a string, an array or null", kind_of(&content)));
        }
        for call in extra.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten() {
            let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments")) else {
                continue;
            };
            if let Some(Ok(object @ Json::Object(_))) = arguments.as_str().map(serde_json::from_str::<Json>) {
                *arguments = object;
            }
        }
        Ok(Message { role, content, extra })
    }

    fn with_joined_parts(&self) -> Result<Message> {
        let Json::Array(parts) = &self.content else { return Ok(self.clone()) };
        let texts: Vec<&str> = parts
            .iter()
            .map(|part| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text),
                (kind, _) => {
                    let expected = "text only, as the model's chat template reads no other parts";
                    Err(Error::request("parts of a message", expected, kind.unwrap_or("a part without a type")))
                }
            })
            .collect::<Result<_>>()?;
        Ok(Message { content: texts.join("\n").into(), ..self.clone() })
    }

    fn to_json(&self) -> Json {
        let mut json = Map::new();
        json.insert("role".into(), self.role.clone().into());
        json.insert("content".into(), self.content.clone());
        json.extend(self.extra.iter().map(|(field, value)| (field.clone(), value.clone())));
        json.into()
    }
}

impl ChatTemplate {
    /// Parses a template. `bos` and `eos` are the texts of those tokens, empty if there are none.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(template_error)?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(MAX_FUEL));
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.remove_global("debug");
        // Indents nested lists at quadratic cost and without fuel.
        environment.remove_filter("pprint");
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
        });
        let private = BTreeSet::new();
        ChatTemplate { environment, bos: bos.into(), eos: eos.into(), private }.add(NAME, source)
    }

    /// With a template of its own for chats with tools.
    pub fn with_tool_use(self, source: &str) -> Result<ChatTemplate> {
        self.add(TOOL_USE, source)
    }

    fn add(mut self, name: &'static str, source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            let found = source.len();
            return Err(Error::Template(format!("the source has {found} bytes, more than the limit of {MAX_SOURCE}")));
        }
        let operators = source.bytes().filter(|b| b"+-*/%~".contains(b)).count();
        if operators > MAX_OPERATORS {
            let what =
                format!("the source has {operators} of the letters +-*/%~, more than the limit of {MAX_OPERATORS}");
            return Err(Error::Template(what));
        }
        let environment = &mut self.environment;
        on_deep_stack(|| {
            environment.add_template_owned(name, without_generation_tags(source)).map_err(template_error)
        })?;
        self.private.extend(source.chars().filter(|&c| is_private(c)));
        Ok(self)
    }

    /// The template of a model: the file's own, or [`CHATML`] where the vocabulary has `<|im_start|>`.
    pub fn for_model(source: Option<&str>, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or("");
        let source = match source {
            Some(source) => source,
            None if tokenizer.id("<|im_start|>").is_some() => CHATML,
            None => {
                let why = "the model has none, nor the token <|im_start|> of ChatML: it is no chat model, or give one";
                return Err(Error::Template(why.into()));
            }
        };
        ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// How the template has the model call tools; `None` where it does not tell the model of any.
    pub fn tool_style(&self) -> Option<ToolStyle> {
        let name = if self.environment.get_template(TOOL_USE).is_ok() { TOOL_USE } else { NAME };
        let template = self.environment.get_template(name).ok()?;
        template.source().contains("tools").then(|| ToolStyle::of_template(template.source()))
    }

    /// The chat as text. To encode a chat use [`encode`](Self::encode): in the text alone, what a user typed and what
    /// the template wrote look the same.
    pub fn render(&self, chat: &Chat) -> Result<String> {
        let messages = self.with_readable_parts(chat)?;
        let chat = &Chat { messages: &messages, ..chat.clone() };
        self.render_variables(self.variables(chat), chat.now)
    }

    /// The chat as tokens, BOS included if the model wants it.
    ///
    /// Control tokens count only where the template begins them: in messages, tools and variables they are text.
    /// If the template reads control tokens in a message, so that the two cannot be told apart, that is an error.
    pub fn encode(&self, tokenizer: &Tokenizer, chat: &Chat) -> Result<Vec<u32>> {
        let messages = self.with_readable_parts(chat)?;
        let (text, typed) = self.render_marked(tokenizer, &Chat { messages: &messages, ..chat.clone() })?;
        Ok(tokenizer.with_bos(tokenizer.encode_where(&text, |at| typed.binary_search(&at).is_err())?))
    }

    /// The messages, in which lists of text parts are joined by line feeds if the template cannot read lists.
    ///
    /// It can if all texts come out and no list does; that is tried with one more field in each part.
    fn with_readable_parts<'a>(&self, chat: &Chat<'a>) -> Result<Cow<'a, [Message]>> {
        const PROBE: &str = "farpast-part";
        let mut probe = chat.messages.to_vec();
        let mut texts = vec![];
        for part in probe.iter_mut().filter_map(|message| message.content.as_array_mut()).flatten() {
            if let Some(part) = part.as_object_mut() {
                texts.extend(part.get("text").and_then(Json::as_str).map(|text| text.trim().to_owned()));
                part.insert(PROBE.into(), PROBE.into());
            }
        }
        if !chat.messages.iter().any(|message| message.content.is_array()) {
            return Ok(chat.messages.into());
        }
        let probed = self.render_variables(self.variables(&Chat { messages: &probe, ..chat.clone() }), chat.now);
        if probed.is_ok_and(|found| !found.contains(PROBE) && texts.iter().all(|text| found.contains(text))) {
            return Ok(chat.messages.into());
        }
        chat.messages.iter().map(Message::with_joined_parts).collect()
    }

    /// The text, and the bytes in it where a control token may not begin because a user typed it.
    ///
    /// Before rendering, first letters of control tokens in the chat are replaced by private-use characters that occur
    /// nowhere else; afterwards these tell the places. At first all such letters are replaced, which also covers tokens
    /// put together from several strings. If the template looks at one of them (as in `startswith('<tool_call>')`), only
    /// those are replaced that begin a control token, or the beginning of one at the end of a string.
    fn render_marked(&self, tokenizer: &Tokenizer, chat: &Chat) -> Result<(String, Vec<usize>)> {
        let variables = self.variables(chat);
        let mut firsts: BTreeMap<char, Vec<&str>> = BTreeMap::new();
        for token in tokenizer.control_tokens() {
            firsts.entry(token.chars().next().unwrap_or_default()).or_default().push(token);
        }
        let mut used = self.private.clone();
        let mut typed = BTreeSet::new();
        for variable in variables.values() {
            for_each_string(variable, &mut |string| {
                used.extend(string.chars().filter(|&c| is_private(c)));
                typed.extend(string.chars().filter(|c| firsts.contains_key(c)));
            });
        }
        let plain = self.render_variables(variables.clone(), chat.now)?;
        if typed.is_empty() {
            return Ok((plain, vec![]));
        }
        let free = PRIVATE.filter(|marker| !used.contains(marker));
        let markers: BTreeMap<char, char> = typed.iter().copied().zip(free).collect();
        if markers.len() < typed.len() {
            return Err(Error::Template("the chat uses all private-use characters of Unicode".into()));
        }
        let letters: BTreeMap<char, char> = markers.iter().map(|(&letter, &marker)| (marker, letter)).collect();

        let every = |string: &str| string.chars().map(|c| *markers.get(&c).unwrap_or(&c)).collect();
        let beginning = |string: &str| {
            let ends = string.trim_end();
            let begins = |at: usize, c: char| {
                let rest = &string[at..];
                let tail = ends.get(at..).filter(|tail| !tail.is_empty());
                firsts[&c]
                    .iter()
                    .any(|token| rest.starts_with(token) || tail.is_some_and(|tail| token.starts_with(tail)))
            };
            let mark = |(at, c)| match markers.get(&c) {
                Some(&marker) if begins(at, c) => marker,
                _ => c,
            };
            string.char_indices().map(mark).collect()
        };
        let ways: [&dyn Fn(&str) -> String; 2] = [&every, &beginning];
        for mark in ways {
            let marked = variables.iter().map(|(name, value)| (name.clone(), map_strings(value, mark))).collect();
            // A template may raise on seeing a marker; the plain text is there, so that is a difference, no error.
            let Ok(rendered) = self.render_variables(marked, chat.now) else { continue };
            let mut text = String::with_capacity(plain.len());
            let mut typed = vec![];
            for c in rendered.chars() {
                if letters.contains_key(&c) {
                    typed.push(text.len());
                }
                text.push(*letters.get(&c).unwrap_or(&c));
            }
            if text == plain {
                return Ok((text, typed));
            }
        }
        Err(Error::Template(
            "a message contains a control token that the template itself looks for, so that it cannot be told from the \
             template's own"
                .into(),
        ))
    }

    fn variables(&self, chat: &Chat) -> Map<String, Json> {
        let list = |list: &[Json]| if list.is_empty() { Json::Null } else { Json::Array(list.to_vec()) };
        let mut variables = Map::new();
        variables.insert("messages".into(), chat.messages.iter().map(Message::to_json).collect());
        variables.insert("tools".into(), list(chat.tools));
        variables.insert("documents".into(), list(chat.documents));
        variables.insert("add_generation_prompt".into(), chat.add_generation_prompt.into());
        variables.extend(chat.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        variables
    }

    fn render_variables(&self, variables: Map<String, Json>, now: Option<SystemTime>) -> Result<String> {
        let now = now.unwrap_or_else(SystemTime::now);
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let strftime_now = move |state: &State, format: String| -> Result<String, minijinja::Error> {
            state.consume_fuel(format.len() as u64)?;
            Ok(strftime(seconds, &format))
        };
        let has_tools = variables.get("tools").is_some_and(|tools| !tools.is_null());
        let render = || -> Result<String> {
            let mut context = BTreeMap::from([
                ("bos_token".to_owned(), Value::from(self.bos.as_str())),
                ("eos_token".to_owned(), Value::from(self.eos.as_str())),
                ("strftime_now".to_owned(), Value::from_function(strftime_now)),
            ]);
            context.extend(variables.into_iter().map(|(name, value)| (name, to_value(value))));
            let template = match has_tools.then(|| self.environment.get_template(TOOL_USE)) {
                Some(Ok(template)) => template,
                _ => self.environment.get_template(NAME).map_err(template_error)?,
            };
            let mut output = Limited { text: vec![], full: false };
            let rendered = template.render_captured_to(Value::from(context), &mut output).map(drop);
            if output.full {
                return Err(Error::Template(format!("the text exceeds the limit of {MAX_OUTPUT} bytes")));
            }
            rendered.map_err(template_error)?;
            String::from_utf8(output.text).map_err(|e| Error::Template(e.to_string()))
        };
        on_deep_stack(render)
    }
}

fn to_value(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(bool) => bool.into(),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (_, Some(number)) => number.into(),
            _ => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        Json::String(string) => string.into(),
        Json::Array(items) => items.into_iter().map(to_value).collect(),
        Json::Object(fields) => Value::from_pairs(fields.into_iter().map(|(key, value)| (key, to_value(value)))),
    }
}

/// Private-use plane 16, whose characters serve as markers.
const PRIVATE: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10FFFD}';

fn is_private(c: char) -> bool {
    PRIVATE.contains(&c)
}

fn kind_of(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn for_each_string(json: &Json, f: &mut impl FnMut(&str)) {
    match json {
        Json::String(string) => f(string),
        Json::Array(items) => items.iter().for_each(|item| for_each_string(item, f)),
        Json::Object(fields) => fields.iter().for_each(|(key, value)| {
            f(key);
            for_each_string(value, f);
        }),
        _ => {}
    }
}

fn map_strings(json: &Json, f: &dyn Fn(&str) -> String) -> Json {
    match json {
        Json::String(string) => f(string).into(),
        Json::Array(items) => items.iter().map(|item| map_strings(item, f)).collect(),
        Json::Object(fields) => fields.iter().map(|(key, value)| (f(key), map_strings(value, f))).collect(),
        other => other.clone(),
    }
}

/// What the template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn template_error(error: minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(this) = cause {
        if let Some(Raised(message)) = this.downcast_ref() {
            return Error::Chat(message.clone());
        }
        cause = this.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => Error::Template(format!("rendering exceeds the limit of {MAX_FUEL} instructions")),
        _ => Error::Template(error.to_string()),
    }
}

fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(NAME.into()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Error::Template(format!("no thread to work in: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(Error::Template("the template engine panicked".into())))
    })
}

struct Limited {
    text: Vec<u8>,
    full: bool,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > MAX_OUTPUT - self.text.len() {
            self.full = true;
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}` and `{% endgeneration %}` tell transformers which text to train on. Here they are no-ops.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let inside = &rest[at + 2..];
        let open = if inside.starts_with(['-', '+']) { &inside[..1] } else { "" };
        let word = inside[open.len()..].trim_start();
        let (tag, after) = match (word.strip_prefix("generation"), word.strip_prefix("endgeneration")) {
            (Some(after), _) => ("if true", after.trim_start()),
            (_, Some(after)) => ("endif", after.trim_start()),
            _ => ("", word),
        };
        let close = if after.starts_with(['-', '+']) { &after[..1] } else { "" };
        match after[close.len()..].strip_prefix("%}") {
            Some(after) if !tag.is_empty() => {
                result.push_str(&rest[..at]);
                result.push_str(&format!("{{%{open} {tag} {close}%}}"));
                rest = after;
            }
            _ => {
                result.push_str(&rest[..at + 2]);
                rest = inside;
            }
        }
    }
    result + rest
}

/// Python's `json.dumps(value, ensure_ascii=False)`, which transformers puts in the place of Jinja's HTML-safe filter.
fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(indent) => indent.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        }),
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "tojson wants two separators")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut json = JsonText {
        state,
        text: String::new(),
        indent,
        item,
        key,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    json.value(value, 0)?;
    Ok(json.text)
}

struct JsonText<'a, 't, 'e> {
    state: &'a State<'t, 'e>,
    text: String,
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort: bool,
}

impl JsonText<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), minijinja::Error> {
        // Elements cost as instructions do, so that a short expression cannot ask for much work.
        self.state.consume_fuel(1)?;
        let wrong = |what: String| minijinja::Error::new(ErrorKind::InvalidOperation, what);
        if depth > MAX_JSON_DEPTH {
            return Err(wrong(format!("tojson exceeds the limit of {MAX_JSON_DEPTH} nested values")));
        }
        if self.text.len() > MAX_OUTPUT {
            return Err(wrong(format!("tojson exceeds the limit of {MAX_OUTPUT} bytes")));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.text.push_str(&value.to_string()),
            ValueKind::Number => self.text.push_str(&python_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                let mut empty = true;
                for element in value.try_iter()? {
                    self.begin_item(&mut empty, depth);
                    self.value(&element, depth + 1)?;
                }
                self.end(empty, depth, ']');
            }
            ValueKind::Map => {
                self.text.push('{');
                let mut empty = true;
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                for key in keys {
                    self.begin_item(&mut empty, depth);
                    let element = value.get_item(&key)?;
                    match key.as_str() {
                        Some(key) => self.string(key),
                        None => self.string(&key.to_string()),
                    }
                    let separator = self.key.clone();
                    self.text.push_str(&separator);
                    self.value(&element, depth + 1)?;
                }
                self.end(empty, depth, '}');
            }
            kind => return Err(wrong(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn begin_item(&mut self, empty: &mut bool, depth: usize) {
        if !*empty {
            self.text.push_str(&self.item);
        }
        *empty = false;
        self.line(depth + 1);
    }

    fn end(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.line(depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            (0..depth).for_each(|_| self.text.push_str(indent));
        }
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for c in string.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{C}' => self.text.push_str("\\f"),
                '\0'..='\u{1F}' => self.text.push_str(&format!("\\u{:04x}", c as u32)),
                '\u{7F}'.. if self.ascii && c != '\u{7F}' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

/// Python's `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn python_float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "NaN"
        } else if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..=15 if number.fract() == 0.0 => format!("{number:.1}"),
        -4..=15 => number.to_string(),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// C's `strftime` in UTC and the C locale. Unknown directives stay as they are.
fn strftime(seconds: u64, format: &str) -> String {
    const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (days, second) = (seconds / 86400, seconds % 86400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // Years that begin in March end in the leap day: H. Hinnant, "chrono-compatible low-level date algorithms".
    let (era, day_of_era) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let leap = u64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
    let day_of_year = if month > 2 { day_of_year + 60 + leap } else { day_of_year - 305 };
    let (weekday, month_name) = (DAYS[((days + 4) % 7) as usize], MONTHS[(month - 1) as usize]);
    let hour12 = (hour + 11) % 12 + 1;

    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let rest = letters.as_str();
        let plain = rest.starts_with('-');
        if plain {
            letters.next();
        }
        let number = |number: u64, width: usize| if plain { number.to_string() } else { format!("{number:0width$}") };
        text += &match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(day_of_year, 3),
            Some('B') => month_name.into(),
            Some('b' | 'h') => month_name[..3].into(),
            Some('A') => weekday.into(),
            Some('a') => weekday[..3].into(),
            Some('w') => ((days + 4) % 7).to_string(),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('D' | 'x') => format!("{month:02}/{day:02}/{:02}", year % 100),
            Some('T' | 'X') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('c') => {
                format!("{} {} {day:2} {hour:02}:{minute:02}:{second:02} {year}", &weekday[..3], &month_name[..3])
            }
            Some('s') => seconds.to_string(),
            Some('Z') => "UTC".into(),
            Some('z') => "+0000".into(),
            Some('n') => "\n".into(),
            Some('t') => "\t".into(),
            Some('%') => "%".into(),
            _ => {
                let unknown = rest.len() - letters.as_str().len();
                format!("%{}", &rest[..unknown])
            }
        };
    }
    text
}
