//! Timeouts of connections: a pure function of a few numbers.

use std::time::Duration;

use crate::context::TICK_INTERVAL;

/// Ticks without a byte from an HTTP/2 client after which a connection without requests ends in the
/// drain. Clients answer GOAWAY and the PING behind it at once, unless they read only when they
/// call.
const GOAWAY_GRACE_TICKS: u32 = 8;

/// Timeouts of a connection, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnTimeouts {
    /// From the first byte of a request to the end of its head; also from the start of the
    /// connection.
    pub head_ticks: u32,
    /// Between requests.
    pub idle_ticks: u32,
    /// While the client reads none of the waiting bytes.
    pub write_ticks: u32,
}

/// Converts a time to whole ticks, at least one.
pub(crate) fn whole_ticks(time: Duration) -> u32 {
    u32::try_from(time.as_millis().div_ceil(TICK_INTERVAL.as_millis()))
        .unwrap_or(u32::MAX)
        .max(1)
}

/// Snapshot of a connection for the check of its timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnSnapshot {
    /// Requests without a complete response.
    pub open_requests: u32,
    /// A part of a request head has arrived.
    pub head_has_begun: bool,
    /// Tick of the last change of the fields above.
    pub changed_at: u32,
    /// Tick of the first blocked write, if none has succeeded since.
    pub write_blocked_since: Option<u32>,
    /// Tick at which the client last read a part of a response, if more is waiting.
    pub untaken_since: Option<u32>,
    /// Tick of GOAWAY over HTTP/2, or of the last bytes after it.
    pub goaway_since: Option<u32>,
}

/// Reason to cut a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutReason {
    /// The request head was too slow.
    SlowHead,
    /// No request came for too long.
    Idle,
    /// The client does not read its response.
    WriteBlocked,
    /// The client does not answer GOAWAY.
    GoawayIgnored,
}

/// Returns the reason to cut a connection at tick `now`, if there is one.
pub(crate) fn overdue_reason(
    snapshot: ConnSnapshot,
    now: u32,
    timeouts: &ConnTimeouts,
) -> Option<CutReason> {
    // Wrapping: the tick counter may overflow in a process that runs for decades.
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
        // An open request has its own deadlines, see `request::deadlines`.
        ConnSnapshot {
            open_requests: 1.., ..
        } => None,
        // While a write is blocked, the rest of a response is on its way, although its request has
        // ended.
        ConnSnapshot {
            goaway_since: Some(since),
            write_blocked_since: None,
            ..
        } if is_over(since, GOAWAY_GRACE_TICKS) => Some(CutReason::GoawayIgnored),
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

    fn snapshot(
        open_requests: u32,
        head_has_begun: bool,
        write_blocked_since: Option<u32>,
    ) -> ConnSnapshot {
        ConnSnapshot {
            open_requests,
            head_has_begun,
            changed_at: 5,
            write_blocked_since,
            untaken_since: None,
            goaway_since: None,
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
            (
                ConnSnapshot {
                    goaway_since: Some(9),
                    ..snapshot(0, false, None)
                },
                9 + GOAWAY_GRACE_TICKS,
                CutReason::GoawayIgnored,
            ),
            (
                ConnSnapshot {
                    goaway_since: Some(9),
                    ..snapshot(0, false, Some(9))
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
        let draining = ConnSnapshot {
            goaway_since: Some(9),
            ..snapshot(1, false, None)
        };
        for open in [snapshot(1, false, None), draining] {
            assert_eq!(
                overdue_reason(open, 1_000_000, &TIMEOUTS),
                None,
                "a request has limits of its own"
            );
        }
    }
}
