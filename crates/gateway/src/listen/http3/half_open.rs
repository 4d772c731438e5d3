//! Handshakes that are under way.

use std::cell::Cell;
use std::rc::Rc;

use nearpath_wire::h3::Door;

/// A handshake that is under way; it counts until it is dropped.
pub(super) struct HalfOpen(pub(super) Rc<Cell<Door>>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        let mut door = self.0.get();
        door.settled();
        self.0.set(door);
    }
}
