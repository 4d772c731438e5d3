//! Values by ids that are never reused.

use slab::Slab;

/// A slab whose slots carry a generation, so that the id of a removed value finds nothing.
#[derive(Debug)]
pub(super) struct IdArena<T> {
    slots: Slab<(u32, T)>,
    generation: u32,
}

impl<T> IdArena<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Slab::new(),
            generation: 0,
        }
    }

    pub(super) fn insert(&mut self, value: T) -> u64 {
        // The generation wraps after 2^32 inserts; no id is kept for that long.
        self.generation = self.generation.wrapping_add(1);
        let index = self.slots.insert((self.generation, value));
        // Upper half: generation. Lower half: slot.
        u64::from(self.generation) << 32 | index as u64
    }

    pub(super) fn get(&self, id: u64) -> Option<&T> {
        self.slots
            .get(slot_index(id))
            .filter(|(generation, _)| *generation == generation_of(id))
            .map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.slots
            .get_mut(slot_index(id))
            .filter(|(generation, _)| *generation == generation_of(id))
            .map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        self.get(id)?;
        Some(self.slots.remove(slot_index(id)).1)
    }
}

fn slot_index(id: u64) -> usize {
    (id & u64::from(u32::MAX)) as usize
}

fn generation_of(id: u64) -> u32 {
    (id >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_removed_value_finds_nothing() {
        let mut arena = IdArena::new();
        let first = arena.insert('a');
        assert_eq!(arena.get(first), Some(&'a'));
        assert_eq!(
            (arena.remove(first), arena.remove(first)),
            (Some('a'), None)
        );
        let second = arena.insert('b');
        assert!(arena.get_mut(first).is_none() && arena.remove(first).is_none());
        assert_eq!(arena.get(second), Some(&'b'));
    }
}
