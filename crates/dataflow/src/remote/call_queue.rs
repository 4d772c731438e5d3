//! Calls of producers that nobody has answered yet. Pure.
//!
//! A worker goes through several attempts on one line, and its peers do not begin them all at once: who is ahead calls before
//! one is there oneself. Such calls wait; those of an attempt that is over, and of workers that are no producers, are not
//! answered.

use std::collections::{HashMap, HashSet};

/// Calls for attempts to come that wait, at most: a worker has no more producers than sessions at a rendezvous.
const MOST: usize = 1024;

/// What an edge's call says that it is about.
pub fn about(attempt: u32) -> String {
    format!("edge of attempt {attempt}")
}

/// The attempt; `None`: the call is about something else.
pub fn attempt(about: &str) -> Option<u32> {
    about.strip_prefix("edge of attempt ")?.parse().ok()
}

/// See the module's text. `M` is what comes of a call.
#[derive(Debug)]
pub struct Calls<M> {
    attempt: u32,
    producers: HashSet<String>,
    waiting: HashMap<String, (u32, M)>,
}

impl<M> Default for Calls<M> {
    fn default() -> Self {
        Self { attempt: 0, producers: HashSet::new(), waiting: HashMap::new() }
    }
}

impl<M> Calls<M> {
    /// An attempt begins, with these producers.
    pub fn begin(&mut self, attempt: u32, producers: impl IntoIterator<Item = String>) {
        (self.attempt, self.producers) = (attempt, producers.into_iter().collect());
        let (current, producers) = (self.attempt, &self.producers);
        self.waiting.retain(|from, (of, _)| *of > current || (*of == current && producers.contains(from)));
    }

    /// Somebody calls; a newer call is in the place of an older one. Back comes what is not answered.
    pub fn ring(&mut self, from: String, attempt: u32, call: M) -> Option<M> {
        let known = self.waiting.get(&from);
        let is_stale = attempt < self.attempt || known.is_some_and(|(other, _)| attempt < *other);
        let is_strange = attempt == self.attempt && !self.producers.contains(&from);
        if is_stale || is_strange || (known.is_none() && self.waiting.len() >= MOST) {
            return Some(call);
        }
        self.waiting.insert(from, (attempt, call)).map(|(_, older)| older)
    }

    /// Whether one of that attempt waits.
    pub fn rings(&self, from: &str, attempt: u32) -> bool {
        self.waiting.get(from).is_some_and(|(of, _)| *of == attempt)
    }

    /// Answers it.
    pub fn take(&mut self, from: &str, attempt: u32) -> Option<M> {
        if !self.rings(from, attempt) {
            return None;
        }
        self.waiting.remove(from).map(|(_, call)| call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Calls<u32> {
        let mut calls = Calls::default();
        calls.begin(2, ["a".to_owned(), "b".to_owned()]);
        calls
    }

    #[test]
    fn a_producers_newest_call_is_answered_once() {
        let mut calls = calls();
        assert_eq!(calls.ring("a".into(), 2, 1), None);
        assert_eq!(calls.ring("a".into(), 2, 5), Some(1));
        assert!(calls.rings("a", 2) && !calls.rings("b", 2));
        assert_eq!((calls.take("a", 2), calls.take("a", 2)), (Some(5), None));
    }

    #[test]
    fn who_is_stale_or_no_producer_is_not_answered() {
        let mut calls = calls();
        assert_eq!(calls.ring("a".into(), 1, 7), Some(7));
        assert_eq!(calls.ring("c".into(), 2, 7), Some(7));
        assert_eq!(calls.ring("a".into(), 3, 8), None);
        assert_eq!(calls.ring("a".into(), 2, 9), Some(9), "it is ahead already");
    }

    #[test]
    fn who_is_ahead_is_answered_when_the_attempt_begins() {
        let mut calls = calls();
        for (from, attempt) in [("a", 3), ("c", 3), ("d", 4), ("b", 2)] {
            assert_eq!(calls.ring(from.into(), attempt, attempt), None);
        }
        assert_eq!(calls.take("a", 2), None);
        calls.begin(3, ["a".to_owned()]);
        assert_eq!((calls.take("a", 3), calls.take("c", 3), calls.take("b", 2)), (Some(3), None, None));
        calls.begin(4, ["d".to_owned()]);
        assert_eq!(calls.take("d", 4), Some(4));
    }

    #[test]
    fn strangers_do_not_fill_it() {
        let mut calls = calls();
        let kept = (0..5000).filter(|number| calls.ring(format!("s.{number}"), 9, 0).is_none()).count();
        assert_eq!(kept, MOST);
        assert_eq!(attempt(&about(7)), Some(7));
        assert_eq!((attempt("edge of attempt x"), attempt("")), (None, None));
    }
}
