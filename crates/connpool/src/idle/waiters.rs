//! Clients that wait for a used connection, first come, first served.

use std::cell::RefCell;
use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::Kept;

/// Whoever stands in line, and by which fingerprint he can be served.
pub(super) struct Line<F, T> {
    waiting: RefCell<VecDeque<(F, Giver<T>)>>,
}

/// A client's end of a place in line.
pub(super) struct Place<T> {
    pub(super) got: oneshot::Receiver<Kept<T>>,
}

/// The other end.
pub(super) struct Giver<T>(oneshot::Sender<Kept<T>>);

/// The first in line needs another kind of connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Another;

impl<F, T> Default for Line<F, T> {
    fn default() -> Self {
        Self { waiting: RefCell::default() }
    }
}

impl<F: PartialEq, T> Line<F, T> {
    pub(super) fn enter(&self, fingerprint: F) -> Place<T> {
        let (giver, got) = oneshot::channel();
        self.waiting.borrow_mut().push_back((fingerprint, Giver(giver)));
        Place { got }
    }

    /// The first in line, if a connection of `fingerprint` serves him.
    pub(super) fn first(&self, fingerprint: &F) -> Result<Option<Giver<T>>, Another> {
        let mut waiting = self.forget_who_left();
        match waiting.front() {
            Some((front, _)) if front != fingerprint => Err(Another),
            _ => Ok(waiting.pop_front().map(|(_, giver)| giver)),
        }
    }

    /// The first in line whom a connection of `fingerprint` serves.
    pub(super) fn like(&self, fingerprint: &F) -> Option<Giver<T>> {
        let mut waiting = self.forget_who_left();
        let at = waiting.iter().position(|(other, _)| other == fingerprint)?;
        waiting.remove(at).map(|(_, giver)| giver)
    }

    fn forget_who_left(&self) -> std::cell::RefMut<'_, VecDeque<(F, Giver<T>)>> {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|(_, giver)| !giver.0.is_closed());
        waiting
    }
}

impl<T> Giver<T> {
    /// # Errors
    /// With the connection, when the client has left.
    pub(super) fn give(self, kept: Kept<T>) -> Result<(), Kept<T>> {
        self.0.send(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_kept_in_order_and_forgets_who_left() {
        let line = Line::<_, ()>::default();
        let places = ["a", "b", "a", "c"].map(|fingerprint| line.enter(fingerprint));
        assert_eq!(line.first(&"b").err(), Some(Another), "who came first needs another kind");
        assert!(line.like(&"b").is_some());
        assert!(line.like(&"b").is_none(), "served once");
        assert!(line.first(&"a").unwrap().is_some());
        drop(places);
        assert!(line.like(&"c").is_none() && line.first(&"x").unwrap().is_none(), "all have left");
    }
}
