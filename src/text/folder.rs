//! Tokenizer and chat template of a folder as Hugging Face transformers saves it.
//!
//! `tokenizer.json` is the format of the `tokenizers` library; here it is BPE, byte-level or with `▁` for a space. Which of
//! its tokens begin and end a text is in `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json` and
//! `config.json`, in this order. All are untrusted and read within limits.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokenizers::models::bpe::Vocab;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::cutter::Cutter;
use super::pieces::SPACE;
use super::tokenizer::{Bpe, FirstSpace, Kind, Parts, Words, bpe, byte_of, wrong};
use super::{ChatTemplate, Tokenizer};
use crate::error::{Error, Result};

/// Bytes of `tokenizer.json`; the largest in use has 33 MB.
const MAX_TOKENIZER: u64 = 128 << 20;
/// Bytes of any other file.
const MAX_FILE: u64 = 16 << 20;
/// Bytes of an added token: all lengths there are, are tried at every place of a text.
const MAX_ADDED: usize = 512;
/// Ids that no token has, below those of tokens.
const MAX_GAPS: usize = 1 << 16;
/// Steps of normalising, and of cutting into words.
const MAX_STEPS: usize = 32;
/// How many times longer normalising may make a text.
const MAX_GROWTH: usize = 16;

const TOKENIZER: &str = "tokenizer.json";
/// Name of the unknown token within the model: no text has this word, so that none can produce the token by its name.
const UNKNOWN: &str = "\0unknown";

#[derive(Deserialize)]
struct Saved {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Json>,
    pre_tokenizer: Option<Json>,
    post_processor: Option<Json>,
    model: Model,
}

/// A token that matches before text is cut into words.
#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    /// Two tokens with a space between.
    Line(String),
}

/// What only tells whether the rest can be read.
#[derive(Deserialize)]
struct Outline {
    model: Type,
}

#[derive(Deserialize)]
struct Type {
    r#type: Option<String>,
}

/// The small files, each null if it is not there.
struct Settings {
    tokenizer: Json,
    special: Json,
    generation: Json,
    model: Json,
}

impl Tokenizer {
    /// The tokenizer of a folder with `tokenizer.json` and the files that go with it.
    ///
    /// What is not BPE, or rests on something that would go unnoticed, is an error that names it.
    pub fn from_folder(folder: &Path) -> Result<Tokenizer> {
        let path = folder.join(TOKENIZER);
        let Some(text) = read(&path, MAX_TOKENIZER)? else {
            let expected = "the file, as save_pretrained of a fast tokenizer writes it";
            return Err(Error::file(&path, "tokenizer", expected, "no such file"));
        };
        let outline: Outline = parse(&path, &text)?;
        if let Some(other) = outline.model.r#type.filter(|kind| kind != "BPE") {
            return Err(Error::file(&path, "model.type", "BPE", shown(&other)));
        }
        let saved = parse(&path, &text)?;
        drop(text);
        build(saved, &Settings::read(folder)?).map_err(|e| match e {
            Error::Tokenizer(what) => Error::Tokenizer(format!("{}: {what}", path.display())),
            other => other,
        })
    }
}

impl ChatTemplate {
    /// The chat template of a folder: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`, which may be
    /// several with names; of those `default` and `tool_use` count.
    pub fn from_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let mut default = read(&folder.join("chat_template.jinja"), MAX_FILE)?;
        let mut tool_use = read(&folder.join("additional_chat_templates").join("tool_use.jinja"), MAX_FILE)?;
        if default.is_none() {
            let config: Json = optional(&folder.join("tokenizer_config.json"))?;
            default = config["chat_template"].as_str().map(String::from);
            for template in config["chat_template"].as_array().into_iter().flatten() {
                let source = template["template"].as_str().map(String::from);
                match template["name"].as_str() {
                    Some("default") => default = source,
                    Some("tool_use") => tool_use = source,
                    _ => {}
                }
            }
        }
        let template = ChatTemplate::for_model(default.as_deref().or(tool_use.as_deref()), tokenizer)?;
        match tool_use {
            Some(source) => template.with_tool_use(&source),
            None => Ok(template),
        }
    }
}

fn build(saved: Saved, settings: &Settings) -> Result<Tokenizer> {
    let Saved { added_tokens, normalizer, pre_tokenizer, post_processor, model } = saved;
    let (tokens, mut kinds) = tokens(&model, &added_tokens)?;
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(tokens.len());
    for (id, token) in (0u32..).zip(&tokens).filter(|(_, token)| !token.is_empty()) {
        ids.entry(token).or_insert(id);
    }
    let special = Special::find(settings, post_processor.as_ref(), &ids, tokens.len())?;
    for &id in special.stop.iter().chain(special.bos.iter()).chain(special.others.iter()) {
        kinds[id as usize] = Kind::Control;
    }
    let strips = |strips: fn(&Added) -> bool| -> HashSet<u32> {
        let strips = added_tokens.iter().filter(|added| strips(added));
        strips.filter_map(|added| ids.get(added.content.as_str())).copied().collect()
    };
    let (strips_before, strips_after) = (strips(|added| added.lstrip), strips(|added| added.rstrip));
    let unk = model
        .unk_token
        .as_deref()
        .map(|unk| ids.get(unk).copied().ok_or_else(|| wrong("model.unk_token", "a token", shown(unk))));
    let unk = unk.transpose()?;

    let mut steps = Steps::default();
    let normalizer = normalizer.filter(|json| !json.is_null()).map(|json| steps.normalizer(&json)).transpose()?;
    if let Some(json) = pre_tokenizer.filter(|json| !json.is_null()) {
        steps.pre_tokenizer(&json, 0)?;
    }
    let Steps { cutter, byte_level, prefix, first, .. } = steps;
    let mut words = Bpe::new(merging(model, &tokens, &kinds, unk)?);
    words.with_normalizer(normalizer).map_err(|e| Error::Tokenizer(e.to_string()))?;
    words.with_pre_tokenizer(Some(cutter));
    Ok(Tokenizer::assemble(Parts {
        words: Words::Bpe(Box::new(words), if first { FirstSpace::Added } else { FirstSpace::AsWritten }),
        tokens,
        kinds,
        byte_level,
        strips_before,
        strips_after,
        add_bos: special.add_bos,
        space_prefix: prefix || first,
        bos: special.bos,
        eos: special.eos,
        unk,
        pad: special.pad,
        stop: special.stop,
        warnings: vec![],
    }))
}

/// All tokens in the order of their ids, and what each is.
fn tokens(model: &Model, added_tokens: &[Added]) -> Result<(Vec<String>, Vec<Kind>)> {
    let added_ids = added_tokens.iter().map(|added| added.id);
    let Some(last) = model.vocab.values().copied().chain(added_ids).max() else {
        return Err(wrong("model.vocab", "at least one token", "none".into()));
    };
    let most = model.vocab.len() + added_tokens.len() + MAX_GAPS;
    if last as usize >= most {
        return Err(wrong("model.vocab", format!("ids below {most}"), last.to_string()));
    }
    let mut tokens = vec![String::new(); last as usize + 1];
    let mut kinds = vec![Kind::Unused; tokens.len()];
    let mut taken = vec![false; tokens.len()];
    for (token, &id) in &model.vocab {
        let at = id as usize;
        if std::mem::replace(&mut taken[at], true) {
            let found = format!("{} and {}", shown(&tokens[at]), shown(token));
            return Err(wrong("model.vocab", format!("one token of id {id}"), found));
        }
        kinds[at] = if model.byte_fallback && byte_of(token).is_some() { Kind::Byte } else { Kind::Normal };
        tokens[at] = token.clone();
    }
    for added in added_tokens {
        if added.single_word {
            let found = shown(&added.content);
            return Err(wrong("added_tokens", "tokens that match within words too", format!("single_word of {found}")));
        }
        if added.content.len() > MAX_ADDED {
            return Err(wrong("added_tokens", format!("at most {MAX_ADDED} bytes"), added.content.len().to_string()));
        }
        // A token that the model has too keeps the model's id, as in the library.
        let at = model.vocab.get(&added.content).copied().unwrap_or(added.id) as usize;
        if taken[at] && tokens[at] != added.content {
            let found = format!("{} and {}", shown(&tokens[at]), shown(&added.content));
            return Err(wrong("added_tokens", format!("one token of id {at}"), found));
        }
        taken[at] = true;
        tokens[at] = added.content.clone();
        kinds[at] = if added.special || is_mark(&added.content) { Kind::Control } else { Kind::UserDefined };
    }
    Ok((tokens, kinds))
}

/// Whether a token is spelled as a mark for the model: some files have these as plain added tokens.
fn is_mark(token: &str) -> bool {
    [("<|", "|>"), ("<｜", "｜>")].iter().any(|(open, close)| token.starts_with(open) && token.ends_with(close))
}

/// The model that merges, without control tokens, so that no text produces them.
fn merging(model: Model, tokens: &[String], kinds: &[Kind], unk: Option<u32>) -> Result<tokenizers::models::bpe::BPE> {
    for (field, value) in [
        ("dropout", model.dropout.filter(|&dropout| dropout != 0.0).map(|dropout| dropout.to_string())),
        ("continuing_subword_prefix", model.continuing_subword_prefix.filter(|prefix| !prefix.is_empty())),
        ("end_of_word_suffix", model.end_of_word_suffix.filter(|suffix| !suffix.is_empty())),
    ] {
        if let Some(value) = value {
            return Err(wrong(format!("model.{field}"), "none", shown(&value)));
        }
    }
    let mut vocab = Vocab::with_capacity(tokens.len() + 1);
    for (id, token) in (0u32..).zip(tokens) {
        if kinds[id as usize] != Kind::Control && !token.is_empty() {
            vocab.entry(token.clone()).or_insert(id);
        }
    }
    let mut merges = Vec::with_capacity(model.merges.len());
    for (i, merge) in model.merges.into_iter().enumerate() {
        let (a, b) = match merge {
            Merge::Pair(a, b) => (a, b),
            Merge::Line(line) => match line.split_once(' ') {
                Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains(' ') => (a.into(), b.into()),
                _ => return Err(wrong(format!("model.merges[{i}]"), "two tokens with a space between", shown(&line))),
            },
        };
        let known = |token: &str| vocab.contains_key(token) || model.vocab.contains_key(token);
        let joined = format!("{a}{b}");
        if let Some(unknown) = [&a, &b, &joined].into_iter().find(|token| !known(token)) {
            return Err(wrong(format!("model.merges[{i}]"), "tokens of the vocabulary", shown(unknown)));
        }
        if [&a, &b, &joined].into_iter().all(|token| vocab.contains_key(token)) {
            merges.push((a, b));
        }
    }
    if let Some(unk) = unk {
        vocab.insert(UNKNOWN.into(), unk);
    }
    let mut builder = bpe(vocab, merges, "model.merges")?
        .fuse_unk(model.fuse_unk)
        .byte_fallback(model.byte_fallback)
        .ignore_merges(model.ignore_merges);
    if unk.is_some() {
        builder = builder.unk_token(UNKNOWN.into());
    }
    builder.build().map_err(|e| Error::Tokenizer(format!("model.merges: {e}")))
}

/// What happens to a text before tokens are merged.
#[derive(Default)]
struct Steps {
    count: usize,
    cutter: Cutter,
    byte_level: bool,
    /// Every stretch of text begins with a space.
    prefix: bool,
    /// Only the first one does.
    first: bool,
}

impl Steps {
    fn count(&mut self) -> Result<()> {
        self.count += 1;
        match self.count > MAX_STEPS {
            true => Err(wrong("normalizer and pre_tokenizer", format!("at most {MAX_STEPS} steps"), "more".into())),
            false => Ok(()),
        }
    }

    fn normalizer(&mut self, json: &Json) -> Result<NormalizerWrapper> {
        let growth = self.check_normalizer(json, 0)?;
        if growth > MAX_GROWTH {
            let expected = format!("a text at most {MAX_GROWTH} times as long");
            return Err(wrong("normalizer", expected, format!("{growth} times")));
        }
        from_json("normalizer", json)
    }

    /// How many times longer a text can get.
    fn check_normalizer(&mut self, json: &Json, depth: usize) -> Result<usize> {
        self.count()?;
        match json["type"].as_str() {
            Some("Sequence") if depth < MAX_STEPS => {
                let steps = json["normalizers"].as_array().into_iter().flatten();
                steps
                    .map(|step| self.check_normalizer(step, depth + 1))
                    .try_fold(1, |a: usize, b| Ok(a.saturating_mul(b?)))
            }
            Some("NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "Strip") => Ok(1),
            Some("Prepend") => {
                self.prefix = json["prepend"].as_str().is_some_and(|prepend| prepend.chars().eq([SPACE]));
                match self.prefix {
                    true => Ok(1),
                    false => Err(wrong("normalizer.prepend", format!("{SPACE}"), shown(&json["prepend"].to_string()))),
                }
            }
            Some("Replace") => {
                let (pattern, content) = (json["pattern"]["String"].as_str(), json["content"].as_str());
                match (pattern, content) {
                    (Some(pattern), Some(content)) if !pattern.is_empty() => {
                        Ok(content.len().div_ceil(pattern.len()).max(1))
                    }
                    _ => Err(wrong("normalizer.pattern", "a string", shown(&json["pattern"].to_string()))),
                }
            }
            other => {
                let expected = "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend or Replace, not nested deeply";
                Err(wrong("normalizer.type", expected, shown(other.unwrap_or("none"))))
            }
        }
    }

    fn pre_tokenizer(&mut self, json: &Json, depth: usize) -> Result<()> {
        self.count()?;
        let cutter = std::mem::take(&mut self.cutter);
        self.cutter = match json["type"].as_str() {
            Some("Sequence") if depth < MAX_STEPS => {
                self.cutter = cutter;
                for step in json["pretokenizers"].as_array().into_iter().flatten() {
                    self.pre_tokenizer(step, depth + 1)?;
                }
                return Ok(());
            }
            Some("Split") => {
                let regex = match (json["pattern"]["Regex"].as_str(), json["pattern"]["String"].as_str()) {
                    (Some(regex), _) => regex.into(),
                    (None, Some(string)) => fancy_regex::escape(string).into_owned(),
                    _ => {
                        return Err(wrong(
                            "pre_tokenizer.pattern",
                            "Regex or String",
                            shown(&json["pattern"].to_string()),
                        ));
                    }
                };
                let behavior: SplitDelimiterBehavior = from_json("pre_tokenizer.behavior", &json["behavior"])?;
                cutter.split(&regex, behavior, json["invert"].as_bool().unwrap_or(false))?
            }
            Some("Metaspace") => {
                let mut json = json.clone();
                // Only whoever has the whole text knows its beginning.
                if json["prepend_scheme"] == "first" {
                    json["prepend_scheme"] = "never".into();
                    self.first = true;
                }
                let step: PreTokenizerWrapper = from_json("pre_tokenizer", &json)?;
                match &step {
                    PreTokenizerWrapper::Metaspace(metaspace) if metaspace.get_replacement() == SPACE => {
                        self.prefix |= metaspace.get_prepend_scheme() == PrependScheme::Always;
                    }
                    _ => {
                        return Err(wrong(
                            "pre_tokenizer.replacement",
                            format!("{SPACE}"),
                            shown(&json["replacement"].to_string()),
                        ));
                    }
                }
                cutter.then(step)
            }
            Some(kind @ ("ByteLevel" | "Digits" | "Punctuation" | "Whitespace" | "WhitespaceSplit")) => {
                self.byte_level |= kind == "ByteLevel";
                cutter.then(from_json::<PreTokenizerWrapper>("pre_tokenizer", json)?)
            }
            other => {
                let expected = "Sequence, Split, Metaspace, ByteLevel, Digits, Punctuation, Whitespace or WhitespaceSplit, not nested deeply";
                return Err(wrong("pre_tokenizer.type", expected, shown(other.unwrap_or("none"))));
            }
        };
        Ok(())
    }
}

/// Tokens that the small files name.
struct Special {
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    add_bos: bool,
    /// Tokens that end a text.
    stop: Vec<u32>,
    /// What else is no text.
    others: Vec<u32>,
}

impl Special {
    fn find(settings: &Settings, processor: Option<&Json>, ids: &HashMap<&str, u32>, tokens: usize) -> Result<Special> {
        let Settings { tokenizer, special, generation, model } = settings;
        let text = |json: &Json| json.as_str().or(json["content"].as_str()).and_then(|token| ids.get(token)).copied();
        let id = |json: &Json, what: &str| match json.as_u64() {
            Some(id) if (id as usize) < tokens => Ok(id as u32),
            _ => Err(wrong(what.to_owned(), format!("a token's id, below {tokens}"), shown(&json.to_string()))),
        };
        // One id or a list of them; of the two files the first that has any counts.
        let numbered = |name: &str| {
            let listed = [(generation, "generation_config.json"), (model, "config.json")];
            let Some((json, file)) = listed.into_iter().find(|(json, _)| !json[name].is_null()) else {
                return Ok(vec![]);
            };
            let what = format!("{name} of {file}");
            match &json[name] {
                Json::Array(listed) => listed.iter().map(|json| id(json, &what)).collect(),
                json => id(json, &what).map(|id| vec![id]),
            }
        };
        let named = |name: &str| text(&tokenizer[name]).or_else(|| text(&special[name]));
        let first = processor.and_then(|processor| first_token(processor, 0));
        let numbered_eos = numbered("eos_token_id")?;
        let bos = match named("bos_token").or_else(|| first.and_then(|first| ids.get(first).copied())) {
            Some(bos) => Some(bos),
            None => numbered("bos_token_id")?.first().copied(),
        };
        let eos = named("eos_token").or(numbered_eos.first().copied());
        let additional =
            [tokenizer, special].into_iter().filter_map(|json| json["additional_special_tokens"].as_array());
        Ok(Special {
            bos,
            eos,
            pad: named("pad_token"),
            add_bos: tokenizer["add_bos_token"].as_bool().unwrap_or(first.is_some()),
            stop: numbered_eos.into_iter().chain(eos).collect(),
            others: additional.flatten().filter_map(text).collect(),
        })
    }
}

/// The token that `post_processor` puts before a text.
fn first_token(processor: &Json, depth: usize) -> Option<&str> {
    match processor["type"].as_str()? {
        "Sequence" if depth < MAX_STEPS => {
            processor["processors"].as_array()?.iter().find_map(|processor| first_token(processor, depth + 1))
        }
        "TemplateProcessing" => processor["single"][0]["SpecialToken"]["id"].as_str(),
        _ => None,
    }
}

impl Settings {
    fn read(folder: &Path) -> Result<Settings> {
        let file = |name| optional(&folder.join(name));
        Ok(Settings {
            tokenizer: file("tokenizer_config.json")?,
            special: file("special_tokens_map.json")?,
            generation: file("generation_config.json")?,
            model: file("config.json")?,
        })
    }
}

/// The file's JSON; null if there is no file.
fn optional(path: &Path) -> Result<Json> {
    read(path, MAX_FILE)?.map_or(Ok(Json::Null), |text| parse(path, &text))
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::file(path, "JSON", "what transformers writes", shown(&e.to_string())))
}

fn from_json<T: DeserializeOwned>(what: &'static str, json: &Json) -> Result<T> {
    T::deserialize(json).map_err(|e| wrong(what, "what tokenizers writes", shown(&e.to_string())))
}

/// The text of a file of at most `most` bytes, `None` if there is none.
fn read(path: &Path, most: u64) -> Result<Option<String>> {
    // A pipe would block in `open`, so ask first.
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path)(e)),
        Ok(m) if !m.is_file() => return Err(Error::file(path, "file type", "a regular file", "a directory or device")),
        Ok(m) if m.len() > most => return Err(Error::file(path, "size", format!("at most {most} bytes"), m.len())),
        Ok(_) => {}
    }
    let mut text = String::new();
    // A file may grow meanwhile.
    File::open(path).and_then(|file| file.take(most).read_to_string(&mut text)).map_err(Error::io(path))?;
    Ok(Some(text))
}

/// Text of a file as an error may print it.
fn shown(text: &str) -> String {
    const MOST: usize = 120;
    let start: String = text.chars().take(MOST).collect();
    format!("{}{}", start.escape_debug(), if start.len() < text.len() { "…" } else { "" })
}
