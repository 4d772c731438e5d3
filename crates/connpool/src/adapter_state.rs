//! What adapters keep from one client to the next, by key.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use crate::destination::{Destination, Key};

/// What one adapter keeps for one key: its bench of used connections above all.
pub trait Room: Any {
    /// An empty one.
    fn open(to: &Destination) -> Self
    where
        Self: Sized;

    /// Its used connections; `None`: it keeps none.
    fn idlers(&self) -> Option<&dyn Idlers>;
}

/// Used connections that wait for their next client, whatever they speak.
pub trait Idlers {
    /// Since when the one waits that waits longest.
    fn oldest(&self) -> Option<Instant>;

    /// How many wait.
    fn idle(&self) -> usize;

    /// Closes the one that waits longest.
    fn close_oldest(&self);

    /// Closes what is idle now, and later what is given back.
    fn shut(&self);
}

/// The rooms of all adapters, on one thread.
#[derive(Default)]
pub struct Rooms {
    rooms: RefCell<BTreeMap<(Key, TypeId), Rc<dyn Room>>>,
    memories: RefCell<BTreeMap<(Key, TypeId), Rc<dyn Any>>>,
    /// Whether rooms are shut from the beginning.
    shut: Cell<bool>,
}

/// Keys of which something is remembered while no instance has them.
const REMEMBERED: usize = 1_024;

impl Rooms {
    /// The adapter's room for a destination, made at its first use.
    pub fn of<R: Room>(&self, to: &Destination) -> Rc<R> {
        let open = || {
            let room = R::open(to);
            if self.shut.get() {
                room.idlers().inspect(|idlers| idlers.shut());
            }
            Rc::new(room) as Rc<dyn Room>
        };
        let mut rooms = self.rooms.borrow_mut();
        let room = rooms.entry((to.key.clone(), TypeId::of::<R>())).or_insert_with(open).clone();
        (room as Rc<dyn Any>).downcast().expect("the entry's key names its type")
    }

    /// What is known of how a destination is used. It outlives the room, for a function that sleeps and is called again, but not its settings.
    pub fn memory<M: Default + 'static>(&self, to: &Destination) -> Rc<M> {
        let mut memories = self.memories.borrow_mut();
        let at = (to.key.clone(), TypeId::of::<M>());
        if !memories.contains_key(&at) {
            let same = |key: &Key| Key { epoch: to.key.epoch, ..key.clone() } == to.key;
            let full = memories.len() >= REMEMBERED;
            memories.retain(|(key, _), _| !full && !same(key));
        }
        let memory = memories.entry(at).or_insert_with(|| Rc::new(M::default())).clone();
        memory.downcast().expect("the entry's key names its type")
    }

    /// Closes the connection below the same ceiling that has been idle longest, whoever's it was: somebody whom it cannot serve waits below the ceiling. Whether
    /// there was one.
    pub fn reclaim(&self, beside: &Key) -> bool {
        let rooms = self.rooms.borrow();
        let ours = rooms.iter().filter(|((key, _), _)| key.is_beside(beside));
        let idlers = ours.filter_map(|(_, room)| room.idlers());
        let oldest = idlers.filter_map(|idlers| Some((idlers.oldest()?, idlers))).min_by_key(|(since, _)| *since);
        oldest.inspect(|(_, idlers)| idlers.close_oldest()).is_some()
    }

    /// How many used connections of a key wait for their next client.
    pub fn idle(&self, key: &Key) -> usize {
        self.of_key(key).iter().filter_map(|room| Some(room.idlers()?.idle())).sum()
    }

    /// Since when the one waits that waits longest.
    pub fn oldest(&self, key: &Key) -> Option<Instant> {
        self.of_key(key).iter().filter_map(|room| room.idlers()?.oldest()).min()
    }

    fn of_key(&self, key: &Key) -> Vec<Rc<dyn Room>> {
        let rooms = self.rooms.borrow();
        let own = rooms.iter().filter(|((other, _), _)| other == key).map(|(_, room)| Rc::clone(room));
        own.collect()
    }

    /// Closes what is idle in all of them, and later what is given back: nothing is kept any more.
    pub fn shut(&self) {
        self.shut.set(true);
        self.rooms.borrow().values().filter_map(|room| room.idlers()).for_each(|idlers| idlers.shut());
    }

    /// Ends a key's rooms: its policy has changed, or its function is gone.
    pub fn forget(&self, key: &Key) {
        self.rooms.borrow_mut().retain(|(other, _), room| {
            let stays = other != key;
            if !stays {
                room.idlers().inspect(|idlers| idlers.shut());
            }
            stays
        });
    }
}

impl std::fmt::Debug for Rooms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.rooms.borrow().keys().map(|(key, _)| key)).finish()
    }
}
