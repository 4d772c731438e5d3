//! Times of the connection to another node.

use std::time::Duration;

/// Interval of pings.
pub(crate) const PING_INTERVAL: Duration = Duration::from_millis(500);

/// Times of the connection to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkTimings {
    /// Time for a connection and the head of the state's response.
    pub connect_timeout: Duration,
    /// Time from there to the end of the whole state. The largest has some 10 MB.
    pub state_timeout: Duration,
    /// Time without a line: two heartbeats and a half.
    pub line_timeout: Duration,
    /// Time without an answered ping: four pings.
    pub ping_timeout: Duration,
    /// Wait before the second attempt. It doubles with each one.
    pub min_backoff: Duration,
    /// Longest wait before an attempt.
    pub max_backoff: Duration,
    /// Time in which a peer may go down twice. The third time, it flaps.
    pub flap_window: Duration,
    /// First time that a flapping peer must stay up before it is used. It doubles each time.
    pub min_hold_down: Duration,
    /// Longest time that a flapping peer must stay up.
    pub max_hold_down: Duration,
    /// Time between two subscriptions that start again without the peer going down.
    pub restart_interval: Duration,
}

impl Default for LinkTimings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            state_timeout: Duration::from_secs(30),
            line_timeout: Duration::from_millis(2_500),
            ping_timeout: Duration::from_secs(2),
            min_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            flap_window: Duration::from_secs(30),
            min_hold_down: Duration::from_secs(1),
            max_hold_down: Duration::from_secs(30),
            restart_interval: Duration::from_secs(30),
        }
    }
}
