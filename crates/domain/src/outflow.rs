//! A body on its way out in parts: what waits to be sent, and which parts the receiver has not let go. Pure.
//!
//! The writer hands one piece over at a time; the next one when all of it has been sent. At most [`WINDOW`] parts are with
//! the receiver, fewer when there are many bodies: so nothing is kept without bound, and a reader that is slow stops the
//! writer.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use bytes::Bytes;

/// Parts of one body that its receiver may have, in the ring or unread: enough to keep both sides busy, few enough to leave
/// slots to others.
pub const WINDOW: usize = 8;

/// The window of each of so many bodies that one party has underway to another: together they leave slots to others.
pub fn window(bodies: usize) -> usize {
    (4 * WINDOW / bodies.max(1)).clamp(2, WINDOW)
}

/// The sender's side of a body; `T` names a part that is with the receiver.
#[derive(Debug)]
pub struct Outflow<T> {
    piece: Bytes,
    /// The writer will hand more over.
    open: bool,
    ended: bool,
    with_receiver: VecDeque<T>,
    writer: Option<Waker>,
}

/// What can be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Send a part.
    Part,
    /// The receiver must let a part go first.
    Window,
    /// The writer must hand something over first.
    Writer,
    /// All has been sent.
    Nothing,
}

impl<T> Outflow<T> {
    /// `piece` is what is there already; `first` the message that went ahead, `open` whether the writer has more.
    pub fn new(piece: Bytes, open: bool, first: T) -> Self {
        let ended = piece.is_empty() && !open;
        Self { piece, open, ended, with_receiver: VecDeque::from([first]), writer: None }
    }

    /// Whether the writer can hand the next piece over. `waker` is told when it can, and in any case when there will be no
    /// more room.
    pub fn poll_room(&mut self, waker: &Waker) -> Poll<()> {
        if !self.writer.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.writer = Some(waker.clone());
        }
        if self.has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether the writer can hand the next piece over.
    pub fn has_room(&self) -> bool {
        self.piece.is_empty()
    }

    /// Takes the next piece. A writer that does not wait for room is not stopped, and pays with a copy.
    pub fn hand(&mut self, piece: Bytes) {
        self.piece = match self.piece.is_empty() {
            true => piece,
            false => [&*self.piece, &*piece].concat().into(),
        };
    }

    /// No more will be handed over.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// What can be done, with a window of so many parts; `unread` says whether a part is still with the receiver.
    pub fn due(&mut self, window: usize, mut unread: impl FnMut(&T) -> bool) -> Due {
        if self.ended {
            return Due::Nothing;
        }
        if self.piece.is_empty() && self.open {
            return Due::Writer;
        }
        if self.with_receiver.len() >= window {
            self.with_receiver.retain(&mut unread);
        }
        if self.with_receiver.len() < window { Due::Part } else { Due::Window }
    }

    /// What the next part is taken from.
    pub fn piece(&self) -> &Bytes {
        &self.piece
    }

    /// Whether a part of so many bytes is the last one.
    pub fn ends_with(&self, bytes: usize) -> bool {
        !self.open && bytes == self.piece.len()
    }

    /// A part has gone with the first `bytes` of the piece. Who is to be woken: there is room for the next one.
    pub fn sent(&mut self, bytes: usize, part: T) -> Option<Waker> {
        self.ended = self.ends_with(bytes);
        let _ = self.piece.split_to(bytes);
        self.with_receiver.push_back(part);
        if self.piece.is_empty() { self.writer.take() } else { None }
    }

    /// Who waits for room, to be told that there will be none.
    pub fn writer(&mut self) -> Option<Waker> {
        self.writer.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Debug, Clone)]
    enum Event {
        Hand(Vec<u8>),
        Close,
        Send(usize),
        LetGo(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => any::<Vec<u8>>().prop_map(Event::Hand),
            1 => Just(Event::Close),
            8 => (1usize..40).prop_map(Event::Send),
            4 => any::<usize>().prop_map(Event::LetGo),
        ]
    }

    proptest! {
        #[test]
        fn all_is_sent_once_and_never_more_than_a_window(
            first: Vec<u8>,
            bodies in 0usize..40,
            events in proptest::collection::vec(event(), 0..120),
        ) {
            let mut outflow = Outflow::new(first.clone().into(), true, 0u32);
            let (mut handed, mut sent, mut lasts, mut number) = (first, Vec::new(), 0, 0u32);
            let (mut unread, mut open) = (BTreeSet::from([0u32]), true);
            for event in events {
                match event {
                    Event::Hand(piece) if open && outflow.has_room() => {
                        handed.extend_from_slice(&piece);
                        outflow.hand(piece.into());
                    }
                    Event::Close => {
                        outflow.close();
                        open = false;
                    }
                    Event::Send(most) => match outflow.due(window(bodies), |part| unread.contains(part)) {
                        Due::Part => {
                            let bytes = outflow.piece().len().min(most);
                            sent.extend_from_slice(&outflow.piece()[..bytes]);
                            lasts += usize::from(outflow.ends_with(bytes));
                            number += 1;
                            unread.insert(number);
                            outflow.sent(bytes, number);
                        }
                        Due::Window => prop_assert_eq!(unread.len(), window(bodies)),
                        Due::Writer => prop_assert!(open && sent == handed),
                        Due::Nothing => prop_assert!(!open && sent == handed && lasts == 1),
                    },
                    Event::LetGo(n) if !unread.is_empty() => {
                        let part = *unread.iter().nth(n % unread.len()).unwrap();
                        unread.remove(&part);
                    }
                    _ => {}
                }
                prop_assert!(unread.len() <= window(bodies) && window(bodies) <= WINDOW && lasts <= 1);
                prop_assert!(handed.starts_with(&sent));
                prop_assert!(handed.len() - sent.len() == outflow.piece().len(), "one piece is kept, no more");
            }
        }
    }
}
