//! When a caller's connection ends because nobody calls on it.
//!
//! A call may take longer than a silent connection lives, and a NAT may forget a silent caller: so callers send a sign of life while nothing
//! else goes ([`super::config::calling`]). That alone would keep every connection for ever. It is ended here, when there was no call for
//! as long as silence is permitted.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quinn::Connection;
use tokio::task::AbortHandle;

use super::code;

/// Watches one connection as long as this lives.
#[derive(Debug)]
pub(super) struct Rest(AbortHandle);

impl Rest {
    /// Of a connection with so many calls under way. Must run inside a `LocalSet`.
    pub(super) fn of(connection: &Connection, open: &Arc<AtomicU32>, after: Duration) -> Rc<Self> {
        let watching = tokio::task::spawn_local(watch(connection.clone(), Arc::clone(open), after));
        Rc::new(Self(watching.abort_handle()))
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn watch(connection: Connection, open: Arc<AtomicU32>, after: Duration) {
    let mut seen = None;
    while connection.close_reason().is_none() {
        tokio::time::sleep(after).await;
        let sent = connection.stats().frame_tx.stream;
        if open.load(Ordering::Relaxed) == 0 && seen.replace(sent) == Some(sent) {
            connection.close(code::DONE, b"");
        }
    }
}
