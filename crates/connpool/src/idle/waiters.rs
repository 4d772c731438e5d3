//! Clients that wait for a used connection, first come, first served.

use std::cell::RefCell;
use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::UsedConnection;

/// Waiting clients, each with the fingerprint that it needs.
pub(super) struct ReuseQueue<F, T> {
    waiting: RefCell<VecDeque<(F, ReuseSender<T>)>>,
}

/// The client's half of a queue entry.
pub(super) struct QueuedReuse<T> {
    pub(super) receiver: oneshot::Receiver<UsedConnection<T>>,
}

/// The pool's half of a queue entry.
pub(super) struct ReuseSender<T>(oneshot::Sender<UsedConnection<T>>);

/// The first client in the queue needs another fingerprint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FingerprintMismatch;

impl<F, T> Default for ReuseQueue<F, T> {
    fn default() -> Self {
        Self {
            waiting: RefCell::default(),
        }
    }
}

impl<F: PartialEq, T> ReuseQueue<F, T> {
    pub(super) fn join(&self, fingerprint: F) -> QueuedReuse<T> {
        let (sender, receiver) = oneshot::channel();
        self.waiting
            .borrow_mut()
            .push_back((fingerprint, ReuseSender(sender)));
        QueuedReuse { receiver }
    }

    /// Takes the first client if a connection with `fingerprint` serves it.
    pub(super) fn take_first(
        &self,
        fingerprint: &F,
    ) -> Result<Option<ReuseSender<T>>, FingerprintMismatch> {
        let mut waiting = self.remove_departed();
        match waiting.front() {
            Some((front, _)) if front != fingerprint => Err(FingerprintMismatch),
            _ => Ok(waiting.pop_front().map(|(_, sender)| sender)),
        }
    }

    /// Takes the first client that a connection with `fingerprint` serves.
    pub(super) fn take_matching(&self, fingerprint: &F) -> Option<ReuseSender<T>> {
        let mut waiting = self.remove_departed();
        let index = waiting.iter().position(|(other, _)| other == fingerprint)?;
        waiting.remove(index).map(|(_, sender)| sender)
    }

    fn remove_departed(&self) -> std::cell::RefMut<'_, VecDeque<(F, ReuseSender<T>)>> {
        let mut waiting = self.waiting.borrow_mut();
        // Clients leave by dropping their half. Their entries must not hide later ones.
        waiting.retain(|(_, sender)| !sender.0.is_closed());
        waiting
    }
}

impl<T> ReuseSender<T> {
    /// Hands the connection to the client.
    ///
    /// # Errors
    /// Returns the connection when the client has gone.
    pub(super) fn give(self, used: UsedConnection<T>) -> Result<(), UsedConnection<T>> {
        self.0.send(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_keeps_its_order_and_forgets_departed_clients() {
        let queue = ReuseQueue::<_, ()>::default();
        let clients = ["a", "b", "a", "c"].map(|fingerprint| queue.join(fingerprint));
        assert_eq!(
            queue.take_first(&"b").err(),
            Some(FingerprintMismatch),
            "the first client needs another fingerprint"
        );
        assert!(queue.take_matching(&"b").is_some());
        assert!(queue.take_matching(&"b").is_none(), "served once");
        assert!(queue.take_first(&"a").unwrap().is_some());
        drop(clients);
        assert!(
            queue.take_matching(&"c").is_none() && queue.take_first(&"x").unwrap().is_none(),
            "all have left"
        );
    }
}
