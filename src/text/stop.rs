//! Text that ends before the first of some strings.

/// Passes text on as it comes, but for what may be the beginning of a stop string.
#[derive(Clone, Debug, Default)]
pub struct StopText {
    stops: Vec<String>,
    /// Shorter than the longest stop string between calls.
    held: String,
}

impl StopText {
    /// Ends before the first of `stops`; none of them is empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// More text: what is certain of it and of what was held, and whether the text is over.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let certain = self.held.len() - self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What is held of a text that ends otherwise.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that begin `stop`, and are not all of it.
pub(super) fn begun(text: &str, stop: &str) -> usize {
    stop.char_indices().rev().map(|(at, _)| at).find(|at| text.ends_with(&stop[..*at])).unwrap_or(0)
}
