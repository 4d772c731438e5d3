//! A body that comes in parts and is read as it comes: what has come and was not read, and how it ended. Pure.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;

/// The reader's side of a body; `E`: why it can break off.
#[derive(Debug)]
pub struct Inflow<E> {
    parts: VecDeque<Bytes>,
    end: Option<Result<(), E>>,
    left: bool,
    reader: Option<Waker>,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<E> {
    /// The next part.
    Part(Bytes),
    /// That was all.
    End,
    /// There is more, but it will not come.
    Broken(E),
    /// Nothing has come; the reader's waker is kept.
    Nothing,
}

impl<E> Default for Inflow<E> {
    fn default() -> Self {
        Self { parts: VecDeque::new(), end: None, left: false, reader: None }
    }
}

impl<E: Clone> Inflow<E> {
    /// A part has come. It is let go when nobody reads any more, or the body had ended. Who is to be woken.
    pub fn came(&mut self, part: Bytes, last: bool) -> Option<Waker> {
        if self.end.is_some() {
            return None;
        }
        if last {
            self.end = Some(Ok(()));
        }
        if !self.left && !part.is_empty() {
            self.parts.push_back(part);
        }
        self.reader.take()
    }

    /// The rest will not come. What has come is still read. The first end counts. Who is to be woken.
    pub fn broke(&mut self, why: E) -> Option<Waker> {
        self.end.get_or_insert(Err(why));
        self.reader.take()
    }

    /// What is next; `waker` is told when there is something, if there is nothing.
    pub fn next(&mut self, waker: Option<&Waker>) -> Next<E> {
        match (self.parts.pop_front(), &self.end) {
            (Some(part), _) => Next::Part(part),
            (None, Some(Ok(()))) => Next::End,
            (None, Some(Err(why))) => Next::Broken(why.clone()),
            (None, None) => {
                self.reader = waker.cloned();
                Next::Nothing
            }
        }
    }

    /// Nobody reads any more: what has come is let go. Whether more would have come: its sender may be told.
    pub fn leave(&mut self) -> bool {
        self.parts.clear();
        !std::mem::replace(&mut self.left, true) && self.end.is_none()
    }

    /// Parts that have come and were not read.
    pub fn unread(&self) -> usize {
        self.parts.len()
    }

    /// Whether all has come and was read.
    pub fn is_over(&self) -> bool {
        self.parts.is_empty() && matches!(self.end, Some(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Event {
        Came(Vec<u8>, bool),
        Broke,
        Next,
        Leave,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => (any::<Vec<u8>>(), prop::bool::weighted(0.1)).prop_map(|(part, last)| Event::Came(part, last)),
            1 => Just(Event::Broke),
            6 => Just(Event::Next),
            1 => Just(Event::Leave),
        ]
    }

    proptest! {
        #[test]
        fn what_came_before_the_end_is_read_in_order(events in proptest::collection::vec(event(), 0..60)) {
            let mut inflow = Inflow::<u8>::default();
            let (mut came, mut read) = (Vec::new(), Vec::new());
            let (mut end, mut left) = (None, false);
            for event in events {
                match event {
                    Event::Came(part, last) => {
                        inflow.came(part.clone().into(), last);
                        if end.is_none() && !left { came.extend(part); }
                        if end.is_none() && last { end = Some(Ok(())); }
                    }
                    Event::Broke => {
                        inflow.broke(7);
                        end.get_or_insert(Err(7));
                    }
                    Event::Next => match inflow.next(None) {
                        Next::Part(part) => {
                            prop_assert!(!part.is_empty() && !left);
                            read.extend_from_slice(&part);
                        }
                        Next::Nothing => prop_assert!(end.is_none() && (left || read == came)),
                        Next::End => prop_assert!(end == Some(Ok(())) && (left || read == came)),
                        Next::Broken(why) => prop_assert!(end == Some(Err(why)) && (left || read == came)),
                    },
                    Event::Leave => {
                        prop_assert_eq!(inflow.leave(), !left && end.is_none());
                        left = true;
                        prop_assert_eq!(inflow.unread(), 0, "nothing is kept for nobody");
                    }
                }
                prop_assert!(came.starts_with(&read));
            }
        }
    }
}
