//! What edges counted, added up over channels that are and that were.

use std::collections::BTreeMap;

use nearpath_shm::counters::Reading;
use nearpath_shm::{Channel, Side};
use nearpath_types::FunctionId;

/// One edge since the domain began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// Who calls; none: the gateway.
    pub caller: Option<FunctionId>,
    /// Who is called.
    pub callee: Option<FunctionId>,
    /// As the callers counted: their word, not proof.
    pub made: Reading,
    /// As the callees counted.
    pub taken: Reading,
}

/// Key of an edge.
pub(super) type Key = (Option<FunctionId>, Option<FunctionId>);

/// Totals of channels that are no more.
#[derive(Debug, Default)]
pub(super) struct Past(BTreeMap<Key, [Reading; 2]>);

impl Past {
    /// A channel is being forgotten: nothing of it is in flight any more.
    pub(super) fn keep(&mut self, key: Key, channel: &Channel) {
        let sums = self.0.entry(key).or_default();
        for (sum, side) in sums.iter_mut().zip([Side::Caller, Side::Callee]) {
            add(sum, Reading { in_flight: 0, ..channel.counted(side) });
        }
    }

    /// Past and present.
    pub(super) fn with<'a>(&self, present: impl Iterator<Item = (Key, &'a Channel)>) -> Vec<EdgeCounters> {
        let mut sums = self.0.clone();
        for (key, channel) in present {
            let sums = sums.entry(key).or_default();
            for (sum, side) in sums.iter_mut().zip([Side::Caller, Side::Callee]) {
                add(sum, channel.counted(side));
            }
        }
        let edge =
            |((caller, callee), [made, taken]): (Key, [Reading; 2])| EdgeCounters { caller, callee, made, taken };
        sums.into_iter().map(edge).collect()
    }
}

/// A hostile side can write any number: sums wrap rather than stop the node.
fn add(sum: &mut Reading, more: Reading) {
    let fields = [
        (&mut sum.messages, more.messages),
        (&mut sum.bytes, more.bytes),
        (&mut sum.answered, more.answered),
        (&mut sum.failed, more.failed),
        (&mut sum.in_flight, more.in_flight),
    ];
    for (sum, more) in fields.into_iter().chain(sum.latency.iter_mut().zip(more.latency)) {
        *sum = sum.wrapping_add(more);
    }
}
