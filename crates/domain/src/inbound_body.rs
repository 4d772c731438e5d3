//! A body that is read while it arrives: unread parts, and how the body ended. Pure.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;

/// Receiving side of a body; `E` is the reason of an abort.
#[derive(Debug)]
pub struct InboundBody<E> {
    parts: VecDeque<Bytes>,
    end: Option<Result<(), E>>,
    reader_gone: bool,
    reader: Option<Waker>,
}

/// Next item for the reader.
#[derive(Debug, PartialEq, Eq)]
pub enum NextPart<E> {
    /// The next part.
    Part(Bytes),
    /// The body is complete.
    End,
    /// The body was aborted.
    Broken(E),
    /// No part is there yet; the reader's waker is stored.
    Pending,
}

impl<E> Default for InboundBody<E> {
    fn default() -> Self {
        Self {
            parts: VecDeque::new(),
            end: None,
            reader_gone: false,
            reader: None,
        }
    }
}

impl<E: Clone> InboundBody<E> {
    /// Adds a part and returns the waker to wake. The part is dropped when the reader is gone, or
    /// the body has ended.
    pub fn push_part(&mut self, part: Bytes, last: bool) -> Option<Waker> {
        // The first end counts: parts after it are the sender's mistake.
        if self.end.is_some() {
            return None;
        }
        if last {
            self.end = Some(Ok(()));
        }
        // An empty part carries no bytes, but its flag `last` counted above.
        if !self.reader_gone && !part.is_empty() {
            self.parts.push_back(part);
        }
        self.reader.take()
    }

    /// Aborts the body and returns the waker to wake. Parts that arrived are still read; the first
    /// end counts.
    pub fn break_with(&mut self, why: E) -> Option<Waker> {
        self.end.get_or_insert(Err(why));
        self.reader.take()
    }

    /// Returns the next item; stores `waker` when there is none.
    pub fn next_part(&mut self, waker: Option<&Waker>) -> NextPart<E> {
        match (self.parts.pop_front(), &self.end) {
            // Parts before the end: an aborted body is still read as far as it came.
            (Some(part), _) => NextPart::Part(part),
            (None, Some(Ok(()))) => NextPart::End,
            (None, Some(Err(why))) => NextPart::Broken(why.clone()),
            (None, None) => {
                self.reader = waker.cloned();
                NextPart::Pending
            }
        }
    }

    /// Ends reading and drops unread parts. Returns true if more would have arrived: the sender may
    /// be notified.
    pub fn stop_reading(&mut self) -> bool {
        self.parts.clear();
        !std::mem::replace(&mut self.reader_gone, true) && self.end.is_none()
    }

    /// Returns the number of unread parts.
    pub fn unread_parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns true if the whole body arrived and was read.
    pub fn is_complete(&self) -> bool {
        self.parts.is_empty() && matches!(self.end, Some(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum InboundEvent {
        Came(Vec<u8>, bool),
        Broke,
        Next,
        Leave,
    }

    fn any_event() -> impl Strategy<Value = InboundEvent> {
        prop_oneof![
            6 => (any::<Vec<u8>>(), prop::bool::weighted(0.1)).prop_map(|(part, last)| InboundEvent::Came(part, last)),
            1 => Just(InboundEvent::Broke),
            6 => Just(InboundEvent::Next),
            1 => Just(InboundEvent::Leave),
        ]
    }

    proptest! {
        #[test]
        fn parts_received_before_the_end_are_read_in_order(events in proptest::collection::vec(any_event(), 0..60)) {
            let mut inflow = InboundBody::<u8>::default();
            let (mut came, mut read) = (Vec::new(), Vec::new());
            let (mut end, mut left) = (None, false);
            for event in events {
                match event {
                    InboundEvent::Came(part, last) => {
                        inflow.push_part(part.clone().into(), last);
                        if end.is_none() && !left { came.extend(part); }
                        if end.is_none() && last { end = Some(Ok(())); }
                    }
                    InboundEvent::Broke => {
                        inflow.break_with(7);
                        end.get_or_insert(Err(7));
                    }
                    InboundEvent::Next => match inflow.next_part(None) {
                        NextPart::Part(part) => {
                            prop_assert!(!part.is_empty() && !left);
                            read.extend_from_slice(&part);
                        }
                        NextPart::Pending => prop_assert!(end.is_none() && (left || read == came)),
                        NextPart::End => prop_assert!(end == Some(Ok(())) && (left || read == came)),
                        NextPart::Broken(why) => prop_assert!(end == Some(Err(why)) && (left || read == came)),
                    },
                    InboundEvent::Leave => {
                        prop_assert_eq!(inflow.stop_reading(), !left && end.is_none());
                        left = true;
                        prop_assert_eq!(inflow.unread_parts(), 0, "no part is kept without a reader");
                    }
                }
                prop_assert!(came.starts_with(&read));
            }
        }
    }
}
