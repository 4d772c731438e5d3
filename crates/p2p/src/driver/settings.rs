//! What a driver is told: how to search, and when the relay is used.

use std::time::Duration;

/// How a driver goes about it.
#[derive(Debug, Clone)]
pub struct DriverSettings {
    /// Of the machine.
    pub agent: crate::punch::PunchSettings,
    /// The peer may be on this machine, and is offered loopback addresses, too.
    pub loopback: bool,
    /// When the relay is used, if it may be.
    pub relay_policy: RelayPolicy,
    /// The peer may take so long to shake hands, whichever way.
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

/// When a connection to the relay is opened, and opened anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayPolicy {
    /// The direct way is waited for so long before: meanwhile the line carries a few bytes. A hopeless search is not waited for.
    /// `NoConnection`: ten round trips to the rendezvous, and between 0.3 s and 1 s.
    pub head_start: Option<Duration>,
    /// What was given to the line is acknowledged within so long, or within the head start, if that is longer; or the relay carries it.
    pub ack_timeout: Duration,
    /// A way is broken when its relay has been away for so long.
    pub resume_timeout: Duration,
}

/// Most direct ways are there within.
const HEAD_START_RANGE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

impl RelayPolicy {
    /// The head start, where a round trip to the rendezvous takes so long.
    pub(crate) fn head_start(&self, round_trip: Duration) -> Duration {
        self.head_start
            .unwrap_or_else(|| (round_trip * 10).clamp(HEAD_START_RANGE.0, HEAD_START_RANGE.1))
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
            [300, 500, 1000].map(ms)
        );
        let configured = RelayPolicy {
            head_start: Some(ms(7)),
            ..relay_policy
        };
        assert_eq!(configured.head_start(ms(400)), ms(7));
    }
}
