//! Clients that wait for a used connection, first come, first served.

use std::cell::RefCell;
use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::UsedConnection;

/// Whoever stands in line, and by which fingerprint he can be served.
pub(super) struct ReuseQueue<F, T> {
    waiting: RefCell<VecDeque<(F, ReuseSender<T>)>>,
}

/// A client's end of a place in line.
pub(super) struct QueuedReuse<T> {
    pub(super) receiver: oneshot::Receiver<UsedConnection<T>>,
}

/// The other end.
pub(super) struct ReuseSender<T>(oneshot::Sender<UsedConnection<T>>);

/// The first in line needs another kind of connection.
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
        let (giver, got) = oneshot::channel();
        self.waiting
            .borrow_mut()
            .push_back((fingerprint, ReuseSender(giver)));
        QueuedReuse { receiver: got }
    }

    /// The first in line, if a connection of `fingerprint` serves him.
    pub(super) fn take_first(
        &self,
        fingerprint: &F,
    ) -> Result<Option<ReuseSender<T>>, FingerprintMismatch> {
        let mut waiting = self.remove_departed();
        match waiting.front() {
            Some((front, _)) if front != fingerprint => Err(FingerprintMismatch),
            _ => Ok(waiting.pop_front().map(|(_, giver)| giver)),
        }
    }

    /// The first in line whom a connection of `fingerprint` serves.
    pub(super) fn take_matching(&self, fingerprint: &F) -> Option<ReuseSender<T>> {
        let mut waiting = self.remove_departed();
        let at = waiting.iter().position(|(other, _)| other == fingerprint)?;
        waiting.remove(at).map(|(_, giver)| giver)
    }

    fn remove_departed(&self) -> std::cell::RefMut<'_, VecDeque<(F, ReuseSender<T>)>> {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|(_, giver)| !giver.0.is_closed());
        waiting
    }
}

impl<T> ReuseSender<T> {
    /// # Errors
    /// With the connection, when the client has left.
    pub(super) fn give(self, kept: UsedConnection<T>) -> Result<(), UsedConnection<T>> {
        self.0.send(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_kept_in_order_and_forgets_who_left() {
        let line = ReuseQueue::<_, ()>::default();
        let places = ["a", "b", "a", "c"].map(|fingerprint| line.join(fingerprint));
        assert_eq!(
            line.take_first(&"b").err(),
            Some(FingerprintMismatch),
            "who came first needs another kind"
        );
        assert!(line.take_matching(&"b").is_some());
        assert!(line.take_matching(&"b").is_none(), "served once");
        assert!(line.take_first(&"a").unwrap().is_some());
        drop(places);
        assert!(
            line.take_matching(&"c").is_none() && line.take_first(&"x").unwrap().is_none(),
            "all have left"
        );
    }
}
