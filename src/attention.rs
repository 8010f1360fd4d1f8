//! What a step attends to: pages of the near past by lists, and the far past by trees.

pub mod aoc;
mod gate;

pub use gate::choose;

use std::fmt;

use crate::error::{Error, Result};
use crate::kv::{GONE, PAGE, PageTable};
use aoc::AocOptions;

/// What a sequence's queries read of its past. Layers with a sliding window read that.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Attention {
    /// All of it.
    #[default]
    Dense,
    /// The first page, as attention sinks, and at least so many positions before their own. What lies between is forgotten.
    ///
    /// Source: Xiao et al. 2023, "Efficient streaming language models with attention sinks" (arXiv:2309.17453).
    Window(usize),
    /// The first page and the near past; the far past is answered from anchors: see [`aoc`].
    Aoc(AocOptions),
}

impl Attention {
    /// An error where no session could run so on an engine with anchors, or without, and of a model whose layers with a window see
    /// `window` positions (0: it has none).
    pub fn check(&self, window: usize, has_anchors: bool) -> Result<()> {
        let local = match self {
            Attention::Dense => return Ok(()),
            Attention::Window(local) => *local,
            Attention::Aoc(_) if !has_anchors => {
                return Err(Error::request("attention", "dense or window: the engine was loaded without aoc", "aoc"));
            }
            Attention::Aoc(options) => {
                options.check()?;
                options.local
            }
        };
        let least = window.max(PAGE);
        if local < least {
            return Err(Error::request("positions of the near past", format!("at least {least}"), local));
        }
        Ok(())
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Attention::Dense => write!(f, "dense"),
            Attention::Window(local) => write!(f, "window of {local} positions and {PAGE} sinks"),
            Attention::Aoc(AocOptions { local, budget, .. }) => {
                write!(f, "aoc: {local} positions, and {budget} rows of the far past")
            }
        }
    }
}

/// Appends (page, its first position) for each page that a table has, in order of position.
pub(crate) fn list(table: &PageTable, list: &mut Vec<[u32; 2]>) {
    let pages = table.pages().iter().enumerate().filter(|(_, page)| **page != GONE);
    list.extend(pages.map(|(i, page)| [*page, (i * PAGE) as u32]));
}
