//! State that protocol adapters keep between clients, by key.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use crate::destination::{EgressDestination, PoolKey};

/// State of one adapter for one key, mainly its pool of idle connections.
pub trait AdapterState: Any {
    /// Creates the empty state for a destination.
    fn for_destination(to: &EgressDestination) -> Self
    where
        Self: Sized;

    /// Returns the adapter's used connections; `None` if it keeps none.
    fn idle_connections(&self) -> Option<&dyn IdleConnections>;
}

/// Used connections that wait for their next client, independent of their protocol.
pub trait IdleConnections {
    /// Returns since when the oldest connection has been idle.
    fn oldest_since(&self) -> Option<Instant>;

    /// Returns the number of idle connections.
    fn idle_count(&self) -> usize;

    /// Closes the connection that has been idle longest.
    fn close_oldest(&self);

    /// Closes all idle connections now, and every connection that is given back later.
    fn shut_down(&self);
}

/// States of all adapters on one thread.
#[derive(Default)]
pub struct AdapterRegistry {
    states: RefCell<BTreeMap<(PoolKey, TypeId), Rc<dyn AdapterState>>>,
    usage_memories: RefCell<BTreeMap<(PoolKey, TypeId), Rc<dyn Any>>>,
    /// True if new states start shut down.
    is_shut_down: Cell<bool>,
}

/// Maximum number of keys and adapters whose usage memory is kept.
const MAX_REMEMBERED_KEYS: usize = 1_024;

impl AdapterRegistry {
    /// Returns the adapter's state for a destination, created at its first use.
    pub fn state_of<R: AdapterState>(&self, to: &EgressDestination) -> Rc<R> {
        let create = || {
            let state = R::for_destination(to);
            // A new key may appear after shutdown; its connections must close as well.
            if self.is_shut_down.get() {
                state.idle_connections().inspect(|idle| idle.shut_down());
            }
            Rc::new(state) as Rc<dyn AdapterState>
        };
        let mut states = self.states.borrow_mut();
        // Each adapter has its own state type, so the type completes the key.
        let state = states
            .entry((to.key.clone(), TypeId::of::<R>()))
            .or_insert_with(create)
            .clone();
        (state as Rc<dyn Any>)
            .downcast()
            .expect("the entry's key contains its type")
    }

    /// Returns the memory of how a destination is used. It outlives the adapter state while a
    /// function is scaled to zero, but not a change of the settings.
    pub fn usage_memory<M: Default + 'static>(&self, to: &EgressDestination) -> Rc<M> {
        let mut memories = self.usage_memories.borrow_mut();
        let entry_key = (to.key.clone(), TypeId::of::<M>());
        if !memories.contains_key(&entry_key) {
            // Another epoch means other settings, which the memory must not outlive. A full table
            // is cleared: its entries are learned again cheaply.
            let differs_in_epoch = |key: &PoolKey| {
                PoolKey {
                    epoch: to.key.epoch,
                    ..key.clone()
                } == to.key
            };
            let full = memories.len() >= MAX_REMEMBERED_KEYS;
            memories.retain(|(key, _), _| !full && !differs_in_epoch(key));
        }
        let memory = memories
            .entry(entry_key)
            .or_insert_with(|| Rc::new(M::default()))
            .clone();
        memory
            .downcast()
            .expect("the entry's key contains its type")
    }

    /// Closes the longest-idle connection below the same limit, of any owner. Returns false if
    /// there is none. Called when a client waits below the limit that none of the idle connections
    /// can serve.
    pub fn reclaim_oldest(&self, waiting_key: &PoolKey) -> bool {
        let states = self.states.borrow();
        // Only a connection below the same limit frees a slot that the waiter can use.
        let ours = states
            .iter()
            .filter(|((key, _), _)| key.shares_limit_with(waiting_key));
        let idle = ours.filter_map(|(_, state)| state.idle_connections());
        let oldest = idle
            .filter_map(|idle| Some((idle.oldest_since()?, idle)))
            .min_by_key(|(since, _)| *since);
        oldest.inspect(|(_, idle)| idle.close_oldest()).is_some()
    }

    /// Returns the number of idle used connections of a key.
    pub fn idle_count(&self, key: &PoolKey) -> usize {
        self.states_of_key(key)
            .iter()
            .filter_map(|state| Some(state.idle_connections()?.idle_count()))
            .sum()
    }

    /// Returns since when the oldest used connection of a key has been idle.
    pub fn oldest_since(&self, key: &PoolKey) -> Option<Instant> {
        self.states_of_key(key)
            .iter()
            .filter_map(|state| state.idle_connections()?.oldest_since())
            .min()
    }

    fn states_of_key(&self, key: &PoolKey) -> Vec<Rc<dyn AdapterState>> {
        let states = self.states.borrow();
        let own = states
            .iter()
            .filter(|((other, _), _)| other == key)
            .map(|(_, state)| Rc::clone(state));
        own.collect()
    }

    /// Closes everything idle in all states, and everything given back later.
    pub fn shut_down(&self) {
        self.is_shut_down.set(true);
        self.states
            .borrow()
            .values()
            .filter_map(|state| state.idle_connections())
            .for_each(|idle| idle.shut_down());
    }

    /// Drops the states of a key: its policy has changed, or its function is gone.
    pub fn forget_key(&self, key: &PoolKey) {
        self.states.borrow_mut().retain(|(other, _), state| {
            let stays = other != key;
            if !stays {
                // Clients may still hold the state: this closes what they give back later.
                state.idle_connections().inspect(|idle| idle.shut_down());
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
