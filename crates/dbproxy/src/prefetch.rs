//! Reads that are issued when a call of a function arrives (`prefetch`), before its code asks for them. Pure but for what stands for an answer.
//!
//! An answer is held for seconds at most, given to one who asks for the same, and thrown away when something is written. What "the same" is, an earlier
//! request of the function has taught: so the first call after the node began issues nothing, unless nothing has to be learnt.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;

/// How long an answer is held.
pub const MAX_ANSWER_AGE: Duration = Duration::from_secs(5);
/// Answers to one read that are under way or held: for as many calls at a time.
const MAX_ANSWERS_PER_READ: usize = 8;
/// Functions and reads that are remembered; a chain may share a destination.
const MAX_REMEMBERED_READS: usize = 1_024;

/// See the module. `K` is what has to be known to issue a read, `A` an answer that is there or is to come.
#[derive(Debug)]
pub struct PrefetchCache<K, A> {
    entries: HashMap<(FunctionId, Box<str>), PrefetchEntry<K, A>>,
}

#[derive(Debug)]
struct PrefetchEntry<K, A> {
    learned: Option<LearnedRead<K>>,
    answers: VecDeque<(Instant, A)>,
}

#[derive(Debug)]
struct LearnedRead<K> {
    request: K,
    /// The last two were the same.
    is_stable: bool,
}

impl<K, A> Default for PrefetchCache<K, A> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
        }
    }
}

impl<K: PartialEq + Clone, A> PrefetchCache<K, A> {
    /// A function reads so.
    pub fn learn(&mut self, function: &FunctionId, read: &str, how: K) {
        if self.entries.len() >= MAX_REMEMBERED_READS {
            self.entries.retain(|_, line| !line.answers.is_empty());
        }
        let line = self.entry(function, read);
        let steady = line
            .learned
            .as_ref()
            .is_some_and(|known| known.request == how);
        line.learned = Some(LearnedRead {
            request: how,
            is_stable: steady,
        });
    }

    /// How a function reads, and whether it did so twice in a row.
    pub fn learned_request(&self, function: &FunctionId, read: &str) -> Option<(K, bool)> {
        let known = self
            .entries
            .get(&(function.clone(), read.into()))?
            .learned
            .as_ref()?;
        Some((known.request.clone(), known.is_stable))
    }

    /// Whether one more answer may be asked for; how many have grown too old.
    pub fn has_capacity(&mut self, function: &FunctionId, read: &str, now: Instant) -> (bool, u64) {
        let line = self.entry(function, read);
        let old = line.expire(now);
        (line.answers.len() < MAX_ANSWERS_PER_READ, old)
    }

    /// An answer is there, or is to come.
    pub fn record_issued(&mut self, function: &FunctionId, read: &str, answer: A, now: Instant) {
        self.entry(function, read).answers.push_back((now, answer));
    }

    /// The oldest answer that is good for who asks now, and how many were too old.
    pub fn take_answer(
        &mut self,
        function: &FunctionId,
        read: &str,
        now: Instant,
        is_same: impl Fn(&A) -> bool,
    ) -> (Option<A>, u64) {
        let Some(line) = self.entries.get_mut(&(function.clone(), read.into())) else {
            return (None, 0);
        };
        let old = line.expire(now);
        let at = line.answers.iter().position(|(_, answer)| is_same(answer));
        (
            at.and_then(|at| line.answers.remove(at))
                .map(|(_, answer)| answer),
            old,
        )
    }

    /// Somebody wrote to what these reads are about, or to anything; how many answers that ends.
    pub fn invalidate(&mut self, is_about: impl Fn(&str) -> bool) -> u64 {
        let lines = self
            .entries
            .iter_mut()
            .filter(|((_, read), _)| is_about(read));
        lines
            .map(|(_, line)| line.answers.drain(..).count() as u64)
            .sum()
    }

    /// Time has passed; how many answers have grown too old.
    pub fn expire(&mut self, now: Instant) -> u64 {
        self.entries.values_mut().map(|line| line.expire(now)).sum()
    }

    fn entry(&mut self, function: &FunctionId, read: &str) -> &mut PrefetchEntry<K, A> {
        let new = || PrefetchEntry {
            learned: None,
            answers: VecDeque::new(),
        };
        self.entries
            .entry((function.clone(), read.into()))
            .or_insert_with(new)
    }
}

impl<K, A> PrefetchEntry<K, A> {
    fn expire(&mut self, now: Instant) -> u64 {
        let old = self
            .answers
            .iter()
            .take_while(|(since, _)| now.saturating_duration_since(*since) >= MAX_ANSWER_AGE)
            .count();
        self.answers.drain(..old).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn function(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    #[test]
    fn an_answer_is_used_once_by_its_function_while_it_is_fresh() {
        let (mut book, now) = (PrefetchCache::<u8, u8>::default(), Instant::now());
        book.record_issued(&function("a"), "/x", 1, now);
        book.record_issued(&function("a"), "/x", 2, now + MAX_ANSWER_AGE / 2);
        assert_eq!(
            book.take_answer(&function("b"), "/x", now, |_| true).0,
            None
        );
        assert_eq!(
            book.take_answer(&function("a"), "/y", now, |_| true).0,
            None
        );
        assert_eq!(
            book.take_answer(&function("a"), "/x", now, |answer| *answer == 3)
                .0,
            None
        );
        assert_eq!(
            book.take_answer(&function("a"), "/x", now + MAX_ANSWER_AGE, |_| true),
            (Some(2), 1)
        );
        assert_eq!(
            book.take_answer(&function("a"), "/x", now + MAX_ANSWER_AGE, |_| true),
            (None, 0)
        );
    }

    #[test]
    fn a_write_discards_earlier_reads() {
        let (mut book, now) = (PrefetchCache::<u8, u8>::default(), Instant::now());
        for (name, read) in [("a", "/x"), ("b", "/x"), ("a", "/y")] {
            book.record_issued(&function(name), read, 1, now);
        }
        assert_eq!(book.invalidate(|read| read == "/x"), 2);
        assert_eq!(
            book.take_answer(&function("a"), "/y", now, |_| true).0,
            Some(1)
        );
    }

    #[test]
    fn a_read_is_stable_after_two_equal_requests() {
        let mut book = PrefetchCache::<u8, u8>::default();
        assert_eq!(book.learned_request(&function("a"), "/x"), None);
        for (how, steady) in [(1, false), (1, true), (2, false), (1, false)] {
            book.learn(&function("a"), "/x", how);
            assert_eq!(
                book.learned_request(&function("a"), "/x"),
                Some((how, steady))
            );
        }
    }

    proptest! {
        /// Each answer is given once or thrown away, never both, never late, and few are held at a time.
        #[test]
        fn every_answer_ends_once(steps in prop::collection::vec((0u8..5, 0u64..4), 1..100)) {
            let (mut book, start, mut seconds) = (PrefetchCache::<u8, usize>::default(), Instant::now(), 0);
            let (mut made, mut used, mut unused, mut born) = (0usize, 0u64, 0u64, Vec::new());
            for (what, number) in steps {
                let now = start + Duration::from_secs(seconds);
                match what {
                    0 | 1 => {
                        let (room, old) = book.has_capacity(&function("a"), "/x", now);
                        unused += old;
                        if room {
                            book.record_issued(&function("a"), "/x", made, now);
                            born.push(seconds);
                            made += 1;
                        }
                    }
                    2 => {
                        let (taken, old) = book.take_answer(&function("a"), "/x", now, |_| true);
                        unused += old;
                        if let Some(taken) = taken {
                            prop_assert!(seconds - born[taken] < MAX_ANSWER_AGE.as_secs());
                            used += 1;
                        }
                    }
                    3 if number == 0 => unused += book.invalidate(|_| true),
                    _ => seconds += number,
                }
                let held = made as u64 - used - unused;
                prop_assert!(held <= MAX_ANSWERS_PER_READ as u64);
            }
            unused += book.expire(start + Duration::from_secs(seconds) + MAX_ANSWER_AGE);
            prop_assert_eq!(used + unused, made as u64);
        }
    }
}
