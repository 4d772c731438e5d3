//! How many connections a worker takes.
//!
//! Each holds memory as long as it is idle, and who may call is not always who should: one caller that opens connections without end must
//! not starve the rest of the machine. Beyond the bound a handshake is still brought to its end, because only then can the
//! caller be told so that it believes it, and that nothing of what it sent has run. Beyond twice the bound nobody is told more than no.

use std::cell::Cell;
use std::rc::Rc;

/// Connections of one worker at a time, unless told otherwise: sixteen threads of a gateway on each of sixty-four nodes.
pub const CONNECTIONS: usize = 1024;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) most: Cell<usize>,
    taken: Rc<Cell<usize>>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    /// It is one too many: its caller is to be told.
    pub(super) is_beyond: bool,
    taken: Rc<Cell<usize>>,
}

impl Default for Room {
    fn default() -> Self {
        Self { most: Cell::new(CONNECTIONS), taken: Rc::default() }
    }
}

impl Room {
    /// A place; none when not even telling is affordable.
    pub(super) fn enter(&self) -> Option<Place> {
        let (taken, most) = (self.taken.get(), self.most.get());
        if taken >= most.saturating_mul(2) {
            return None;
        }
        self.taken.set(taken + 1);
        Some(Place { is_beyond: taken >= most, taken: Rc::clone(&self.taken) })
    }

    /// Whether half of the places are taken: then who comes proves its address first (RFC 9000 section 8.1.2), so that nobody takes the
    /// rest in others' names. Who has an address token has done so.
    pub(super) fn is_crowded(&self) -> bool {
        self.taken.get() >= self.most.get().div_ceil(2)
    }

    /// What those beyond are told.
    pub(super) fn told(&self) -> String {
        format!("this worker has {} connections, which is as many as it takes", self.most.get())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_told_about_and_refused() {
        let room = Room::default();
        room.most.set(2);
        let mut places: Vec<_> = (0..5).map(|_| room.enter()).collect();
        let beyond: Vec<_> = places.iter().map(|place| place.as_ref().map(|place| place.is_beyond)).collect();
        assert_eq!(beyond, [Some(false), Some(false), Some(true), Some(true), None]);
        places.drain(..3);
        assert!(room.is_crowded() && !room.enter().unwrap().is_beyond, "who left has made room");
        drop(places);
        assert!(room.taken.get() == 0 && !room.is_crowded());
    }
}
