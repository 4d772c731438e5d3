//! Settings of a driver: how to search, and when to use the relay.

use std::time::Duration;

use crate::punch::agent::OPENING_PERIOD;

/// Settings of a driver.
#[derive(Debug, Clone)]
pub struct DriverSettings {
    /// Settings of the punching agent.
    pub agent: crate::punch::PunchSettings,
    /// True if the peer may be on this machine and is offered loopback addresses, too.
    pub loopback: bool,
    /// Use of the relay, if it is allowed.
    pub relay_policy: RelayPolicy,
    /// Time for the TLS handshake, on whichever path.
    pub handshake_timeout: Duration,
}

impl Default for DriverSettings {
    fn default() -> Self {
        let (agent, relay_policy) = Default::default();
        Self {
            agent,
            loopback: false,
            relay_policy,
            handshake_timeout: Duration::from_secs(20),
        }
    }
}

/// Times of a relay: when it is opened, and reopened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayPolicy {
    /// Head start of the direct connection before the relay is opened; meanwhile the control
    /// connection carries a few bytes. A failed search ends it.
    ///
    /// `None`: ten round trips to the rendezvous and [`OPENING_PERIOD`], between 0.3 s and 1 s.
    pub head_start: Option<Duration>,
    /// Time for acknowledgements of frames on the control connection, at least the head start; then
    /// the relay carries them.
    pub ack_timeout: Duration,
    /// Time for which a broken relay is retried before the stream fails.
    pub resume_timeout: Duration,
}

/// Range of the default head start: direct connections came after 7 to 10 round trips (decisions 35
/// and 48).
const HEAD_START_RANGE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

impl RelayPolicy {
    /// Returns the head start for a round trip to the rendezvous.
    pub(crate) fn head_start(&self, round_trip: Duration) -> Duration {
        self.head_start.unwrap_or_else(|| {
            (round_trip * 10 + OPENING_PERIOD).clamp(HEAD_START_RANGE.0, HEAD_START_RANGE.1)
        })
    }
}

impl Default for RelayPolicy {
    fn default() -> Self {
        Self {
            head_start: None,
            ack_timeout: Duration::from_secs(1),
            resume_timeout: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distant_rendezvous_gets_a_longer_head_start() {
        let ms = Duration::from_millis;
        let relay_policy = RelayPolicy::default();
        assert_eq!(
            [0, 50, 400].map(|rtt| relay_policy.head_start(ms(rtt))),
            [300, 570, 1000].map(ms)
        );
        let configured = RelayPolicy {
            head_start: Some(ms(7)),
            ..relay_policy
        };
        assert_eq!(configured.head_start(ms(400)), ms(7));
    }
}
