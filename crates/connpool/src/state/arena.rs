//! Things by ids that are never used again.

use slab::Slab;

/// Keeps things where they were put; what was taken out leaves room for the next, under another id.
#[derive(Debug)]
pub(super) struct Arena<T> {
    held: Slab<(u32, T)>,
    turn: u32,
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self { held: Slab::new(), turn: 0 }
    }

    pub(super) fn insert(&mut self, thing: T) -> u64 {
        self.turn = self.turn.wrapping_add(1);
        let index = self.held.insert((self.turn, thing));
        u64::from(self.turn) << 32 | index as u64
    }

    pub(super) fn get(&self, id: u64) -> Option<&T> {
        self.held.get(index(id)).filter(|(turn, _)| *turn == turn_of(id)).map(|(_, thing)| thing)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.held.get_mut(index(id)).filter(|(turn, _)| *turn == turn_of(id)).map(|(_, thing)| thing)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        self.get(id)?;
        Some(self.held.remove(index(id)).1)
    }
}

fn index(id: u64) -> usize {
    (id & u64::from(u32::MAX)) as usize
}

fn turn_of(id: u64) -> u32 {
    (id >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_what_is_gone_finds_nothing() {
        let mut arena = Arena::new();
        let first = arena.insert('a');
        assert_eq!(arena.get(first), Some(&'a'));
        assert_eq!((arena.remove(first), arena.remove(first)), (Some('a'), None));
        let second = arena.insert('b');
        assert!(arena.get_mut(first).is_none() && arena.remove(first).is_none());
        assert_eq!(arena.get(second), Some(&'b'));
    }
}
