//! What a step attends to: the list of pages is the whole difference between the policies.

mod gate;

pub use gate::choose;

use crate::kv::{PAGE, PageTable};

/// Which of a sequence's pages its queries read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Attention {
    /// All of them.
    #[default]
    Dense,
}

impl Attention {
    /// Appends (page, its first position) for each page to read, in order of position.
    pub fn list(self, table: &PageTable, list: &mut Vec<[u32; 2]>) {
        match self {
            Attention::Dense => {
                list.extend(table.pages().iter().enumerate().map(|(i, &page)| [page, (i * PAGE) as u32]))
            }
        }
    }
}
