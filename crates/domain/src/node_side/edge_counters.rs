//! Edge counters, summed over open and closed channels. Pure, except for reading the channels'
//! counters.
//!
//! Every process that has mapped a channel can write any number into it. So a shown counter never
//! decreases, and no value or sum exceeds [`MAX_COUNTER`].

use std::collections::BTreeMap;

use nearpath_shm::counters::CounterReading;
use nearpath_shm::{Channel, ChannelSide};
use nearpath_types::FunctionId;

pub use super::call_counts::MAX_COUNTER;
use super::call_counts::{CallCounts, EdgeKey, MonotonicReader};
use crate::clock::MonotonicNanos;

/// Time for which an edge without a channel is shown.
pub const EDGE_RETENTION: MonotonicNanos = 3_600 * 1_000_000_000;
/// Maximum number of edges kept without a channel; the oldest are dropped first. Open edges are
/// bounded by the declaration.
pub const MAX_PAST_EDGES: usize = 1024;
/// Counters of one edge since the node started, or since the edge was last forgotten
/// ([`EDGE_RETENTION`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// The calling function; none: the gateway.
    pub caller: Option<FunctionId>,
    /// The called function.
    pub callee: Option<FunctionId>,
    /// Counters of the callers. Untrusted, unless the caller is the gateway.
    pub by_caller: CounterReading,
    /// Counters of the callees.
    pub by_callee: CounterReading,
}

/// An open channel, and the highest counters read from it.
#[derive(Debug)]
pub(super) struct EdgeChannel {
    edge_key: EdgeKey,
    channel: Channel,
    highest: [CounterReading; 2],
    call_reader: MonotonicReader,
}

impl EdgeChannel {
    pub(super) fn new(edge: EdgeKey, channel: Channel) -> Self {
        Self {
            edge_key: edge,
            channel,
            highest: Default::default(),
            call_reader: MonotonicReader::default(),
        }
    }

    /// Returns the edge of the channel.
    pub(super) fn edge_key(&self) -> &EdgeKey {
        &self.edge_key
    }

    /// Reads the call counts of the callee.
    pub(super) fn read_calls(&mut self) -> CallCounts {
        let [_, taken] = self.read_sides();
        self.call_reader.read_counts(&taken)
    }

    /// Reads the counters of both sides.
    fn read_sides(&mut self) -> [CounterReading; 2] {
        for (seen, side) in self
            .highest
            .iter_mut()
            .zip([ChannelSide::Caller, ChannelSide::Callee])
        {
            // Endpoints write these counters: a faulty or hostile one must not decrease a shown
            // sum.
            *seen = never_decreasing(
                seen,
                &self.channel.read_counters(side),
                u64::from(self.channel.capacity()),
            );
        }
        self.highest
    }
}

/// Totals of closed channels.
#[derive(Debug, Default)]
pub(super) struct PastEdges(BTreeMap<EdgeKey, PastEdge>);

#[derive(Debug, Default)]
struct PastEdge {
    totals: [CounterReading; 2],
    closed_at: MonotonicNanos,
}

impl PastEdges {
    /// Adds a channel that is being removed; none of its calls is in flight any more.
    pub(super) fn add_closed(&mut self, mut line: EdgeChannel, now: MonotonicNanos) {
        let read = line.read_sides();
        let gone = self.0.entry(line.edge_key).or_default();
        gone.closed_at = gone.closed_at.max(now);
        for (sum, read) in gone.totals.iter_mut().zip(read) {
            add_reading(
                sum,
                &CounterReading {
                    // A closed channel has no open calls, whatever its endpoint wrote last.
                    in_flight: 0,
                    ..read
                },
            );
        }
    }

    /// Merges open and past channels; forgets expired edges.
    pub(super) fn merge_open<'a>(
        &mut self,
        present: impl Iterator<Item = &'a mut EdgeChannel>,
        now: MonotonicNanos,
    ) -> Vec<EdgeCounters> {
        let mut totals: BTreeMap<EdgeKey, [CounterReading; 2]> = BTreeMap::new();
        for line in present {
            let read = line.read_sides();
            let totals = totals.entry(line.edge_key.clone()).or_default();
            totals
                .iter_mut()
                .zip(read)
                .for_each(|(sum, read)| add_reading(sum, &read));
        }
        // Between the two loops: an edge with an open channel keeps its past, however old.
        self.forget_expired(|edge| totals.contains_key(edge), now);
        for (edge, gone) in &self.0 {
            let totals = totals.entry(edge.clone()).or_default();
            totals
                .iter_mut()
                .zip(&gone.totals)
                .for_each(|(sum, read)| add_reading(sum, read));
        }
        let edge =
            |((caller, callee), [made, taken]): (EdgeKey, [CounterReading; 2])| EdgeCounters {
                caller,
                callee,
                by_caller: made,
                by_callee: taken,
            };
        totals.into_iter().map(edge).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn forget_expired(&mut self, open: impl Fn(&EdgeKey) -> bool, now: MonotonicNanos) {
        self.0
            .retain(|edge, gone| open(edge) || now < gone.closed_at.saturating_add(EDGE_RETENTION));
        let mut closed: Vec<_> = self
            .0
            .iter()
            .filter(|(edge, _)| !open(edge))
            .map(|(e, g)| (g.closed_at, e.clone()))
            .collect();
        let surplus = closed.len().saturating_sub(MAX_PAST_EDGES);
        if surplus > 0 {
            closed.sort();
            for (_, edge) in closed.iter().take(surplus) {
                self.0.remove(edge);
            }
        }
    }
}

/// Merges a second reading: values that decreased keep the first one.
fn never_decreasing(
    before: &CounterReading,
    now: &CounterReading,
    capacity: u64,
) -> CounterReading {
    let grown = |before: u64, now: u64| before.max(now.min(MAX_COUNTER));
    CounterReading {
        messages: grown(before.messages, now.messages),
        bytes: grown(before.bytes, now.bytes),
        answered: grown(before.answered, now.answered),
        failed: grown(before.failed, now.failed),
        // A caller has at most one ring of unanswered calls (`contract/memory.md`, Channel).
        in_flight: now.in_flight.min(capacity),
        latency: std::array::from_fn(|k| grown(before.latency[k], now.latency[k])),
        total_micros: grown(before.total_micros, now.total_micros),
    }
}

fn add_reading(sum: &mut CounterReading, more: &CounterReading) {
    let fields = [
        (&mut sum.messages, more.messages),
        (&mut sum.bytes, more.bytes),
        (&mut sum.answered, more.answered),
        (&mut sum.failed, more.failed),
        (&mut sum.in_flight, more.in_flight),
        (&mut sum.total_micros, more.total_micros),
    ];
    for (sum, more) in fields
        .into_iter()
        .chain(sum.latency.iter_mut().zip(more.latency))
    {
        *sum = sum.saturating_add(more).min(MAX_COUNTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbered_edge(number: usize) -> EdgeKey {
        (None, Some(format!("f{number}").parse().unwrap()))
    }

    fn edge_channel(number: usize) -> EdgeChannel {
        EdgeChannel::new(numbered_edge(number), Channel::create(16).unwrap())
    }

    #[test]
    fn an_edge_without_a_channel_is_shown_for_its_retention() {
        let mut past = PastEdges::default();
        past.add_closed(edge_channel(1), 5);
        assert_eq!(
            past.merge_open(std::iter::empty(), 4 + EDGE_RETENTION)
                .len(),
            1
        );
        assert_eq!(
            past.merge_open([edge_channel(1)].iter_mut(), 6 + EDGE_RETENTION)
                .len(),
            1,
            "it is open again"
        );
        assert!(!past.is_empty(), "and so keeps its past");
        assert_eq!(
            past.merge_open(std::iter::empty(), 6 + EDGE_RETENTION)
                .len(),
            0
        );
        assert!(past.is_empty());
    }

    #[test]
    fn the_oldest_edges_are_forgotten_above_the_limit() {
        let mut past = PastEdges::default();
        let one = Channel::create(16).unwrap();
        for number in 0..MAX_PAST_EDGES + 3 {
            past.add_closed(
                EdgeChannel::new(numbered_edge(number), one.clone()),
                number as MonotonicNanos,
            );
        }
        let shown = past.merge_open([edge_channel(0)].iter_mut(), 10);
        let there = |number| {
            shown
                .iter()
                .any(|edge| edge.callee == numbered_edge(number).1)
        };
        assert_eq!(shown.len(), MAX_PAST_EDGES + 1);
        assert!(
            there(0) && !there(1) && !there(2) && there(3),
            "an open one stays, however old"
        );
    }

    fn any_reading() -> impl Strategy<Value = CounterReading> {
        let any = prop_oneof![any::<u64>(), 0u64..1000, Just(u64::MAX)];
        proptest::collection::vec(any, 16).prop_map(|n| CounterReading {
            messages: n[0],
            bytes: n[1],
            answered: n[2],
            failed: n[3],
            in_flight: n[4],
            latency: std::array::from_fn(|k| n[5 + k]),
            total_micros: n[15],
        })
    }

    fn growing_values(reading: &CounterReading) -> Vec<u64> {
        let CounterReading {
            messages,
            bytes,
            answered,
            failed,
            in_flight: _,
            latency,
            total_micros: micros,
        } = *reading;
        [messages, bytes, answered, failed, micros]
            .into_iter()
            .chain(latency)
            .collect()
    }

    proptest! {
        #[test]
        fn counters_only_grow_within_bounds_whatever_an_endpoint_writes(written in proptest::collection::vec(any_reading(), 1..20)) {
            let mut seen = CounterReading::default();
            for now in &written {
                let next = never_decreasing(&seen, now, 256);
                prop_assert!(growing_values(&seen).iter().zip(growing_values(&next)).all(|(before, after)| *before <= after));
                prop_assert!(growing_values(&next).iter().all(|number| *number <= MAX_COUNTER) && next.in_flight <= 256);
                seen = next;
            }
            let mut sum = seen;
            for _ in 0..3 {
                let before = sum;
                add_reading(&mut sum, &CounterReading { messages: u64::MAX, ..seen });
                prop_assert!(growing_values(&before).iter().zip(growing_values(&sum)).all(|(before, after)| *before <= after));
            }
        }
    }
}
