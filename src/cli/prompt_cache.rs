//! `--prompt-cache`: what was computed of a prompt, kept in a file from one run to the next.

use std::path::PathBuf;

use clap::Args;

use super::output::note;
use crate::attention::Attention;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;

#[derive(Args)]
pub struct PromptCacheArgs {
    /// Keep what is computed of the prompt in this file, and take from it what an earlier run has computed
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
}

impl PromptCacheArgs {
    /// `session`, which is empty, or the one in the file.
    pub fn restore(&self, engine: &mut Engine, session: Session) -> Result<Session> {
        let Some(file) = &self.prompt_cache else { return Ok(session) };
        if session.attention() != Attention::Dense {
            return Err(Error::request("attention with --prompt-cache", "dense", session.attention()));
        }
        if !file.exists() {
            return Ok(session);
        }
        let restored = engine.restore(file)?;
        note(format_args!("prompt cache  {} tokens in {}", restored.computed(), file.display()));
        Ok(restored)
    }

    /// Writes the file, if `session` has more than the `before` computed tokens that are in it.
    pub fn save(&self, engine: &Engine, session: &Session, before: usize) -> Result<()> {
        match &self.prompt_cache {
            Some(file) if session.computed() > before => engine.save(session, file),
            _ => Ok(()),
        }
    }
}
