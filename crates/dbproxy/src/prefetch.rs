//! Reads that the node issues when a call of the function arrives (`prefetch`), before its code
//! asks for them. Pure: time is an argument.
//!
//! An answer is kept for seconds at most, goes to one equal request, and is discarded by any write.
//! The cache learns the shape of a read from the function's earlier requests. So the first call
//! after the node starts issues nothing, unless there is nothing to learn.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;

/// Time for which an answer stays usable.
pub const MAX_ANSWER_AGE: Duration = Duration::from_secs(5);
/// Answers per read that are in flight or kept: enough for as many concurrent calls.
const MAX_ANSWERS_PER_READ: usize = 8;
/// Functions and reads that are remembered; one chain may share a destination.
const MAX_REMEMBERED_READS: usize = 1_024;

/// Learned reads and prefetched answers. `K` is the shape of a request, `A` an answer or its
/// future.
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
    /// The last two requests were equal.
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
    /// Records how a function issued a read.
    pub fn learn(&mut self, function: &FunctionId, read: &str, request: K) {
        // Entries without answers hold only a learned shape, which the next request teaches again.
        if self.entries.len() >= MAX_REMEMBERED_READS {
            self.entries.retain(|_, entry| !entry.answers.is_empty());
        }
        let entry = self.entry(function, read);
        let is_stable = entry
            .learned
            .as_ref()
            .is_some_and(|learned| learned.request == request);
        entry.learned = Some(LearnedRead { request, is_stable });
    }

    /// Returns the learned shape of a read, and whether the last two requests had it.
    pub fn learned_request(&self, function: &FunctionId, read: &str) -> Option<(K, bool)> {
        let learned = self
            .entries
            .get(&(function.clone(), read.into()))?
            .learned
            .as_ref()?;
        Some((learned.request.clone(), learned.is_stable))
    }

    /// Returns whether one more answer may be requested, and how many answers have expired.
    pub fn has_capacity(&mut self, function: &FunctionId, read: &str, now: Instant) -> (bool, u64) {
        let entry = self.entry(function, read);
        let expired = entry.expire(now);
        (entry.answers.len() < MAX_ANSWERS_PER_READ, expired)
    }

    /// Records an answer that is available or in flight.
    pub fn record_issued(&mut self, function: &FunctionId, read: &str, answer: A, now: Instant) {
        self.entry(function, read).answers.push_back((now, answer));
    }

    /// Takes the oldest answer that fits the current request, and the number of expired ones.
    pub fn take_answer(
        &mut self,
        function: &FunctionId,
        read: &str,
        now: Instant,
        is_same: impl Fn(&A) -> bool,
    ) -> (Option<A>, u64) {
        let Some(entry) = self.entries.get_mut(&(function.clone(), read.into())) else {
            return (None, 0);
        };
        let expired = entry.expire(now);
        let at = entry.answers.iter().position(|(_, answer)| is_same(answer));
        (
            at.and_then(|at| entry.answers.remove(at))
                .map(|(_, answer)| answer),
            expired,
        )
    }

    /// Discards the answers of all reads that a write may affect. Returns their number.
    pub fn invalidate(&mut self, is_about: impl Fn(&str) -> bool) -> u64 {
        let entries = self
            .entries
            .iter_mut()
            .filter(|((_, read), _)| is_about(read));
        entries
            .map(|(_, entry)| entry.answers.drain(..).count() as u64)
            .sum()
    }

    /// Discards expired answers of all reads. Returns their number.
    pub fn expire(&mut self, now: Instant) -> u64 {
        self.entries
            .values_mut()
            .map(|entry| entry.expire(now))
            .sum()
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
        // Answers are queued in the order of their issue, so the expired ones are at the front.
        let expired = self
            .answers
            .iter()
            .take_while(|(since, _)| now.saturating_duration_since(*since) >= MAX_ANSWER_AGE)
            .count();
        self.answers.drain(..expired).count() as u64
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
        let (mut cache, now) = (PrefetchCache::<u8, u8>::default(), Instant::now());
        cache.record_issued(&function("a"), "/x", 1, now);
        cache.record_issued(&function("a"), "/x", 2, now + MAX_ANSWER_AGE / 2);
        assert_eq!(
            cache.take_answer(&function("b"), "/x", now, |_| true).0,
            None
        );
        assert_eq!(
            cache.take_answer(&function("a"), "/y", now, |_| true).0,
            None
        );
        assert_eq!(
            cache
                .take_answer(&function("a"), "/x", now, |answer| *answer == 3)
                .0,
            None
        );
        assert_eq!(
            cache.take_answer(&function("a"), "/x", now + MAX_ANSWER_AGE, |_| true),
            (Some(2), 1)
        );
        assert_eq!(
            cache.take_answer(&function("a"), "/x", now + MAX_ANSWER_AGE, |_| true),
            (None, 0)
        );
    }

    #[test]
    fn a_write_discards_earlier_reads() {
        let (mut cache, now) = (PrefetchCache::<u8, u8>::default(), Instant::now());
        for (name, read) in [("a", "/x"), ("b", "/x"), ("a", "/y")] {
            cache.record_issued(&function(name), read, 1, now);
        }
        assert_eq!(cache.invalidate(|read| read == "/x"), 2);
        assert_eq!(
            cache.take_answer(&function("a"), "/y", now, |_| true).0,
            Some(1)
        );
    }

    #[test]
    fn a_read_is_stable_after_two_equal_requests() {
        let mut cache = PrefetchCache::<u8, u8>::default();
        assert_eq!(cache.learned_request(&function("a"), "/x"), None);
        for (request, is_stable) in [(1, false), (1, true), (2, false), (1, false)] {
            cache.learn(&function("a"), "/x", request);
            assert_eq!(
                cache.learned_request(&function("a"), "/x"),
                Some((request, is_stable))
            );
        }
    }

    proptest! {
        /// Each answer is given once or thrown away, never both, never late, and few are held at a time.
        #[test]
        fn every_answer_is_used_or_discarded_once(steps in prop::collection::vec((0u8..5, 0u64..4), 1..100)) {
            let (mut cache, start, mut seconds) = (PrefetchCache::<u8, usize>::default(), Instant::now(), 0);
            let (mut made, mut used, mut unused, mut issued_at) = (0usize, 0u64, 0u64, Vec::new());
            for (what, number) in steps {
                let now = start + Duration::from_secs(seconds);
                match what {
                    0 | 1 => {
                        let (has_capacity, expired) = cache.has_capacity(&function("a"), "/x", now);
                        unused += expired;
                        if has_capacity {
                            cache.record_issued(&function("a"), "/x", made, now);
                            issued_at.push(seconds);
                            made += 1;
                        }
                    }
                    2 => {
                        let (taken, expired) = cache.take_answer(&function("a"), "/x", now, |_| true);
                        unused += expired;
                        if let Some(taken) = taken {
                            prop_assert!(seconds - issued_at[taken] < MAX_ANSWER_AGE.as_secs());
                            used += 1;
                        }
                    }
                    3 if number == 0 => unused += cache.invalidate(|_| true),
                    _ => seconds += number,
                }
                let held = made as u64 - used - unused;
                prop_assert!(held <= MAX_ANSWERS_PER_READ as u64);
            }
            unused += cache.expire(start + Duration::from_secs(seconds) + MAX_ANSWER_AGE);
            prop_assert_eq!(used + unused, made as u64);
        }
    }
}
