//! Reads that are issued when a call of a function arrives (`prefetch`), before its code asks for them. Pure but for what stands for an answer.
//!
//! An answer is held for seconds at most, given to one who asks for the same, and thrown away when something is written. What "the same" is, an earlier
//! request of the function has taught: so the first call after the node began issues nothing, unless nothing has to be learnt.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;

/// How long an answer is held.
pub const HELD: Duration = Duration::from_secs(5);
/// Answers to one read that are under way or held: for as many calls at a time.
const MOST: usize = 8;
/// Functions and reads that are remembered; a chain may share a destination.
const READS: usize = 1_024;

/// See the module. `K` is what has to be known to issue a read, `A` an answer that is there or is to come.
#[derive(Debug)]
pub struct Forecast<K, A> {
    reads: HashMap<(FunctionId, Box<str>), Line<K, A>>,
}

#[derive(Debug)]
struct Line<K, A> {
    known: Option<Known<K>>,
    issued: VecDeque<(Instant, A)>,
}

#[derive(Debug)]
struct Known<K> {
    how: K,
    /// The last two were the same.
    steady: bool,
}

impl<K, A> Default for Forecast<K, A> {
    fn default() -> Self {
        Self { reads: HashMap::new() }
    }
}

impl<K: PartialEq + Clone, A> Forecast<K, A> {
    /// A function reads so.
    pub fn learn(&mut self, function: &FunctionId, read: &str, how: K) {
        if self.reads.len() >= READS {
            self.reads.retain(|_, line| !line.issued.is_empty());
        }
        let line = self.line(function, read);
        let steady = line.known.as_ref().is_some_and(|known| known.how == how);
        line.known = Some(Known { how, steady });
    }

    /// How a function reads, and whether it did so twice in a row.
    pub fn known(&self, function: &FunctionId, read: &str) -> Option<(K, bool)> {
        let known = self.reads.get(&(function.clone(), read.into()))?.known.as_ref()?;
        Some((known.how.clone(), known.steady))
    }

    /// Whether one more answer may be asked for; how many have grown too old.
    pub fn has_room(&mut self, function: &FunctionId, read: &str, now: Instant) -> (bool, u64) {
        let line = self.line(function, read);
        let old = line.sweep(now);
        (line.issued.len() < MOST, old)
    }

    /// An answer is there, or is to come.
    pub fn issued(&mut self, function: &FunctionId, read: &str, answer: A, now: Instant) {
        self.line(function, read).issued.push_back((now, answer));
    }

    /// The oldest answer that is good for who asks now, and how many were too old.
    pub fn take(
        &mut self,
        function: &FunctionId,
        read: &str,
        now: Instant,
        is_same: impl Fn(&A) -> bool,
    ) -> (Option<A>, u64) {
        let Some(line) = self.reads.get_mut(&(function.clone(), read.into())) else { return (None, 0) };
        let old = line.sweep(now);
        let at = line.issued.iter().position(|(_, answer)| is_same(answer));
        (at.and_then(|at| line.issued.remove(at)).map(|(_, answer)| answer), old)
    }

    /// Somebody wrote to what these reads are about, or to anything; how many answers that ends.
    pub fn wrote(&mut self, is_about: impl Fn(&str) -> bool) -> u64 {
        let lines = self.reads.iter_mut().filter(|((_, read), _)| is_about(read));
        lines.map(|(_, line)| line.issued.drain(..).count() as u64).sum()
    }

    /// Time has passed; how many answers have grown too old.
    pub fn sweep(&mut self, now: Instant) -> u64 {
        self.reads.values_mut().map(|line| line.sweep(now)).sum()
    }

    fn line(&mut self, function: &FunctionId, read: &str) -> &mut Line<K, A> {
        let new = || Line { known: None, issued: VecDeque::new() };
        self.reads.entry((function.clone(), read.into())).or_insert_with(new)
    }
}

impl<K, A> Line<K, A> {
    fn sweep(&mut self, now: Instant) -> u64 {
        let old = self.issued.iter().take_while(|(since, _)| now.saturating_duration_since(*since) >= HELD).count();
        self.issued.drain(..old).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn f(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    #[test]
    fn an_answer_is_given_once_to_whose_it_is_while_it_is_young() {
        let (mut book, now) = (Forecast::<u8, u8>::default(), Instant::now());
        book.issued(&f("a"), "/x", 1, now);
        book.issued(&f("a"), "/x", 2, now + HELD / 2);
        assert_eq!(book.take(&f("b"), "/x", now, |_| true).0, None);
        assert_eq!(book.take(&f("a"), "/y", now, |_| true).0, None);
        assert_eq!(book.take(&f("a"), "/x", now, |answer| *answer == 3).0, None);
        assert_eq!(book.take(&f("a"), "/x", now + HELD, |_| true), (Some(2), 1));
        assert_eq!(book.take(&f("a"), "/x", now + HELD, |_| true), (None, 0));
    }

    #[test]
    fn a_write_ends_what_was_read_before_it() {
        let (mut book, now) = (Forecast::<u8, u8>::default(), Instant::now());
        for (name, read) in [("a", "/x"), ("b", "/x"), ("a", "/y")] {
            book.issued(&f(name), read, 1, now);
        }
        assert_eq!(book.wrote(|read| read == "/x"), 2);
        assert_eq!(book.take(&f("a"), "/y", now, |_| true).0, Some(1));
    }

    #[test]
    fn what_is_read_twice_alike_is_steady() {
        let mut book = Forecast::<u8, u8>::default();
        assert_eq!(book.known(&f("a"), "/x"), None);
        for (how, steady) in [(1, false), (1, true), (2, false), (1, false)] {
            book.learn(&f("a"), "/x", how);
            assert_eq!(book.known(&f("a"), "/x"), Some((how, steady)));
        }
    }

    proptest! {
        /// Each answer is given once or thrown away, never both, never late, and few are held at a time.
        #[test]
        fn every_answer_ends_once(steps in prop::collection::vec((0u8..5, 0u64..4), 1..100)) {
            let (mut book, start, mut seconds) = (Forecast::<u8, usize>::default(), Instant::now(), 0);
            let (mut made, mut used, mut unused, mut born) = (0usize, 0u64, 0u64, Vec::new());
            for (what, number) in steps {
                let now = start + Duration::from_secs(seconds);
                match what {
                    0 | 1 => {
                        let (room, old) = book.has_room(&f("a"), "/x", now);
                        unused += old;
                        if room {
                            book.issued(&f("a"), "/x", made, now);
                            born.push(seconds);
                            made += 1;
                        }
                    }
                    2 => {
                        let (taken, old) = book.take(&f("a"), "/x", now, |_| true);
                        unused += old;
                        if let Some(taken) = taken {
                            prop_assert!(seconds - born[taken] < HELD.as_secs());
                            used += 1;
                        }
                    }
                    3 if number == 0 => unused += book.wrote(|_| true),
                    _ => seconds += number,
                }
                let held = made as u64 - used - unused;
                prop_assert!(held <= MOST as u64);
            }
            unused += book.sweep(start + Duration::from_secs(seconds) + HELD);
            prop_assert_eq!(used + unused, made as u64);
        }
    }
}
