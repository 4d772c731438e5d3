//! Handshakes that are under way.

use std::cell::Cell;
use std::rc::Rc;

use nearpath_wire::h3::RetryPolicy;

/// A handshake that is under way; it counts until it is dropped.
pub(super) struct HalfOpen(pub(super) Rc<Cell<RetryPolicy>>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        let mut retry_policy = self.0.get();
        retry_policy.handshake_ended();
        self.0.set(retry_policy);
    }
}
