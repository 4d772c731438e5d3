//! The decision whether a connection to another node may get new calls: pure, from the datagrams that it
//! has received.
//!
//! Each datagram with a call brings one back within a round trip (`contract/quic.md`, "Silence"). When a
//! network stops to carry packets, the connection itself is closed after five seconds. Calls go by the
//! nodes before that, so fewer of them are lost.

use std::time::{Duration, Instant};

/// Time with open calls and without any datagram after which new calls go by the nodes. Long against
/// round trips and lost packets, short against the connection's own limit.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// Datagrams of a connection, as they were seen last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReplyWatch {
    received: u64,
    /// Since then nothing came although calls are open.
    silent_since: Option<Instant>,
}

impl ReplyWatch {
    /// Notes the datagrams so far and the open calls. Returns whether new calls may go there.
    pub(super) fn observe(&mut self, received: u64, open_calls: u32, now: Instant) -> bool {
        // Without open calls nothing has to come.
        if received != self.received || open_calls == 0 {
            (self.received, self.silent_since) = (received, None);
        }
        if open_calls == 0 {
            return true;
        }
        let since = *self.silent_since.get_or_insert(now);
        now.saturating_duration_since(since) < SILENCE_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_connection_with_datagrams_is_used(gaps in prop::collection::vec(0u64..5_000, 1..100)) {
            let (mut watch, mut now) = (ReplyWatch::default(), Instant::now());
            for (received, gap) in (1..).zip(gaps) {
                now += Duration::from_millis(gap);
                prop_assert!(watch.observe(received, 3, now));
            }
        }
    }

    #[test]
    fn a_silent_connection_gets_no_more_calls_until_something_comes() {
        let (mut watch, start) = (ReplyWatch::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(watch.observe(7, 1, at(0)) && watch.observe(7, 2, at(999)));
        assert!(!watch.observe(7, 2, at(1_000)) && !watch.observe(7, 2, at(4_000)));
        assert!(watch.observe(8, 2, at(4_001)));
    }

    #[test]
    fn an_idle_connection_may_be_silent() {
        let (mut watch, start) = (ReplyWatch::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(watch.observe(7, 0, at(0)) && watch.observe(7, 0, at(50)));
        assert!(watch.observe(7, 1, at(51)));
    }
}
