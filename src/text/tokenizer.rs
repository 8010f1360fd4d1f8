//! BPE with the vocabulary of a checkpoint: byte-level, or by score as SentencePiece's (see [`Pieces`]).
//!
//! Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units"; bytes as letters:
//! Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
//! Agrees with the Hugging Face `tokenizers` configuration that each model was published with.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use tokenizers::NormalizerWrapper;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;

use super::cutter::Cutter;
use super::pieces::{Pieces, SPACE};
use crate::error::{Error, Result};

/// What a checkpoint says of its tokens; the fields are those of GGUF's `tokenizer.ggml.*`.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary<'a> {
    /// `model`: "gpt2" for byte-level BPE, "llama" for SentencePiece's BPE.
    pub model: &'a str,
    /// `pre`: how text is cut into words before byte-level merging. Old files lack it; see [`Tokenizer::warnings`].
    pub pre: Option<&'a str>,
    /// `tokens`, in the order of their ids.
    pub tokens: Vec<&'a str>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty: all are normal.
    pub token_types: &'a [i32],
    /// `scores` of the "llama" model: of two pieces the one of the higher score is made first.
    pub scores: &'a [f32],
    /// `merges` of the "gpt2" model: two tokens with a space between, the first merge first.
    pub merges: Vec<&'a str>,
    /// `add_space_prefix` of the "llama" model: a text begins as if a space stood before it. The default is true.
    pub add_space_prefix: Option<bool>,
    /// Control tokens take the white space behind them along, as Phi-3's do. No field of GGUF tells.
    pub strips_after_control: bool,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`.
    pub eot: Option<u32>,
    /// `eom_token_id`.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
}

/// What a control token such as `<|im_end|>` that occurs in a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Text like any other. For whatever a user wrote.
    AsText,
    /// The control token. For text of the program's own making.
    Parse,
}

/// Text to tokens and back.
#[derive(Debug)]
pub struct Tokenizer {
    words: Words,
    tokens: Vec<String>,
    kinds: Vec<Kind>,
    /// Bytes of token `i`: `bytes[ends[i - 1]..ends[i]]`.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Tokens that match before text is cut into words: control and user-defined ones.
    whole: HashMap<String, u32>,
    /// Byte lengths of the tokens in `whole` by first byte, longest first.
    whole_lengths: Box<[Vec<usize>; 256]>,
    /// Of those, the ones that take white space before or behind them along.
    strips_before: HashSet<u32>,
    strips_after: HashSet<u32>,
    add_bos: bool,
    /// The first text of a decoded list begins with a space that encoding put there.
    space_prefix: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    stop: Vec<u32>,
    warnings: Vec<String>,
}

/// What a tokenizer is put together from, whatever file it was in.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) words: Words,
    /// In the order of their ids; empty where there is none.
    pub(super) tokens: Vec<String>,
    pub(super) kinds: Vec<Kind>,
    /// Tokens are spelled in the byte-level alphabet, not with `▁` for a space.
    pub(super) byte_level: bool,
    pub(super) strips_before: HashSet<u32>,
    pub(super) strips_after: HashSet<u32>,
    pub(super) add_bos: bool,
    pub(super) space_prefix: bool,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) pad: Option<u32>,
    /// Tokens that end a text, whatever their names.
    pub(super) stop: Vec<u32>,
    pub(super) warnings: Vec<String>,
}

/// Turns text without whole tokens into tokens. Knows no control tokens, so no text can produce one but the unknown token.
#[derive(Debug)]
pub(super) enum Words {
    /// Merges in order, and a `▁` before the first words if that is where a space goes.
    Bpe(Box<Bpe>, FirstSpace),
    Pieces(Box<Pieces>),
}

pub(super) type Bpe = tokenizers::TokenizerImpl<
    BPE,
    NormalizerWrapper,
    Cutter,
    tokenizers::PostProcessorWrapper,
    tokenizers::DecoderWrapper,
>;

/// Whether the words at the beginning of a whole text, and only those, begin with a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstSpace {
    Added,
    AsWritten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Names of tokens that end a turn or a text, whatever ids a file gives (the list of llama.cpp's `llama-vocab.cpp`).
const STOP_NAMES: [&str; 23] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|end_of_turn|>",
];

/// Control tokens of Phi-3 that leave white space behind them.
const PHI3_KEEPS_SPACE: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is cut into words, by the name that GGUF converters give.
struct Pre {
    names: &'static [&'static str],
    cut: Cut,
    /// Unicode normal form C first.
    nfc: bool,
    /// A word that is a token needs no merges.
    ignore_merges: bool,
    add_bos: bool,
}

enum Cut {
    Gpt2,
    DigitsGpt2,
    Regex(&'static str),
}

const PRES: [Pre; 4] = [
    Pre { names: &["gpt-2", "gpt2", "default"], cut: Cut::Gpt2, nfc: false, ignore_merges: false, add_bos: false },
    Pre { names: &["smollm"], cut: Cut::DigitsGpt2, nfc: false, ignore_merges: false, add_bos: false },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cut: Cut::Regex(LLAMA3),
        nfc: false,
        ignore_merges: true,
        add_bos: true,
    },
    Pre { names: &["qwen2"], cut: Cut::Regex(QWEN2), nfc: true, ignore_merges: false, add_bos: false },
];

impl Tokenizer {
    /// Checks the vocabulary and builds the tokenizer. Of tokens with equal text the first counts.
    pub fn new(vocabulary: &Vocabulary) -> Result<Tokenizer> {
        let tokens = &vocabulary.tokens;
        if tokens.is_empty() || tokens.len() > i32::MAX as usize {
            return Err(wrong("tokenizer.ggml.tokens", "at least one token", format!("{} tokens", tokens.len())));
        }
        for (name, id) in [
            ("bos", vocabulary.bos),
            ("eos", vocabulary.eos),
            ("eot", vocabulary.eot),
            ("eom", vocabulary.eom),
            ("unknown", vocabulary.unk),
            ("padding", vocabulary.pad),
        ] {
            if let Some(id) = id.filter(|&id| id as usize >= tokens.len()) {
                let field = format!("tokenizer.ggml.{name}_token_id");
                return Err(wrong(field, format!("less than {}", tokens.len()), id.to_string()));
            }
        }
        let mut warnings = vec![];
        let merges = merges(vocabulary)?;
        let kinds = kinds(vocabulary, &merges, &mut warnings)?;
        let (words, add_bos, space_prefix) = match vocabulary.model {
            "gpt2" => {
                let pre = pre(vocabulary, &mut warnings)?;
                let bpe = byte_level(vocabulary, &merges, &kinds, pre)?;
                (Words::Bpe(Box::new(bpe), FirstSpace::AsWritten), pre.add_bos, false)
            }
            "llama" => {
                let prefix = vocabulary.add_space_prefix.unwrap_or(true);
                (Words::Pieces(Box::new(pieces(vocabulary, &kinds, prefix)?)), true, prefix)
            }
            other => {
                let expected = "gpt2 (byte-level BPE) or llama (SentencePiece's BPE)";
                return Err(wrong("tokenizer.ggml.model", expected, format!("{other:?}")));
            }
        };

        let strips = |&(token, kind): &(&&str, &Kind)| {
            vocabulary.strips_after_control && *kind == Kind::Control && !PHI3_KEEPS_SPACE.contains(token)
        };
        let strips_after = (0u32..).zip(tokens.iter().zip(&kinds)).filter(|(_, token)| strips(token)).map(|(id, _)| id);
        Ok(Tokenizer::assemble(Parts {
            strips_before: HashSet::new(),
            strips_after: strips_after.collect(),
            tokens: tokens.iter().map(|&token| token.into()).collect(),
            byte_level: vocabulary.model == "gpt2",
            words,
            kinds,
            add_bos: vocabulary.add_bos.unwrap_or(add_bos),
            space_prefix,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            unk: vocabulary.unk,
            pad: vocabulary.pad,
            stop: [vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten().collect(),
            warnings,
        }))
    }

    /// Ids in `parts` are those of tokens.
    pub(super) fn assemble(parts: Parts) -> Tokenizer {
        let Parts { words, tokens, kinds, byte_level, .. } = parts;
        let mut whole = HashMap::new();
        let mut whole_lengths: Box<[Vec<usize>; 256]> = Box::new([const { Vec::new() }; 256]);
        let letters = byte_level.then(bytes_of_letters);
        let mut bytes = vec![];
        let mut ends = Vec::with_capacity(tokens.len());
        for ((id, token), &kind) in (0u32..).zip(&tokens).zip(&kinds) {
            if matches!(kind, Kind::Control | Kind::UserDefined) && !token.is_empty() {
                for text in spellings(token, kind, !byte_level) {
                    whole_lengths[text.as_bytes()[0] as usize].push(text.len());
                    whole.entry(text).or_insert(id);
                }
            }
            push_bytes(&mut bytes, token, kind, letters.as_ref());
            ends.push(bytes.len());
        }
        for lengths in whole_lengths.iter_mut() {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        let mut tokenizer = Tokenizer {
            words,
            tokens,
            kinds,
            bytes,
            ends,
            whole,
            whole_lengths,
            strips_before: parts.strips_before,
            strips_after: parts.strips_after,
            add_bos: parts.add_bos,
            space_prefix: parts.space_prefix,
            bos: parts.bos,
            eos: parts.eos,
            unk: parts.unk,
            pad: parts.pad,
            stop: vec![],
            warnings: parts.warnings,
        };
        tokenizer.stop = tokenizer.find_stop_ids(parts.stop);
        if tokenizer.stop.is_empty() {
            tokenizer.warnings.push("the file names no token that ends a text: only a length limit stops it".into());
        }
        tokenizer
    }

    /// Tokens of `text`, without a first BOS; see [`with_bos`](Self::with_bos).
    ///
    /// A character that the vocabulary has no bytes for is left out, as the models were trained.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        self.encode_where(text, |_| special == Special::Parse)
    }

    /// `ids` with the BOS token first if the model wants one there and it is not there yet.
    pub fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// Text of `ids` without control tokens; bytes that are no UTF-8 become U+FFFD.
    ///
    /// A space with which the text begins is left out where encoding would have put it there.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_where(ids, false)
    }

    /// Text of `ids` with control tokens.
    pub fn decode_with_control(&self, ids: &[u32]) -> String {
        self.decode_where(ids, true)
    }

    fn decode_where(&self, ids: &[u32], control: bool) -> String {
        let shown = ids.iter().filter(|&&id| control || !self.is_control(id));
        let bytes: Vec<u8> = shown.flat_map(|&id| self.token_bytes(id)).copied().collect();
        let skip = self.skips_space() && bytes.first() == Some(&b' ');
        String::from_utf8_lossy(&bytes[skip as usize..]).into_owned()
    }

    /// Whether decoded text loses a space at its beginning.
    pub(super) fn skips_space(&self) -> bool {
        self.space_prefix
    }

    /// The bytes that `id` stands for, which need not be whole characters. None for an id beyond the vocabulary:
    /// the logits of some models have padding there.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        &self.bytes[id.checked_sub(1).map_or(0, |before| self.ends[before])..end]
    }

    /// Tokens whose bytes contain one of `texts`.
    pub fn containing(&self, texts: &[impl AsRef<str>]) -> impl Iterator<Item = u32> {
        let contains = |id: &u32| {
            let bytes = self.token_bytes(*id);
            texts
                .iter()
                .map(|text| text.as_ref().as_bytes())
                .any(|text| bytes.windows(text.len()).any(|part| part == text))
        };
        (0..self.len() as u32).filter(contains)
    }

    /// Whether `id` is a mark for the model, such as the end of a turn, rather than text.
    pub fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Control)
    }

    /// The token as the vocabulary spells it: byte-level letters, `Ġ` or `▁` for a space.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    /// The token that the vocabulary spells `token`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.whole.get(token).copied().or_else(|| match &self.words {
            Words::Bpe(words, _) => words.token_to_id(token),
            Words::Pieces(pieces) => pieces.id(token),
        })
    }

    /// An error where ids of `other` are not those of the same tokens here. One may have up to 128 more, as vocabularies are padded.
    pub fn check_same_tokens(&self, other: &Tokenizer) -> Result<()> {
        let found = |tokens: &Tokenizer, id: usize| format!("token {id} = {:?}", tokens.tokens[id]);
        let common = self.tokens.iter().zip(&other.tokens).zip(self.kinds.iter().zip(&other.kinds));
        match common.enumerate().find(|(_, ((a, b), (of_a, of_b)))| a != b || of_a != of_b) {
            Some((id, _)) => Err(Error::request("vocabulary of the draft model", found(self, id), found(other, id))),
            None if self.len().abs_diff(other.len()) > 128 => {
                let tokens = |n: usize| format!("{n} tokens");
                Err(Error::request("vocabulary of the draft model", tokens(self.len()), tokens(other.len())))
            }
            None => Ok(()),
        }
    }

    /// Number of tokens.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens after which a model has finished: a turn, a message or a text. Ascending.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token for what the vocabulary lacks.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// The token that fills unused places.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Doubts about the file that someone should read, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Like [`encode`](Self::encode): a control token that begins at byte `at` is one if `parse(at)`.
    pub(super) fn encode_where(&self, text: &str, parse: impl Fn(usize) -> bool) -> Result<Vec<u32>> {
        let mut ids = vec![];
        let mut done = 0;
        let mut at = 0;
        while at < text.len() {
            match self.whole_at(text, at, parse(at)) {
                Some((id, length)) => {
                    let words = &text[done..at];
                    let words = if self.strips_before.contains(&id) { words.trim_end() } else { words };
                    self.encode_words(words, done == 0, &mut ids)?;
                    ids.push(id);
                    at += length;
                    if self.strips_after.contains(&id) {
                        at = text.len() - text[at..].trim_start().len();
                    }
                    done = at;
                }
                None => at += 1,
            }
        }
        self.encode_words(&text[done..], done == 0, &mut ids)?;
        Ok(ids)
    }

    /// Control tokens, as texts.
    pub(super) fn control_tokens(&self) -> impl Iterator<Item = &str> {
        self.whole.iter().filter(|&(_, &id)| self.is_control(id)).map(|(token, _)| token.as_str())
    }

    /// The longest control (if `control`) or user-defined token that begins at byte `at`, and its length.
    fn whole_at(&self, text: &str, at: usize, control: bool) -> Option<(u32, usize)> {
        let lengths = &self.whole_lengths[text.as_bytes()[at] as usize];
        lengths.iter().find_map(|&length| {
            let id = *self.whole.get(text.get(at..at + length)?)?;
            (control || !self.is_control(id)).then_some((id, length))
        })
    }

    fn encode_words(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<()> {
        match &self.words {
            _ if text.is_empty() => {}
            Words::Bpe(words, space) => {
                let add = first && *space == FirstSpace::Added && !text.starts_with([' ', SPACE]);
                let text = if add { Cow::Owned(format!("{SPACE}{text}")) } else { Cow::Borrowed(text) };
                let encoding = words.encode_fast(text, false).map_err(|e| Error::Tokenizer(e.to_string()))?;
                ids.extend_from_slice(encoding.get_ids());
            }
            Words::Pieces(pieces) => pieces.encode(text, ids),
        }
        Ok(())
    }

    fn find_stop_ids(&self, mut stop: Vec<u32>) -> Vec<u32> {
        let control = |name: &str| self.whole.get(name).copied().filter(|&id| self.is_control(id));
        stop.extend(STOP_NAMES.iter().filter_map(|name| control(name)));
        // In gpt-oss <|end|> ends one channel of a turn, not the turn.
        if let (Some(end), Some(_), Some(_)) = (control("<|end|>"), control("<|return|>"), control("<|call|>")) {
            stop.retain(|&id| id != end);
        }
        stop.sort_unstable();
        stop.dedup();
        stop
    }
}

impl Cut {
    fn cutter(&self) -> Result<Cutter> {
        let gpt2 = ByteLevel::new(false, true, true);
        let bytes = ByteLevel::new(false, true, false);
        Ok(match self {
            Cut::Gpt2 => Cutter::default().then(gpt2),
            Cut::DigitsGpt2 => Cutter::default().then(Digits::new(true)).then(gpt2),
            Cut::Regex(regex) => Cutter::default().isolate(regex)?.then(bytes),
        })
    }
}

/// How text is cut into words, as the file says.
fn pre(vocabulary: &Vocabulary, warnings: &mut Vec<String>) -> Result<&'static Pre> {
    let Some(name) = vocabulary.pre else {
        warnings.push(
            "the file has no tokenizer.ggml.pre: text is cut into words as for gpt-2, and if the model was trained \
             otherwise its answers get worse; convert the file anew"
                .into(),
        );
        return Ok(&PRES[0]);
    };
    PRES.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
        let known: Vec<_> = PRES.iter().flat_map(|pre| pre.names).copied().collect();
        wrong("tokenizer.ggml.pre", format!("one of {}", known.join(", ")), format!("{name:?}"))
    })
}

/// The merges, each as its two tokens.
fn merges<'a>(vocabulary: &Vocabulary<'a>) -> Result<Vec<(&'a str, &'a str)>> {
    let pair = |(i, &merge): (usize, &&'a str)| {
        // The first token may itself begin with a space, not be one.
        let space = merge.bytes().skip(1).position(|b| b == b' ').map(|at| at + 1);
        let pair = space.map(|at| (&merge[..at], &merge[at + 1..])).filter(|(_, b)| !b.is_empty());
        pair.ok_or_else(|| {
            wrong(format!("tokenizer.ggml.merges[{i}]"), "two tokens with a space between", format!("{merge:?}"))
        })
    };
    vocabulary.merges.iter().enumerate().map(pair).collect()
}

fn byte_level(vocabulary: &Vocabulary, merges: &[(&str, &str)], kinds: &[Kind], pre: &Pre) -> Result<Bpe> {
    let mut vocab = Vocab::with_capacity(vocabulary.tokens.len());
    for ((id, &token), &kind) in (0u32..).zip(&vocabulary.tokens).zip(kinds) {
        if kind != Kind::Control {
            vocab.entry(token.to_owned()).or_insert(id);
        }
    }
    let merges = merges.iter().map(|&(a, b)| (a.to_owned(), b.to_owned())).collect();
    let model = bpe(vocab, merges, "tokenizer.ggml.merges")?.ignore_merges(pre.ignore_merges);
    let failed = |e: tokenizers::Error| Error::Tokenizer(format!("tokenizer.ggml.merges: {e}"));
    let mut words = Bpe::new(model.build().map_err(failed)?);
    words.with_normalizer(pre.nfc.then_some(NormalizerWrapper::NFC(NFC))).map_err(failed)?;
    words.with_pre_tokenizer(Some(pre.cut.cutter()?));
    Ok(words)
}

/// A model of these merges, which the file has under the name `field`.
pub(super) fn bpe(vocab: Vocab, merges: Vec<(String, String)>, field: &str) -> Result<BpeBuilder> {
    // `tokenizers` indexes a buffer of the longest token's length without a check.
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    match merges.iter().position(|(a, b)| a.len() + b.len() > longest) {
        Some(i) => Err(wrong(format!("{field}[{i}]"), "a token", format!("{:?}", merges[i]))),
        None => Ok(BPE::builder().vocab_and_merges(vocab, merges)),
    }
}

fn pieces(vocabulary: &Vocabulary, kinds: &[Kind], space_prefix: bool) -> Result<Pieces> {
    let Vocabulary { tokens, scores, token_types, .. } = vocabulary;
    for (field, length) in [("scores", scores.len()), ("token_type", token_types.len())] {
        if length != tokens.len() {
            let expected = format!("one for each of the {} tokens", tokens.len());
            return Err(wrong(format!("tokenizer.ggml.{field}"), expected, length.to_string()));
        }
    }
    let mut pieces = Pieces::new(vocabulary.unk, space_prefix);
    for (((id, &token), &kind), &score) in (0u32..).zip(tokens).zip(kinds).zip(*scores) {
        if score.is_nan() {
            return Err(wrong(format!("tokenizer.ggml.scores[{id}]"), "a number", "NaN".into()));
        }
        match kind {
            Kind::Normal | Kind::Unused => pieces.add(id, token, Some(score)),
            Kind::UserDefined => {
                pieces.add(id, token, None);
                if is_spaces(token) {
                    pieces.add(id, &token.replace(' ', "▁"), Some(f32::INFINITY));
                }
            }
            Kind::Byte => {
                let byte = byte_of(token).ok_or_else(|| {
                    wrong(
                        format!("tokenizer.ggml.tokens[{id}]"),
                        "<0x00> to <0xFF>, as its type is byte",
                        format!("{token:?}"),
                    )
                })?;
                pieces.add(id, token, None);
                pieces.add_byte(byte, id);
            }
            Kind::Control => {}
        }
    }
    Ok(pieces)
}

/// The kind of each token. Some files type marks as normal: what is named as one and no merge makes is control.
fn kinds(vocabulary: &Vocabulary, merges: &[(&str, &str)], warnings: &mut Vec<String>) -> Result<Vec<Kind>> {
    let Vocabulary { tokens, token_types, .. } = vocabulary;
    if !token_types.is_empty() && token_types.len() != tokens.len() {
        let found = token_types.len().to_string();
        return Err(wrong("tokenizer.ggml.token_type", format!("{} types", tokens.len()), found));
    }
    let mut kinds = vec![Kind::Normal; tokens.len()];
    for (i, (kind, token_type)) in kinds.iter_mut().zip(*token_types).enumerate() {
        *kind = match token_type {
            1 => Kind::Normal,
            2 | 3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            other => return Err(wrong(format!("tokenizer.ggml.token_type[{i}]"), "1 to 6", other.to_string())),
        };
    }
    if token_types.is_empty() {
        warnings.push("the file has no tokenizer.ggml.token_type: only tokens of well-known names are control".into());
    }
    let ids = [vocabulary.bos, vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten();
    let named = tokens.iter().enumerate().filter(|&(id, token)| match *token {
        // In Gemma it is HTML.
        "</s>" => kinds[id] != Kind::UserDefined,
        token => STOP_NAMES.contains(&token) || token == "<|im_start|>",
    });
    let marks = ids.map(|id| id as usize).chain(named.map(|(id, _)| id));
    for id in marks.filter(|&id| kinds[id] != Kind::Control).collect::<Vec<_>>() {
        let token = tokens[id];
        let merged = |(a, b): &(&str, &str)| token.strip_prefix(a) == Some(b);
        if kinds[id] == Kind::Control || merges.iter().any(merged) {
            continue;
        }
        if !token_types.is_empty() {
            warnings.push(format!("token {id} {token:?} is not typed as control in the file; it is taken as one"));
        }
        kinds[id] = Kind::Control;
    }
    Ok(kinds)
}

/// The byte of each letter of the byte-level alphabet: printable Latin-1 stands for itself, the other bytes in
/// ascending order for U+0100 and on.
fn bytes_of_letters() -> HashMap<char, u8> {
    let plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0..=255u8).filter(|byte| !plain(byte)).zip('\u{100}'..).map(|(byte, letter)| (letter, byte));
    (0..=255u8).filter(plain).map(|byte| (byte as char, byte)).chain(others).collect()
}

/// What the whole token `token` matches in a text: for pieces, a user-defined one with its spaces written either way.
/// Runs of spaces are left to merging and match only as `▁`, as in the tokenizers that Gemma was published with.
fn spellings(token: &str, kind: Kind, pieces: bool) -> Vec<String> {
    match pieces && kind == Kind::UserDefined {
        true if is_spaces(token) => vec![token.replace(' ', "▁")],
        true if token.contains(SPACE) => vec![token.into(), token.replace(SPACE, " ")],
        _ => vec![token.into()],
    }
}

fn is_spaces(token: &str) -> bool {
    token.chars().all(|c| c == ' ' || c == SPACE)
}

/// The bytes that a token stands for, by the byte-level alphabet if `letters` are given, else with spaces for `▁`.
fn push_bytes(bytes: &mut Vec<u8>, token: &str, kind: Kind, letters: Option<&HashMap<char, u8>>) {
    let start = bytes.len();
    match (kind, byte_of(token), letters) {
        (Kind::Byte, Some(byte), _) => bytes.push(byte),
        (Kind::Normal | Kind::Byte, _, Some(letters)) => {
            for letter in token.chars() {
                let Some(&byte) = letters.get(&letter) else {
                    // Not in the alphabet: a token that was added as plain text.
                    bytes.truncate(start);
                    bytes.extend_from_slice(token.as_bytes());
                    return;
                };
                bytes.push(byte);
            }
        }
        (Kind::Normal | Kind::UserDefined | Kind::Unused, _, None) => {
            bytes.extend_from_slice(token.replace(SPACE, " ").as_bytes());
        }
        _ => bytes.extend_from_slice(token.as_bytes()),
    }
}

/// The byte of a token such as `<0x0A>`.
pub(super) fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok()
}

pub(super) fn wrong(
    what: impl Into<Cow<'static, str>>,
    expected: impl Into<Cow<'static, str>>,
    found: String,
) -> Error {
    Error::Tokenizer(format!("{}: expected {}, found {found}", what.into(), expected.into()))
}
