//! What a driver is told: how to search, and when the relay is used.

use std::time::Duration;

/// How a driver goes about it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of the machine.
    pub agent: crate::punch::Settings,
    /// The peer may be on this machine, and is offered loopback addresses, too.
    pub loopback: bool,
    /// When the relay is used, if it may be.
    pub relaying: Relaying,
    /// The peer may take so long to shake hands, whichever way.
    pub handshake: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let (agent, relaying) = Default::default();
        Self { agent, loopback: false, relaying, handshake: Duration::from_secs(20) }
    }
}

/// When a connection to the relay is opened, and opened anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relaying {
    /// The direct way is waited for so long before: meanwhile the line carries a few bytes. A hopeless search is not waited for.
    /// `None`: ten round trips to the rendezvous, and between 0.3 s and 1 s.
    pub head_start: Option<Duration>,
    /// What was given to the line is acknowledged within so long, or within the head start, if that is longer; or the relay carries it.
    pub heard: Duration,
    /// A way is broken when its relay has been away for so long.
    pub patience: Duration,
}

/// Most direct ways are there within.
const HEAD_START: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

impl Relaying {
    /// The head start, where a round trip to the rendezvous takes so long.
    pub(crate) fn head_start(&self, round_trip: Duration) -> Duration {
        self.head_start.unwrap_or_else(|| (round_trip * 10).clamp(HEAD_START.0, HEAD_START.1))
    }
}

impl Default for Relaying {
    fn default() -> Self {
        Self { head_start: None, heard: Duration::from_secs(1), patience: Duration::from_secs(60) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_far_away_gets_a_longer_head_start() {
        let ms = Duration::from_millis;
        let relaying = Relaying::default();
        assert_eq!([0, 50, 400].map(|rtt| relaying.head_start(ms(rtt))), [300, 500, 1000].map(ms));
        let told = Relaying { head_start: Some(ms(7)), ..relaying };
        assert_eq!(told.head_start(ms(400)), ms(7));
    }
}
