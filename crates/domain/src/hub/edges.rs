//! What edges counted, added up over channels that are and that were. Pure but for reading the channels' counters.
//!
//! Whoever has a channel mapped can write any number into it. So what was read once is never taken back (a counter that is
//! shown does not go backwards), and no number, nor any sum, is larger than [`LARGEST`].

use std::collections::BTreeMap;

use nearpath_shm::counters::Reading;
use nearpath_shm::{Channel, Side};
use nearpath_types::FunctionId;

use super::calls::{Calls, Steady};
use crate::clock::Nanos;

/// How long an edge without a channel is shown.
pub const RETENTION: Nanos = 3_600 * 1_000_000_000;
/// Edges without a channel that are kept; the oldest go first. Edges with one are as many as are declared.
pub const MOST_PAST: usize = 1024;
/// Largest value of a counter: what a double holds exactly, as Prometheus shows numbers.
pub const LARGEST: u64 = (1 << 53) - 1;

/// One edge since the node began, or since it was forgotten last (see [`RETENTION`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// Who calls; none: the gateway.
    pub caller: Option<FunctionId>,
    /// Who is called.
    pub callee: Option<FunctionId>,
    /// As the callers counted: their word, not proof, unless the caller is the gateway.
    pub made: Reading,
    /// As the callees counted.
    pub taken: Reading,
}

/// Key of an edge.
pub(super) type Key = (Option<FunctionId>, Option<FunctionId>);

/// A channel that is open, and the most that was read from it.
#[derive(Debug)]
pub(super) struct Line {
    edge: Key,
    channel: Channel,
    seen: [Reading; 2],
    steady: Steady,
}

impl Line {
    pub(super) fn new(edge: Key, channel: Channel) -> Self {
        Self { edge, channel, seen: Default::default(), steady: Steady::default() }
    }

    /// Which edge it is of.
    pub(super) fn edge(&self) -> &Key {
        &self.edge
    }

    /// What the callee counted so far.
    pub(super) fn calls(&mut self) -> Calls {
        let [_, taken] = self.read();
        self.steady.calls(&taken)
    }

    /// What both sides counted so far.
    fn read(&mut self) -> [Reading; 2] {
        for (seen, side) in self.seen.iter_mut().zip([Side::Caller, Side::Callee]) {
            *seen = later(seen, &self.channel.counted(side), u64::from(self.channel.capacity()));
        }
        self.seen
    }
}

/// Totals of channels that are no more.
#[derive(Debug, Default)]
pub(super) struct Past(BTreeMap<Key, Gone>);

#[derive(Debug, Default)]
struct Gone {
    sums: [Reading; 2],
    last: Nanos,
}

impl Past {
    /// A channel is being forgotten: nothing of it is in flight any more.
    pub(super) fn keep(&mut self, mut line: Line, now: Nanos) {
        let read = line.read();
        let gone = self.0.entry(line.edge).or_default();
        gone.last = gone.last.max(now);
        for (sum, read) in gone.sums.iter_mut().zip(read) {
            add(sum, &Reading { in_flight: 0, ..read });
        }
    }

    /// Past and present; what is past and old enough is forgotten.
    pub(super) fn with<'a>(&mut self, present: impl Iterator<Item = &'a mut Line>, now: Nanos) -> Vec<EdgeCounters> {
        let mut sums: BTreeMap<Key, [Reading; 2]> = BTreeMap::new();
        for line in present {
            let read = line.read();
            let sums = sums.entry(line.edge.clone()).or_default();
            sums.iter_mut().zip(read).for_each(|(sum, read)| add(sum, &read));
        }
        self.forget(|edge| sums.contains_key(edge), now);
        for (edge, gone) in &self.0 {
            let sums = sums.entry(edge.clone()).or_default();
            sums.iter_mut().zip(&gone.sums).for_each(|(sum, read)| add(sum, read));
        }
        let edge =
            |((caller, callee), [made, taken]): (Key, [Reading; 2])| EdgeCounters { caller, callee, made, taken };
        sums.into_iter().map(edge).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn forget(&mut self, open: impl Fn(&Key) -> bool, now: Nanos) {
        self.0.retain(|edge, gone| open(edge) || now < gone.last.saturating_add(RETENTION));
        let mut closed: Vec<_> =
            self.0.iter().filter(|(edge, _)| !open(edge)).map(|(e, g)| (g.last, e.clone())).collect();
        let surplus = closed.len().saturating_sub(MOST_PAST);
        if surplus > 0 {
            closed.sort();
            for (_, edge) in closed.iter().take(surplus) {
                self.0.remove(edge);
            }
        }
    }
}

/// What holds after a second look: counters that fell stay where they were.
fn later(before: &Reading, now: &Reading, capacity: u64) -> Reading {
    let grown = |before: u64, now: u64| before.max(now.min(LARGEST));
    Reading {
        messages: grown(before.messages, now.messages),
        bytes: grown(before.bytes, now.bytes),
        answered: grown(before.answered, now.answered),
        failed: grown(before.failed, now.failed),
        in_flight: now.in_flight.min(capacity),
        latency: std::array::from_fn(|k| grown(before.latency[k], now.latency[k])),
        micros: grown(before.micros, now.micros),
    }
}

fn add(sum: &mut Reading, more: &Reading) {
    let fields = [
        (&mut sum.messages, more.messages),
        (&mut sum.bytes, more.bytes),
        (&mut sum.answered, more.answered),
        (&mut sum.failed, more.failed),
        (&mut sum.in_flight, more.in_flight),
        (&mut sum.micros, more.micros),
    ];
    for (sum, more) in fields.into_iter().chain(sum.latency.iter_mut().zip(more.latency)) {
        *sum = sum.saturating_add(more).min(LARGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: usize) -> Key {
        (None, Some(format!("f{number}").parse().unwrap()))
    }

    fn line(number: usize) -> Line {
        Line::new(key(number), Channel::create(16).unwrap())
    }

    #[test]
    fn an_edge_without_a_channel_is_shown_for_its_retention() {
        let mut past = Past::default();
        past.keep(line(1), 5);
        assert_eq!(past.with(std::iter::empty(), 4 + RETENTION).len(), 1);
        assert_eq!(past.with([line(1)].iter_mut(), 6 + RETENTION).len(), 1, "it is open again");
        assert!(!past.is_empty(), "and so keeps its past");
        assert_eq!(past.with(std::iter::empty(), 6 + RETENTION).len(), 0);
        assert!(past.is_empty());
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut past = Past::default();
        let one = Channel::create(16).unwrap();
        for number in 0..MOST_PAST + 3 {
            past.keep(Line::new(key(number), one.clone()), number as Nanos);
        }
        let shown = past.with([line(0)].iter_mut(), 10);
        let there = |number| shown.iter().any(|edge| edge.callee == key(number).1);
        assert_eq!(shown.len(), MOST_PAST + 1);
        assert!(there(0) && !there(1) && !there(2) && there(3), "an open one stays, however old");
    }

    fn reading() -> impl Strategy<Value = Reading> {
        let any = prop_oneof![any::<u64>(), 0u64..1000, Just(u64::MAX)];
        proptest::collection::vec(any, 16).prop_map(|n| Reading {
            messages: n[0],
            bytes: n[1],
            answered: n[2],
            failed: n[3],
            in_flight: n[4],
            latency: std::array::from_fn(|k| n[5 + k]),
            micros: n[15],
        })
    }

    fn numbers(reading: &Reading) -> Vec<u64> {
        let Reading { messages, bytes, answered, failed, in_flight: _, latency, micros } = *reading;
        [messages, bytes, answered, failed, micros].into_iter().chain(latency).collect()
    }

    proptest! {
        #[test]
        fn whatever_a_party_writes_counters_only_grow_within_bounds(written in proptest::collection::vec(reading(), 1..20)) {
            let mut seen = Reading::default();
            for now in &written {
                let next = later(&seen, now, 256);
                prop_assert!(numbers(&seen).iter().zip(numbers(&next)).all(|(before, after)| *before <= after));
                prop_assert!(numbers(&next).iter().all(|number| *number <= LARGEST) && next.in_flight <= 256);
                seen = next;
            }
            let mut sum = seen;
            for _ in 0..3 {
                let before = sum;
                add(&mut sum, &Reading { messages: u64::MAX, ..seen });
                prop_assert!(numbers(&before).iter().zip(numbers(&sum)).all(|(before, after)| *before <= after));
            }
        }
    }
}
