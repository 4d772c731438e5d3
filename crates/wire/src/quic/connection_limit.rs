//! Limit of a worker's connections.
//!
//! Every idle connection takes memory, and a permitted caller may still misbehave. A caller that
//! keeps opening connections must not starve the machine. Above the limit the handshake is still
//! completed: only then the caller can trust the refusal, and that none of its calls ran. Above
//! twice the limit, connections are refused without a reason.

use std::cell::Cell;
use std::rc::Rc;

/// Default limit of one worker's connections: sixteen gateway threads on each of sixty-four nodes.
pub const MAX_CONNECTIONS: usize = 1024;

/// Counts connections against a limit.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    pub(super) max: Cell<usize>,
    open: Rc<Cell<usize>>,
}

/// Permit for one connection; dropping it releases the slot.
#[derive(Debug)]
pub(super) struct AcceptPermit {
    /// The connection exceeds the limit: its caller is refused after the handshake.
    pub(super) is_over_limit: bool,
    open: Rc<Cell<usize>>,
}

impl Default for ConnectionLimit {
    fn default() -> Self {
        Self {
            max: Cell::new(MAX_CONNECTIONS),
            open: Rc::default(),
        }
    }
}

impl ConnectionLimit {
    /// Takes a permit; `None` above twice the limit.
    pub(super) fn acquire(&self) -> Option<AcceptPermit> {
        let (open, max) = (self.open.get(), self.max.get());
        // Completed handshakes above the limit take memory, too, so they are bounded as well.
        if open >= max.saturating_mul(2) {
            return None;
        }
        self.open.set(open + 1);
        Some(AcceptPermit {
            is_over_limit: open >= max,
            open: Rc::clone(&self.open),
        })
    }

    /// Returns true when half of the limit is used. New callers must then validate their address
    /// (RFC 9000 section 8.1.2), so that forged addresses do not take the rest. An address token is
    /// such a proof.
    pub(super) fn is_half_full(&self) -> bool {
        self.open.get() >= self.max.get().div_ceil(2)
    }

    /// Text for callers above the limit.
    pub(super) fn full_message(&self) -> String {
        format!(
            "connection limit reached: this worker has {} connections",
            self.max.get()
        )
    }
}

impl Drop for AcceptPermit {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_granted_then_over_limit_then_refused() {
        let limit = ConnectionLimit::default();
        limit.max.set(2);
        let mut permits: Vec<_> = (0..5).map(|_| limit.acquire()).collect();
        let over_limit: Vec<_> = permits
            .iter()
            .map(|place| place.as_ref().map(|place| place.is_over_limit))
            .collect();
        assert_eq!(
            over_limit,
            [Some(false), Some(false), Some(true), Some(true), None]
        );
        permits.drain(..3);
        assert!(
            limit.is_half_full() && !limit.acquire().unwrap().is_over_limit,
            "who left has made room"
        );
        drop(permits);
        assert!(limit.open.get() == 0 && !limit.is_half_full());
    }
}
