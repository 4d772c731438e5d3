//! Reasons why a datagram is dropped, and how often.

use std::sync::atomic::{AtomicU64, Ordering};

/// Reason why a datagram to a virtual address does not reach an instance, or its answer the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub(super) enum DropReason {
    #[error("its source is no instance's")]
    UnknownCaller,
    #[error("the caller has no declared edge to it")]
    NotDeclared,
    #[error("no function is deployed that has the address")]
    NotDeployed,
    #[error("it runs on other nodes only, which no datagrams reach")]
    OtherNodes,
    #[error("port 8080 is the platform's own")]
    PlatformPort,
    #[error("the function has its share of flows, or all are taken")]
    TooManyFlows,
    #[error("the caller has its share of the bytes that are held for the function, or for all")]
    NoSpace,
    #[error("no instance became ready in time (nearpath.io/cold-timeout)")]
    ColdTimeout,
    #[error("the edge, the caller's instance or the function was removed while it was held")]
    Removed,
    #[error("the instance or the caller's socket did not take it")]
    Unreachable,
    #[error("the node had no time to read it")]
    QueueFull,
}

impl DropReason {
    const ALL: [Self; 11] = [
        Self::UnknownCaller,
        Self::NotDeclared,
        Self::NotDeployed,
        Self::OtherNodes,
        Self::PlatformPort,
        Self::TooManyFlows,
        Self::NoSpace,
        Self::ColdTimeout,
        Self::Removed,
        Self::Unreachable,
        Self::QueueFull,
    ];

    /// Returns the label of its metric.
    fn label(self) -> &'static str {
        match self {
            Self::UnknownCaller => "unknown_caller",
            Self::NotDeclared => "not_declared",
            Self::NotDeployed => "not_deployed",
            Self::OtherNodes => "other_nodes",
            Self::PlatformPort => "platform_port",
            Self::TooManyFlows => "too_many_flows",
            Self::NoSpace => "no_space",
            Self::ColdTimeout => "cold_timeout",
            Self::Removed => "removed",
            Self::Unreachable => "unreachable",
            Self::QueueFull => "queue_full",
        }
    }
}

/// Datagrams since the start of the node.
#[derive(Debug, Default)]
pub(super) struct DatagramCounters {
    /// Held until an instance is ready.
    pub(super) held: AtomicU64,
    /// Of these, those that were sent to an instance.
    pub(super) delivered: AtomicU64,
    /// Forwarded without being held, in both directions.
    pub(super) forwarded: AtomicU64,
    dropped: [AtomicU64; DropReason::ALL.len()],
}

impl DatagramCounters {
    /// Counts dropped datagrams.
    pub(super) fn count_dropped(&self, reason: DropReason, datagrams: usize) {
        add(&self.dropped[reason as usize], datagrams);
    }

    /// Returns the dropped datagrams by the label of their reason.
    pub(super) fn dropped(&self) -> Vec<(&'static str, u64)> {
        let counts = DropReason::ALL.iter().zip(&self.dropped);
        counts
            .map(|(reason, count)| (reason.label(), count.load(Ordering::Relaxed))) // orders nothing
            .collect()
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, datagrams: usize) {
    counter.fetch_add(datagrams as u64, Ordering::Relaxed); // orders nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter() {
        let counters = DatagramCounters::default();
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            counters.count_dropped(reason, index + 1);
        }
        let counts = counters.dropped();
        let expected = DropReason::ALL.iter().map(|reason| reason.label());
        assert!(counts.iter().map(|(label, _)| *label).eq(expected));
        assert!(counts.iter().map(|(_, count)| *count).eq(1..=11));
    }
}
