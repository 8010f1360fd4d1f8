//! Text of generated tokens, as soon as it is complete.

use crate::text::Tokenizer;

/// Turns tokens into text one at a time, holding the first bytes of a character until the rest arrives.
///
/// All pushes and [`finish`](Self::finish) together equal [`Tokenizer::decode`] of the same tokens.
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The first bytes of one character: at most three between calls.
    held: Vec<u8>,
    text: String,
    show_control: bool,
    /// Text has come, or goes on from earlier text.
    begun: bool,
}

impl StreamDecoder {
    /// Prints no control tokens.
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// Prints control tokens too, such as `<|im_end|>`.
    pub fn with_control() -> StreamDecoder {
        StreamDecoder { show_control: true, ..StreamDecoder::default() }
    }

    /// For text that goes on from a prompt: keeps a space at its beginning, which [`Tokenizer::decode`] may leave out.
    pub fn continuing() -> StreamDecoder {
        StreamDecoder { begun: true, ..StreamDecoder::default() }
    }

    /// The text that `id` completes; often one word, sometimes nothing.
    pub fn push(&mut self, id: u32, tokenizer: &Tokenizer) -> &str {
        self.text.clear();
        if self.show_control || !tokenizer.is_control(id) {
            let bytes = tokenizer.token_bytes(id);
            let skip = !self.begun && tokenizer.skips_space() && bytes.first() == Some(&b' ');
            self.begun |= !bytes.is_empty();
            self.held.extend_from_slice(&bytes[skip as usize..]);
        }
        let mut at = 0;
        while at < self.held.len() {
            match std::str::from_utf8(&self.held[at..]) {
                Ok(rest) => {
                    self.text.push_str(rest);
                    at = self.held.len();
                }
                Err(e) => {
                    let valid = at + e.valid_up_to();
                    self.text.push_str(&String::from_utf8_lossy(&self.held[at..valid]));
                    at = valid;
                    // No length: the character may still be completed.
                    let Some(invalid) = e.error_len() else { break };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    at += invalid;
                }
            }
        }
        self.held.drain(..at);
        &self.text
    }

    /// What is left: U+FFFD if the last character stayed incomplete. Then a new text may begin.
    pub fn finish(&mut self) -> &'static str {
        let incomplete = !self.held.is_empty();
        self.held.clear();
        self.begun = false;
        if incomplete { "\u{FFFD}" } else { "" }
    }
}
