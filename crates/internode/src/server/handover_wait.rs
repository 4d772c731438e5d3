//! Wait of a process that was replaced for the nodes that call it.

use std::time::Duration;

use nearpath_types::NodeName;
use tokio::time::timeout;

use super::StateServer;

impl StateServer {
    /// Waits until the calls of all subscribers go to the process that has replaced this one, `limit` at
    /// most. Call [`Self::begin_handover`] first.
    ///
    /// # Errors
    /// Returns the nodes that may still call this process: among them all of older releases.
    pub async fn wait_followed(&self, limit: Duration) -> Result<(), Vec<NodeName>> {
        let mut changes = self.subscribers.changes();
        let followed = async {
            while !self.subscribers.handover_pending().is_empty() {
                // The table lives as long as this server, so its sender does.
                let _ = changes.changed().await;
            }
        };
        let waited = timeout(limit, followed).await;
        waited.map_err(|_| self.subscribers.handover_pending())
    }

    /// Lists the present subscribers, which [`Self::wait_followed`] awaits. Call it before the state says
    /// that this process is replaced: a subscriber that follows at once would be missed.
    pub fn begin_handover(&self) {
        self.subscribers.begin_handover();
    }
}
