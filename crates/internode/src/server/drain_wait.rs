//! Wait of a node that drains for the nodes that call it.

use std::time::Duration;

use nearpath_types::NodeName;
use tokio::time::{Instant, sleep_until, timeout};

use super::StateServer;

/// Time after which the routes of an older release reflect a drain. It does not report, and its
/// routes follow a line at once.
const SILENT_PEER_GRACE: Duration = Duration::from_secs(1);

impl StateServer {
    /// Waits until the routes of all subscribers reflect that this node drains, `limit` at most.
    /// The state must say so before. Subscribers that never reported have a second.
    ///
    /// # Errors
    /// Returns the nodes whose routes may still lead here.
    pub async fn wait_drain_applied(&self, limit: Duration) -> Result<(), Vec<NodeName>> {
        let waited = timeout(limit, self.wait_applied_by_all()).await;
        waited.map_err(|_| {
            let pending = self.subscribers.drain_pending();
            [pending.reporting, pending.silent].concat()
        })
    }

    async fn wait_applied_by_all(&self) {
        let mut changes = self.subscribers.changes();
        let silent_until = Instant::now() + SILENT_PEER_GRACE;
        loop {
            let pending = self.subscribers.drain_pending();
            let is_grace_over = Instant::now() >= silent_until;
            if pending.reporting.is_empty() && (pending.silent.is_empty() || is_grace_over) {
                return;
            }
            tokio::select! {
                // The table lives as long as this server, so its sender does.
                _ = changes.changed() => {}
                () = sleep_until(silent_until), if !is_grace_over => {}
            }
        }
    }
}
