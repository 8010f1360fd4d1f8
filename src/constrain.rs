//! Output that follows a grammar: which tokens may come next, by [llguidance](https://github.com/guidance-ai/llguidance).
//!
//! [`Grammars`] compiles a [`Grammar`] for a tokenizer; the [`Constraint`] that comes of it goes to
//! [`Session::constrain`](crate::session::Session::constrain). Before each token is drawn the tokens that may come next are computed on
//! the CPU, and the others are left out on the device. Where the grammar is complete, and only there, the model may end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value as Json, json};

use crate::error::{Error, Result};
use crate::sampler::TokenSet;
use crate::text::{SPACES, Tokenizer};

/// What output must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any object of JSON.
    JsonObject,
    /// JSON that a schema describes; keywords that cannot be honoured are an error.
    JsonSchema(Json),
    /// Text that a regular expression matches from its beginning to its end.
    Regex(String),
    /// A grammar in llguidance's variant of Lark; its start symbol is `start`.
    Lark(String),
}

/// Bytes of a grammar, at most.
pub const GRAMMAR_BYTES: usize = 256 << 10;

/// Compiles grammars for one tokenizer.
pub struct Grammars {
    factory: ParserFactory,
    /// Tokens that end the model's turn.
    stops: Arc<[u32]>,
}

/// A grammar on its way: where the tokens since it began have come to.
pub struct Constraint {
    matcher: Matcher,
    stops: Arc<[u32]>,
    /// Tokens that have followed it.
    taken: usize,
    /// Computed since the last of them.
    next: Option<TokenSet>,
}

impl Grammars {
    /// For a model whose logits are of `vocab` tokens, of which `tokenizer` knows most.
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<Self> {
        let stops: Arc<[u32]> = tokenizer.stop_ids().into();
        let Some(end) = stops.first() else {
            return Err(Error::Tokenizer("no token ends a turn, so no grammar could end".into()));
        };
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id);
            // Control tokens are no text.
            let marked = tokenizer.is_control(id).then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            marked.into_iter().chain(bytes.iter().copied()).collect::<Vec<_>>()
        };
        let words: Vec<_> = (0..vocab as u32).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, *end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|e| Error::Tokenizer(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        Ok(Self { factory, stops })
    }

    /// From the beginning of `grammar`; an error where it is wrong, too large, or asks for what cannot be honoured.
    pub fn constraint(&self, grammar: &Grammar) -> Result<Constraint> {
        let parsed = match grammar {
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(with_spaces(json!({ "type": "object" }))?),
            Grammar::JsonSchema(schema) => {
                expect_short(schema.to_string().len())?;
                TopLevelGrammar::from_json_schema(with_spaces(schema.clone())?)
            }
            Grammar::Regex(regex) => {
                expect_short(regex.len())?;
                TopLevelGrammar::from_regex(regex)
            }
            Grammar::Lark(text) => {
                expect_short(text.len())?;
                TopLevelGrammar::from_lark(text.clone())
            }
        };
        let compile = || Matcher::new(self.factory.create_parser(parsed));
        let matcher = catch_unwind(AssertUnwindSafe(compile)).map_err(|_| refused("the compiler gave up"))?;
        if let Some(e) = matcher.get_error() {
            return Err(refused(&e));
        }
        let mut constraint = Constraint { matcher, stops: self.stops.clone(), taken: 0, next: None };
        // What allows no token at all is wrong before anything is computed.
        constraint.allowed()?;
        Ok(constraint)
    }
}

impl Constraint {
    /// Tokens that may come next: never none.
    pub fn allowed(&mut self) -> Result<TokenSet> {
        if let Some(next) = &self.next {
            return Ok(next.clone());
        }
        let mut set = self.matcher.compute_mask_or_eos().map_err(|e| refused(&e.to_string()))?;
        if self.stops.first().is_some_and(|end| set.is_allowed(*end)) {
            self.stops.iter().for_each(|stop| set.allow_token(*stop));
        }
        if set.is_zero() {
            return Err(refused("no token may come next"));
        }
        Ok(self.next.insert(TokenSet::from(set.as_slice())).clone())
    }

    /// A token that has come.
    pub fn take(&mut self, id: u32) -> Result<()> {
        self.next = None;
        self.taken += 1;
        // To the grammar all ends are one.
        let id = if self.stops.contains(&id) { self.stops[0] } else { id };
        self.matcher.consume_token(id).map_err(|e| refused(&e.to_string()))
    }

    /// How many of `ids` may come next, from the first on, before an end of the turn.
    pub fn follow(&mut self, ids: &[u32]) -> usize {
        let n = ids.iter().position(|id| self.stops.contains(id)).unwrap_or(ids.len());
        // The error stays and is what comes of the next call.
        self.matcher.validate_tokens(&ids[..n]).unwrap_or(0)
    }

    /// Forgets the last `n` tokens, or all. Where that fails nothing is allowed any more.
    pub fn rewind(&mut self, n: usize) {
        let n = n.min(self.taken);
        if n == 0 {
            return;
        }
        self.next = None;
        self.taken -= n;
        // The error stays and is what comes of the next call.
        let _ = self.matcher.rollback(n);
    }

    /// Tokens that have come.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            stops: self.stops.clone(),
            taken: self.taken,
            next: self.next.clone(),
        }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Constraint").field("taken", &self.taken).finish_non_exhaustive()
    }
}

/// The schema, with few spaces between what it describes.
fn with_spaces(schema: Json) -> Result<Json> {
    let mut schema = match schema {
        Json::Bool(true) => Map::new(),
        Json::Object(schema) => schema,
        other => return Err(Error::request("JSON schema", "an object", other)),
    };
    schema.insert("x-guidance".into(), json!({ "whitespace_pattern": SPACES }));
    Ok(schema.into())
}

fn expect_short(bytes: usize) -> Result<()> {
    match bytes {
        n if n > GRAMMAR_BYTES => Err(Error::request("grammar", format!("at most {GRAMMAR_BYTES} bytes"), n)),
        _ => Ok(()),
    }
}

fn refused(why: &str) -> Error {
    let why: String = why.chars().take(400).collect();
    Error::request("grammar", "one that output can follow", why)
}
