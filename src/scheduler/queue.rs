//! Who waits: each client in turn, its requests in order.

use std::collections::VecDeque;

/// A queue for each client that has something in it.
pub(super) struct Queue<T> {
    clients: VecDeque<(String, VecDeque<T>)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { clients: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    pub fn push(&mut self, client: &str, item: T) {
        match self.clients.iter_mut().find(|(name, _)| name == client) {
            Some((_, items)) => items.push_back(item),
            None => self.clients.push_back((client.into(), [item].into())),
        }
    }

    /// The first item of each client, the one whose turn it is first.
    pub fn fronts(&self) -> impl Iterator<Item = &T> {
        self.clients.iter().map(|(_, items)| &items[0])
    }

    /// Takes the first item of the client at `turn` among [`fronts`](Self::fronts), who is last from now on.
    pub fn take(&mut self, turn: usize) -> Option<T> {
        let (client, mut items) = self.clients.remove(turn)?;
        let item = items.pop_front();
        if !items.is_empty() {
            self.clients.push_back((client, items));
        }
        item
    }

    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Takes out what `leaves` says.
    pub fn take_where(&mut self, mut leaves: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for (_, items) in &mut self.clients {
            let (leaving, staying): (VecDeque<T>, _) = std::mem::take(items).into_iter().partition(&mut leaves);
            taken.extend(leaving);
            *items = staying;
        }
        self.clients.retain(|(_, items)| !items.is_empty());
        taken
    }
}
