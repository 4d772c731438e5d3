//! A token of a thread's event loop, for connections that other threads use too.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Interval at which a thread that ends looks for connections that need it.
const TOKEN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Token of a serving thread's event loop. Connections that are registered with it hold a clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventLoopToken(Arc<()>);

impl EventLoopToken {
    /// Returns whether both are the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until no connection needs this event loop any more. Ends: after a drain no connection
    /// is kept, and each call has a limit.
    pub(crate) async fn wait_unused(&self) {
        while Arc::strong_count(&self.0) > 1 {
            tokio::time::sleep(TOKEN_POLL_INTERVAL).await;
        }
        // Pairs with the release in the drop of each clone: the sockets were deregistered before.
        fence(Ordering::Acquire);
    }
}
