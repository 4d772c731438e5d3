//! Open handshakes of HTTP/3.

use std::cell::Cell;
use std::rc::Rc;

use nearpath_wire::h3::RetryPolicy;

/// Guard that counts one open handshake until it is dropped.
pub(super) struct HalfOpen(pub(super) Rc<Cell<RetryPolicy>>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        // Dropped on success, failure and timeout alike, so the count cannot leak.
        let mut retry_policy = self.0.get();
        retry_policy.handshake_ended();
        self.0.set(retry_policy);
    }
}
