//! A thread's event loop, for connections that other threads use too.

use std::sync::Arc;
use std::time::Duration;

/// Interval at which a thread that ends looks for connections that need it.
const UNUSED_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Event loop of a serving thread. Connections that it watches hold a clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventLoop(Arc<()>);

impl EventLoop {
    /// Returns whether both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until no connection needs this event loop any more.
    pub(crate) async fn wait_unused(&self) {
        while Arc::strong_count(&self.0) > 1 {
            tokio::time::sleep(UNUSED_POLL_INTERVAL).await;
        }
    }
}
