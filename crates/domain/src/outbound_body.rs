//! A body that is sent in parts: data to send, and parts that the receiver has not released. Pure.
//!
//! The writer hands over one chunk at a time, the next one when all of it was sent. At most
//! [`MAX_PARTS_IN_FLIGHT`] parts are with the receiver, fewer when there are many bodies. So memory
//! stays bounded, and a slow reader stops the writer.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use bytes::Bytes;

/// Maximum number of parts of one body with the receiver. Enough to keep both sides busy, few
/// enough to leave slots to others.
pub const MAX_PARTS_IN_FLIGHT: usize = 8;

/// Returns the window per body when an endpoint sends `bodies` bodies to one peer.
pub fn part_window(bodies: usize) -> usize {
    (4 * MAX_PARTS_IN_FLIGHT / bodies.max(1)).clamp(2, MAX_PARTS_IN_FLIGHT)
}

/// Sending side of a body; `T` identifies a part that is with the receiver.
#[derive(Debug)]
pub struct OutboundBody<T> {
    chunk: Bytes,
    /// True while the writer may hand over more.
    input_open: bool,
    ended: bool,
    in_flight: VecDeque<T>,
    writer: Option<Waker>,
}

/// Next possible step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendReadiness {
    /// Send a part.
    Part,
    /// Wait until the receiver releases a part.
    AwaitsReceiver,
    /// Wait until the writer hands over a chunk.
    AwaitsWriter,
    /// All parts were sent.
    Complete,
}

impl<T> OutboundBody<T> {
    /// Creates a body: `piece` is available data, `first` the message already sent, `open` is true
    /// if the writer has more.
    pub fn new(piece: Bytes, open: bool, first: T) -> Self {
        let ended = piece.is_empty() && !open;
        Self {
            chunk: piece,
            input_open: open,
            ended,
            in_flight: VecDeque::from([first]),
            writer: None,
        }
    }

    /// Polls for room for the next chunk. `waker` is woken when there is room, and when there never
    /// will be.
    pub fn poll_writable(&mut self, waker: &Waker) -> Poll<()> {
        if !self
            .writer
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            self.writer = Some(waker.clone());
        }
        if self.is_writable() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Returns true if the writer can hand over the next chunk.
    pub fn is_writable(&self) -> bool {
        self.chunk.is_empty()
    }

    /// Hands over the next chunk. A writer that ignores the window is not stopped, but pays with a
    /// copy.
    pub fn push_chunk(&mut self, piece: Bytes) {
        self.chunk = match self.chunk.is_empty() {
            true => piece,
            // The writer did not wait: appending keeps the order at the cost of a copy.
            false => [&*self.chunk, &*piece].concat().into(),
        };
    }

    /// Ends the input: no further chunk follows.
    pub fn close_input(&mut self) {
        self.input_open = false;
    }

    /// Returns the next step for a window of `window` parts; `unread` tells if a part is still with
    /// the receiver.
    pub fn send_readiness(
        &mut self,
        window: usize,
        mut unread: impl FnMut(&T) -> bool,
    ) -> SendReadiness {
        if self.ended {
            return SendReadiness::Complete;
        }
        if self.chunk.is_empty() && self.input_open {
            return SendReadiness::AwaitsWriter;
        }
        // Checked only when the window is full: each check reads a lease word that the receiver
        // writes.
        if self.in_flight.len() >= window {
            self.in_flight.retain(&mut unread);
        }
        if self.in_flight.len() < window {
            SendReadiness::Part
        } else {
            SendReadiness::AwaitsReceiver
        }
    }

    /// Returns the data from which the next part is taken.
    pub fn chunk(&self) -> &Bytes {
        &self.chunk
    }

    /// Returns true if a part of `bytes` bytes is the last one.
    pub fn is_last_part(&self, bytes: usize) -> bool {
        !self.input_open && bytes == self.chunk.len()
    }

    /// Records a sent part of `bytes` bytes and returns the writer's waker when there is room
    /// again.
    pub fn record_part(&mut self, bytes: usize, part: T) -> Option<Waker> {
        self.ended = self.is_last_part(bytes);
        let _ = self.chunk.split_to(bytes);
        self.in_flight.push_back(part);
        if self.chunk.is_empty() {
            self.writer.take()
        } else {
            None
        }
    }

    /// Takes the writer's waker, to report that no more room follows.
    pub fn take_writer(&mut self) -> Option<Waker> {
        self.writer.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Debug, Clone)]
    enum OutboundEvent {
        Push(Vec<u8>),
        Close,
        Send(usize),
        Release(usize),
    }

    fn any_event() -> impl Strategy<Value = OutboundEvent> {
        prop_oneof![
            3 => any::<Vec<u8>>().prop_map(OutboundEvent::Push),
            1 => Just(OutboundEvent::Close),
            8 => (1usize..40).prop_map(OutboundEvent::Send),
            4 => any::<usize>().prop_map(OutboundEvent::Release),
        ]
    }

    proptest! {
        #[test]
        fn a_body_is_sent_once_and_within_the_window(
            first: Vec<u8>,
            bodies in 0usize..40,
            events in proptest::collection::vec(any_event(), 0..120),
        ) {
            let mut outflow = OutboundBody::new(first.clone().into(), true, 0u32);
            let (mut handed, mut sent, mut lasts, mut number) = (first, Vec::new(), 0, 0u32);
            let (mut unread, mut open) = (BTreeSet::from([0u32]), true);
            for event in events {
                match event {
                    OutboundEvent::Push(piece) if open && outflow.is_writable() => {
                        handed.extend_from_slice(&piece);
                        outflow.push_chunk(piece.into());
                    }
                    OutboundEvent::Close => {
                        outflow.close_input();
                        open = false;
                    }
                    OutboundEvent::Send(max_parts) => match outflow.send_readiness(part_window(bodies), |part| unread.contains(part)) {
                        SendReadiness::Part => {
                            let bytes = outflow.chunk().len().min(max_parts);
                            sent.extend_from_slice(&outflow.chunk()[..bytes]);
                            lasts += usize::from(outflow.is_last_part(bytes));
                            number += 1;
                            unread.insert(number);
                            outflow.record_part(bytes, number);
                        }
                        SendReadiness::AwaitsReceiver => prop_assert_eq!(unread.len(), part_window(bodies)),
                        SendReadiness::AwaitsWriter => prop_assert!(open && sent == handed),
                        SendReadiness::Complete => prop_assert!(!open && sent == handed && lasts == 1),
                    },
                    OutboundEvent::Release(n) if !unread.is_empty() => {
                        let part = *unread.iter().nth(n % unread.len()).unwrap();
                        unread.remove(&part);
                    }
                    _ => {}
                }
                prop_assert!(unread.len() <= part_window(bodies) && part_window(bodies) <= MAX_PARTS_IN_FLIGHT && lasts <= 1);
                prop_assert!(handed.starts_with(&sent));
                prop_assert!(handed.len() - sent.len() == outflow.chunk().len(), "one piece is kept, no more");
            }
        }
    }
}
