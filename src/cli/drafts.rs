//! How tokens are guessed, so that several are computed at once.

use clap::{Args, ValueEnum};

use super::model::ModelArgs;
use super::output::note;
use crate::chat::tokenizer;
use crate::engine::Engine;
use crate::error::Result;
use crate::speculation::Speculation;
use crate::text::Tokenizer;
use crate::weights::Weights;

/// Which drafts.
#[derive(Args, Clone)]
pub struct DraftArgs {
    /// Whether to guess tokens by what followed the last ones where they came before. Several are then computed at once, and the output
    /// is the same
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = SpecType::None)]
    spec_type: SpecType,
    /// A smaller model of the same vocabulary that guesses tokens: file, folder or name. Also -md
    #[arg(long, value_name = "MODEL")]
    model_draft: Option<String>,
    /// Tokens guessed at once, at most
    #[arg(long, visible_aliases = ["draft", "draft-n"], value_name = "TOKENS", default_value_t = Speculation::default().draft_max)]
    draft_max: usize,
    /// Fewer are left out
    #[arg(long, visible_alias = "draft-n-min", value_name = "TOKENS", default_value_t = Speculation::default().draft_min)]
    draft_min: usize,
    /// Of the last tokens so many are looked up, at most
    #[arg(long, value_name = "TOKENS", default_value_t = Speculation::default().lookup_max)]
    prompt_lookup_max: usize,
    /// So many must have come before
    #[arg(long, value_name = "TOKENS", default_value_t = Speculation::default().lookup_min)]
    prompt_lookup_min: usize,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum SpecType {
    None,
    NgramSimple,
}

/// A draft model that is not loaded yet.
pub struct DraftModel {
    weights: Weights,
    tokenizer: Tokenizer,
}

impl DraftArgs {
    /// Of all sessions, where tokens are to be guessed.
    pub fn speculation(&self) -> Option<Speculation> {
        let Self { spec_type, draft_max, draft_min, prompt_lookup_max, prompt_lookup_min: lookup_min, .. } = *self;
        let lookup_max = if spec_type == SpecType::NgramSimple { prompt_lookup_max } else { 0 };
        let speculates = lookup_max > 0 || self.model_draft.is_some();
        speculates.then_some(Speculation { draft_max, draft_min, lookup_max, lookup_min })
    }

    /// The draft model, where there is one.
    pub fn open(&self) -> Result<Option<DraftModel>> {
        let Some(model) = &self.model_draft else { return Ok(None) };
        let weights = ModelArgs::named(model).open()?;
        let tokenizer = tokenizer(&weights)?;
        Ok(Some(DraftModel { weights, tokenizer }))
    }
}

impl DraftModel {
    /// Loads it, and has it guess for `engine`, whose tokens are those of `tokenizer`.
    pub fn guess_for(
        &self,
        engine: &mut Engine,
        tokenizer: &Tokenizer,
        load: impl FnOnce(&Weights) -> Result<Engine>,
    ) -> Result<()> {
        // Before it is loaded, which may take long.
        tokenizer.check_same_tokens(&self.tokenizer)?;
        let draft = load(&self.weights)?;
        note(format_args!("drafts  {}", self.weights.path().display()));
        engine.draft_by(draft, tokenizer, &self.tokenizer)
    }
}
