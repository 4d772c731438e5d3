//! How many connections a worker takes.
//!
//! Each holds memory as long as it is idle, and who may call is not always who should: one caller that opens connections without end must
//! not starve the rest of the machine. Beyond the bound a handshake is still brought to its end, because only then can the
//! caller be told so that it believes it, and that nothing of what it sent has run. Beyond twice the bound nobody is told more than no.

use std::cell::Cell;
use std::rc::Rc;

/// Connections of one worker at a time, unless told otherwise: sixteen threads of a gateway on each of sixty-four nodes.
pub const MAX_CONNECTIONS: usize = 1024;

/// See the module's text.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    pub(super) max: Cell<usize>,
    open: Rc<Cell<usize>>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct AcceptPermit {
    /// It is one too many: its caller is to be told.
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
    /// A place; none when not even telling is affordable.
    pub(super) fn acquire(&self) -> Option<AcceptPermit> {
        let (open, max) = (self.open.get(), self.max.get());
        if open >= max.saturating_mul(2) {
            return None;
        }
        self.open.set(open + 1);
        Some(AcceptPermit {
            is_over_limit: open >= max,
            open: Rc::clone(&self.open),
        })
    }

    /// Whether half of the places are taken: then who comes proves its address first (RFC 9000 section 8.1.2), so that nobody takes the
    /// rest in others' names. Who has an address token has done so.
    pub(super) fn is_half_full(&self) -> bool {
        self.open.get() >= self.max.get().div_ceil(2)
    }

    /// What those beyond are told.
    pub(super) fn full_message(&self) -> String {
        format!(
            "this worker has {} connections, which is as many as it takes",
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
