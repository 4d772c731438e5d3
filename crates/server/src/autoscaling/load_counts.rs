//! Counters of one function at one moment.

use std::iter::Sum;
use std::ops::Add;

/// Calls of one kind: those that have ever started, and those that have not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CallCount {
    pub(super) started: u64,
    pub(super) open: u64,
}

impl Add for CallCount {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            started: self.started.saturating_add(more.started),
            open: self.open.saturating_add(more.open),
        }
    }
}

impl Sum for CallCount {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// Counters of one function at one moment. Each source of calls has counters of its own, which may
/// restart on their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LoadCounts {
    /// Requests at the gateway, those that wait included.
    pub(super) requests: CallCount,
    /// Calls of other functions past the gateway.
    pub(super) direct_calls: CallCount,
    /// Connections of other functions to its own ports; read for functions that may sleep.
    pub(super) connections: CallCount,
    /// Some of its calls are counted at other nodes only.
    pub(super) has_unseen_calls: bool,
    /// CPU time in thousandths of a core; read for functions that are scaled by it.
    pub(super) cpu_milli: Option<u64>,
    /// Instances that serve calls.
    pub(super) ready: u32,
    /// Instances that start.
    pub(super) starting: u32,
}

impl LoadCounts {
    /// Returns the counted calls of all kinds.
    pub(super) fn calls(&self) -> CallCount {
        [self.requests, self.direct_calls].into_iter().sum()
    }
}
