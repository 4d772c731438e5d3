//! What adapters keep from one client to the next, by key.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use crate::destination::{EgressDestination, PoolKey};

/// What one adapter keeps for one key: its bench of used connections above all.
pub trait AdapterState: Any {
    /// An empty one.
    fn for_destination(to: &EgressDestination) -> Self
    where
        Self: Sized;

    /// Its used connections; `NoConnection`: it keeps none.
    fn idle_connections(&self) -> Option<&dyn IdleConnections>;
}

/// Used connections that wait for their next client, whatever they speak.
pub trait IdleConnections {
    /// Since when the one waits that waits longest.
    fn oldest_since(&self) -> Option<Instant>;

    /// How many wait.
    fn idle_count(&self) -> usize;

    /// Closes the one that waits longest.
    fn close_oldest(&self);

    /// Closes what is idle now, and later what is given back.
    fn shut_down(&self);
}

/// The rooms of all adapters, on one thread.
#[derive(Default)]
pub struct AdapterRegistry {
    states: RefCell<BTreeMap<(PoolKey, TypeId), Rc<dyn AdapterState>>>,
    usage_memories: RefCell<BTreeMap<(PoolKey, TypeId), Rc<dyn Any>>>,
    /// Whether rooms are shut from the beginning.
    is_shut_down: Cell<bool>,
}

/// Keys of which something is remembered while no instance has them.
const MAX_REMEMBERED_KEYS: usize = 1_024;

impl AdapterRegistry {
    /// The adapter's room for a destination, made at its first use.
    pub fn state_of<R: AdapterState>(&self, to: &EgressDestination) -> Rc<R> {
        let open = || {
            let room = R::for_destination(to);
            if self.is_shut_down.get() {
                room.idle_connections().inspect(|idlers| idlers.shut_down());
            }
            Rc::new(room) as Rc<dyn AdapterState>
        };
        let mut rooms = self.states.borrow_mut();
        let room = rooms
            .entry((to.key.clone(), TypeId::of::<R>()))
            .or_insert_with(open)
            .clone();
        (room as Rc<dyn Any>)
            .downcast()
            .expect("the entry's key names its type")
    }

    /// What is known of how a destination is used. It outlives the room, for a function that sleeps and is called again, but not its settings.
    pub fn usage_memory<M: Default + 'static>(&self, to: &EgressDestination) -> Rc<M> {
        let mut memories = self.usage_memories.borrow_mut();
        let at = (to.key.clone(), TypeId::of::<M>());
        if !memories.contains_key(&at) {
            let same = |key: &PoolKey| {
                PoolKey {
                    epoch: to.key.epoch,
                    ..key.clone()
                } == to.key
            };
            let full = memories.len() >= MAX_REMEMBERED_KEYS;
            memories.retain(|(key, _), _| !full && !same(key));
        }
        let memory = memories
            .entry(at)
            .or_insert_with(|| Rc::new(M::default()))
            .clone();
        memory.downcast().expect("the entry's key names its type")
    }

    /// Closes the connection below the same ceiling that has been idle longest, whoever's it was: somebody whom it cannot serve waits below the ceiling. Whether
    /// there was one.
    pub fn reclaim_oldest(&self, beside: &PoolKey) -> bool {
        let rooms = self.states.borrow();
        let ours = rooms
            .iter()
            .filter(|((key, _), _)| key.shares_limit_with(beside));
        let idlers = ours.filter_map(|(_, room)| room.idle_connections());
        let oldest = idlers
            .filter_map(|idlers| Some((idlers.oldest_since()?, idlers)))
            .min_by_key(|(since, _)| *since);
        oldest
            .inspect(|(_, idlers)| idlers.close_oldest())
            .is_some()
    }

    /// How many used connections of a key wait for their next client.
    pub fn idle_count(&self, key: &PoolKey) -> usize {
        self.states_of_key(key)
            .iter()
            .filter_map(|room| Some(room.idle_connections()?.idle_count()))
            .sum()
    }

    /// Since when the one waits that waits longest.
    pub fn oldest_since(&self, key: &PoolKey) -> Option<Instant> {
        self.states_of_key(key)
            .iter()
            .filter_map(|room| room.idle_connections()?.oldest_since())
            .min()
    }

    fn states_of_key(&self, key: &PoolKey) -> Vec<Rc<dyn AdapterState>> {
        let rooms = self.states.borrow();
        let own = rooms
            .iter()
            .filter(|((other, _), _)| other == key)
            .map(|(_, room)| Rc::clone(room));
        own.collect()
    }

    /// Closes what is idle in all of them, and later what is given back: nothing is kept any more.
    pub fn shut_down(&self) {
        self.is_shut_down.set(true);
        self.states
            .borrow()
            .values()
            .filter_map(|room| room.idle_connections())
            .for_each(|idlers| idlers.shut_down());
    }

    /// Ends a key's rooms: its policy has changed, or its function is gone.
    pub fn forget_key(&self, key: &PoolKey) {
        self.states.borrow_mut().retain(|(other, _), room| {
            let stays = other != key;
            if !stays {
                room.idle_connections().inspect(|idlers| idlers.shut_down());
            }
            stays
        });
    }
}

impl std::fmt::Debug for AdapterRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries(self.states.borrow().keys().map(|(key, _)| key))
            .finish()
    }
}
