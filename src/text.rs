//! Text in and out of a model: [`Tokenizer`], [`ChatTemplate`], [`StreamDecoder`].
//!
//! A chat becomes tokens by [`ChatTemplate::encode`], which keeps control tokens typed by a user as plain text.

mod chat_template;
mod cutter;
mod folder;
mod pieces;
mod stop;
mod stream;
mod tokenizer;
mod tool_calls;

pub use chat_template::{CHATML, Chat, ChatTemplate, Message};
pub use stop::StopText;
pub use stream::StreamDecoder;
pub use tokenizer::{Special, Tokenizer, Vocabulary};
pub(crate) use tool_calls::SPACES;
pub use tool_calls::{Part, ToolCalls, ToolStyle};
