//! When a connection has been silent, slow or stuck for too long: a pure function of a few numbers.

use std::time::Duration;

/// How often connections are looked at.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// Limits of a connection, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// From a request's first byte to the end of its head; also from the connection's beginning.
    pub head: u32,
    /// Between requests.
    pub idle: u32,
    /// While the peer takes none of the bytes that wait for it.
    pub stuck: u32,
}

/// `time` in whole ticks, at least one.
pub(crate) fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX).max(1)
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pulse {
    /// Requests that have no complete answer yet.
    pub requests: u32,
    /// Whether part of a request's head has come.
    pub heard: bool,
    /// When the last of the above changed.
    pub since: u32,
    /// When a write first found no room, if none has succeeded since.
    pub stuck: Option<u32>,
    /// When the peer last took a piece of an answer, if there is more for it to take.
    pub untaken: Option<u32>,
}

/// Why a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A request's head did not come in time.
    SlowHead,
    /// Nothing came for long.
    Idle,
    /// The peer does not read its answer.
    Stuck,
}

/// Judges a connection at tick `now`.
pub(crate) fn judge(pulse: Pulse, now: u32, patience: &Patience) -> Option<Cut> {
    let over = |since: u32, limit: u32| now.wrapping_sub(since) > limit;
    match pulse {
        Pulse { stuck: Some(since), .. } if over(since, patience.stuck) => Some(Cut::Stuck),
        Pulse { untaken: Some(since), .. } if over(since, patience.stuck) => Some(Cut::Stuck),
        Pulse { requests: 1.., .. } => None,
        Pulse { heard: true, since, .. } if over(since, patience.head) => Some(Cut::SlowHead),
        Pulse { heard: false, since, .. } if over(since, patience.idle) => Some(Cut::Idle),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { head: 10, idle: 100, stuck: 20 };

    fn pulse(requests: u32, heard: bool, stuck: Option<u32>) -> Pulse {
        Pulse { requests, heard, since: 5, stuck, untaken: None }
    }

    #[test]
    fn each_state_has_its_limit() {
        for (pulse, limit, cut) in [
            (pulse(0, true, None), 15, Cut::SlowHead),
            (pulse(0, false, None), 105, Cut::Idle),
            (pulse(3, false, Some(7)), 27, Cut::Stuck),
            (Pulse { untaken: Some(9), ..pulse(3, false, None) }, 29, Cut::Stuck),
        ] {
            assert_eq!(judge(pulse, limit, &PATIENCE), None, "{pulse:?}");
            assert_eq!(judge(pulse, limit + 1, &PATIENCE), Some(cut), "{pulse:?}");
        }
        assert_eq!(judge(pulse(1, false, None), 1_000_000, &PATIENCE), None, "a request has limits of its own");
    }
}
