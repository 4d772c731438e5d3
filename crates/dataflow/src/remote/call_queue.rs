//! Calls of producers that wait for an answer. Pure.
//!
//! A worker goes through several attempts on one connection, and its peers do not start an attempt
//! at the same moment. Calls of a peer that is ahead wait. Calls of past attempts, and of workers
//! that are no producers, are not answered.

use std::collections::{HashMap, HashSet};

/// Calls for later attempts that may wait: as many as a worker can have sessions at a rendezvous.
const MAX_WAITING_CALLS: usize = 1024;

/// Subject of the call for an edge, as in `contract/dataflow.md`.
pub fn call_subject(attempt: u32) -> String {
    format!("edge of attempt {attempt}")
}

/// Attempt of a call's subject; `None` when the call is about something else.
pub fn subject_attempt(about: &str) -> Option<u32> {
    about.strip_prefix("edge of attempt ")?.parse().ok()
}

/// Waiting calls, as in the module's text. `M` is the call itself.
#[derive(Debug)]
pub struct CallQueue<M> {
    attempt: u32,
    producers: HashSet<String>,
    waiting: HashMap<String, (u32, M)>,
}

impl<M> Default for CallQueue<M> {
    fn default() -> Self {
        Self {
            attempt: 0,
            producers: HashSet::new(),
            waiting: HashMap::new(),
        }
    }
}

impl<M> CallQueue<M> {
    /// Begins an attempt with these producers.
    pub fn begin_attempt(&mut self, attempt: u32, producers: impl IntoIterator<Item = String>) {
        (self.attempt, self.producers) = (attempt, producers.into_iter().collect());
        let (current, producers) = (self.attempt, &self.producers);
        // Producers of a later attempt are not known yet, so its calls are kept unseen.
        self.waiting
            .retain(|from, (of, _)| *of > current || (*of == current && producers.contains(from)));
    }

    /// Adds a call; it replaces an older one of the same worker. Returns the call that is not
    /// answered, if any.
    pub fn add_call(&mut self, from: String, attempt: u32, call: M) -> Option<M> {
        let previous = self.waiting.get(&from);
        // A producer that repeats a call has given up the older ones, which a slow rendezvous may
        // deliver later.
        let is_stale =
            attempt < self.attempt || previous.is_some_and(|(other, _)| attempt < *other);
        let is_unknown_producer = attempt == self.attempt && !self.producers.contains(&from);
        if is_stale
            || is_unknown_producer
            || (previous.is_none() && self.waiting.len() >= MAX_WAITING_CALLS)
        {
            return Some(call);
        }
        self.waiting
            .insert(from, (attempt, call))
            .map(|(_, older)| older)
    }

    /// True when a call of that worker for that attempt waits.
    pub fn has_call(&self, from: &str, attempt: u32) -> bool {
        self.waiting.get(from).is_some_and(|(of, _)| *of == attempt)
    }

    /// Takes a call, to answer it.
    pub fn take_call(&mut self, from: &str, attempt: u32) -> Option<M> {
        if !self.has_call(from, attempt) {
            return None;
        }
        self.waiting.remove(from).map(|(_, call)| call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call_queue() -> CallQueue<u32> {
        let mut calls = CallQueue::default();
        calls.begin_attempt(2, ["a".to_owned(), "b".to_owned()]);
        calls
    }

    #[test]
    fn the_newest_call_of_a_producer_is_answered_once() {
        let mut calls = call_queue();
        assert_eq!(calls.add_call("a".into(), 2, 1), None);
        assert_eq!(calls.add_call("a".into(), 2, 5), Some(1));
        assert!(calls.has_call("a", 2) && !calls.has_call("b", 2));
        assert_eq!(
            (calls.take_call("a", 2), calls.take_call("a", 2)),
            (Some(5), None)
        );
    }

    #[test]
    fn calls_of_past_attempts_and_unknown_producers_are_not_answered() {
        let mut calls = call_queue();
        assert_eq!(calls.add_call("a".into(), 1, 7), Some(7));
        assert_eq!(calls.add_call("c".into(), 2, 7), Some(7));
        assert_eq!(calls.add_call("a".into(), 3, 8), None);
        assert_eq!(
            calls.add_call("a".into(), 2, 9),
            Some(9),
            "the peer is ahead"
        );
    }

    #[test]
    fn calls_for_a_later_attempt_are_answered_when_it_begins() {
        let mut calls = call_queue();
        for (from, attempt) in [("a", 3), ("c", 3), ("d", 4), ("b", 2)] {
            assert_eq!(calls.add_call(from.into(), attempt, attempt), None);
        }
        assert_eq!(calls.take_call("a", 2), None);
        calls.begin_attempt(3, ["a".to_owned()]);
        assert_eq!(
            (
                calls.take_call("a", 3),
                calls.take_call("c", 3),
                calls.take_call("b", 2)
            ),
            (Some(3), None, None)
        );
        calls.begin_attempt(4, ["d".to_owned()]);
        assert_eq!(calls.take_call("d", 4), Some(4));
    }

    #[test]
    fn calls_of_unknown_workers_are_limited() {
        let mut calls = call_queue();
        let kept = (0..5000)
            .filter(|number| calls.add_call(format!("s.{number}"), 9, 0).is_none())
            .count();
        assert_eq!(kept, MAX_WAITING_CALLS);
        assert_eq!(subject_attempt(&call_subject(7)), Some(7));
        assert_eq!(
            (subject_attempt("edge of attempt x"), subject_attempt("")),
            (None, None)
        );
    }
}
