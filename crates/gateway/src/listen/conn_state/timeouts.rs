//! When a connection has been silent, slow or stuck for too long: a pure function of a few numbers.

use std::time::Duration;

/// How often connections are looked at.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// Limits of a connection, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnTimeouts {
    /// From a request's first byte to the end of its head; also from the connection's beginning.
    pub head_ticks: u32,
    /// Between requests.
    pub idle_ticks: u32,
    /// While the peer takes none of the bytes that wait for it.
    pub write_ticks: u32,
}

/// `time` in whole ticks, at least one.
pub(crate) fn whole_ticks(time: Duration) -> u32 {
    u32::try_from(time.as_millis().div_ceil(TICK_INTERVAL.as_millis()))
        .unwrap_or(u32::MAX)
        .max(1)
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnSnapshot {
    /// Requests that have no complete answer yet.
    pub open_requests: u32,
    /// Whether part of a request's head has come.
    pub head_has_begun: bool,
    /// When the last of the above changed.
    pub changed_at: u32,
    /// When a write first found no room, if none has succeeded since.
    pub write_blocked_since: Option<u32>,
    /// When the peer last took a piece of an answer, if there is more for it to take.
    pub untaken_since: Option<u32>,
}

/// Why a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutReason {
    /// A request's head did not come in time.
    SlowHead,
    /// Nothing came for long.
    Idle,
    /// The peer does not read its answer.
    WriteBlocked,
}

/// Judges a connection at tick `now`.
pub(crate) fn overdue_reason(
    snapshot: ConnSnapshot,
    now: u32,
    timeouts: &ConnTimeouts,
) -> Option<CutReason> {
    let is_over = |since: u32, limit: u32| now.wrapping_sub(since) > limit;
    match snapshot {
        ConnSnapshot {
            write_blocked_since: Some(since),
            ..
        } if is_over(since, timeouts.write_ticks) => Some(CutReason::WriteBlocked),
        ConnSnapshot {
            untaken_since: Some(since),
            ..
        } if is_over(since, timeouts.write_ticks) => Some(CutReason::WriteBlocked),
        ConnSnapshot {
            open_requests: 1.., ..
        } => None,
        ConnSnapshot {
            head_has_begun: true,
            changed_at: since,
            ..
        } if is_over(since, timeouts.head_ticks) => Some(CutReason::SlowHead),
        ConnSnapshot {
            head_has_begun: false,
            changed_at: since,
            ..
        } if is_over(since, timeouts.idle_ticks) => Some(CutReason::Idle),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: ConnTimeouts = ConnTimeouts {
        head_ticks: 10,
        idle_ticks: 100,
        write_ticks: 20,
    };

    fn snapshot(requests: u32, heard: bool, stuck: Option<u32>) -> ConnSnapshot {
        ConnSnapshot {
            open_requests: requests,
            head_has_begun: heard,
            changed_at: 5,
            write_blocked_since: stuck,
            untaken_since: None,
        }
    }

    #[test]
    fn each_state_has_its_limit() {
        for (snapshot, limit, cut) in [
            (snapshot(0, true, None), 15, CutReason::SlowHead),
            (snapshot(0, false, None), 105, CutReason::Idle),
            (snapshot(3, false, Some(7)), 27, CutReason::WriteBlocked),
            (
                ConnSnapshot {
                    untaken_since: Some(9),
                    ..snapshot(3, false, None)
                },
                29,
                CutReason::WriteBlocked,
            ),
        ] {
            assert_eq!(
                overdue_reason(snapshot, limit, &TIMEOUTS),
                None,
                "{snapshot:?}"
            );
            assert_eq!(
                overdue_reason(snapshot, limit + 1, &TIMEOUTS),
                Some(cut),
                "{snapshot:?}"
            );
        }
        assert_eq!(
            overdue_reason(snapshot(1, false, None), 1_000_000, &TIMEOUTS),
            None,
            "a request has limits of its own"
        );
    }
}
