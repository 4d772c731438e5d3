//! Log lines about one node, one a minute for each kind.

use std::time::Instant;

use nearpath_types::NodeName;
use nearpath_types::log_limiter::LogLimiter;

use crate::peer_states::PeerAvailability;

/// Writer of the lines about one node.
#[derive(Debug, Default)]
pub(super) struct PeerLog(LogLimiter<&'static str>);

impl PeerLog {
    /// Writes that the node is in another state.
    pub(super) fn note_state(&mut self, node: &NodeName, state: &PeerAvailability, now: Instant) {
        match state {
            PeerAvailability::Connecting => {}
            PeerAvailability::Up => self.note_up(node, now),
            PeerAvailability::HeldDown { until } => {
                if let Some(suppressed) = self.0.take_due("held down", now) {
                    let hold_down = until.saturating_duration_since(now);
                    tracing::warn!(%node, ?hold_down, suppressed, "node went down several times: it must stay up before calls go there");
                }
            }
            PeerAvailability::Down { cause } => self.note_down(node, cause, now),
        }
    }

    fn note_up(&mut self, node: &NodeName, now: Instant) {
        if let Some(suppressed) = self.0.take_due("up", now) {
            tracing::info!(%node, suppressed, "node is up");
        }
    }

    fn note_down(&mut self, node: &NodeName, cause: &str, now: Instant) {
        if let Some(suppressed) = self.0.take_due("down", now) {
            tracing::warn!(%node, cause, suppressed, "node is down: no calls go there");
        }
    }
}
