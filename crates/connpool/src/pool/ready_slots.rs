//! Warm connections that lie on a [`ReadySlot`], the newest few of a key: clerks take them without asking, and tell afterwards.
//!
//! To the stock such a connection is warm like any other, until it hears that it was taken. So whoever wants to do something with a warm connection lifts
//! it from its tray first; where it lies there no more, a clerk has it, and word of that is on its way.
//!
//! A window is opened when a connection is handed out, by this thread alone. So where a path bears more than every connection begins with, nothing is laid
//! out, and clerks ask: what is in bulk does not feel it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use super::ConnectionLease;
use super::driver::{ConnectionPool, PooledSocket};
use crate::destination::EgressDestination;
use crate::ready_slot::{MAX_READY_SOCKETS, ReadySlot};
use crate::state::{KeyId, SocketId};

/// All trays.
#[derive(Debug, Default)]
pub(super) struct ReadySlotTable {
    by_key: HashMap<KeyId, ReadySlot>,
    /// Keys of which more may lie there: nothing does, or something has changed.
    keys_to_fill: Vec<KeyId>,
    placed: HashMap<SocketId, KeyId>,
}

/// What was found when something was to be lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeBackResult {
    /// It is the keeper's.
    Recovered,
    /// A clerk has it.
    AlreadyTaken,
}

impl ConnectionPool {
    /// The tray of a destination, which is never bare for long while something is warm.
    pub fn ready_slot(self: &Rc<Self>, to: &EgressDestination) -> Option<ReadySlot> {
        let key = self.key_id(&to.key)?;
        if let Some(tray) = self.ready_slots.borrow().by_key.get(&key) {
            return Some(tray.clone());
        }
        let tray = ReadySlot::default();
        self.ready_slots
            .borrow_mut()
            .by_key
            .insert(key, tray.clone());
        self.ready_slots.borrow_mut().mark_fillable(key);
        self.fill_ready_slots();
        Some(tray)
    }

    /// A clerk has taken it. `NoConnection`: it was closed meanwhile, as far as the keeper can.
    pub fn confirm_taken(
        self: &Rc<Self>,
        to: &EgressDestination,
        socket: SocketId,
    ) -> Option<ConnectionLease> {
        self.ready_slots.borrow_mut().remove_socket(socket);
        let held = self.sockets.borrow_mut().remove(&socket);
        self.state
            .borrow_mut()
            .confirm_taken(Instant::now(), socket);
        self.apply_and_reschedule();
        match held? {
            PooledSocket::Warm(stream) | PooledSocket::Taken(stream) => {
                Some(self.make_lease(to, socket, stream))
            }
            PooledSocket::Connecting(_) => None,
        }
    }

    /// To be asked before anything is done with a warm connection.
    pub(super) fn take_back(&self, socket: SocketId) -> TakeBackResult {
        let mut trays = self.ready_slots.borrow_mut();
        let Some(key) = trays.placed.get(&socket) else {
            return TakeBackResult::Recovered;
        };
        // What lay on the tray of a key that is forgotten was closed before, unless it was taken.
        if trays
            .by_key
            .get(key)
            .is_none_or(|tray| !tray.take_back(socket))
        {
            return TakeBackResult::AlreadyTaken;
        }
        trays.remove_socket(socket);
        TakeBackResult::Recovered
    }

    /// A connection of this key has ended, and has shown what the path bears: what lies ready may be worth a window now.
    pub(super) fn recheck_ready_sockets(&self, key: KeyId) {
        let Some(to) = self.declared_keys.borrow().destination_of(key) else {
            return;
        };
        let lying = self
            .ready_slots
            .borrow()
            .placed
            .iter()
            .filter(|(_, of)| **of == key)
            .map(|(socket, _)| *socket)
            .collect();
        for socket in Vec::<_>::into_iter(lying) {
            if let Some(PooledSocket::Warm(stream)) = self.sockets.borrow().get(&socket)
                && self.would_raise_cwnd(&to, stream)
            {
                self.take_back(socket); // it stays warm; whoever wants it asks
            }
        }
    }

    /// A connection has become warm.
    pub(super) fn mark_slot_fillable(&self, socket: SocketId) {
        if let Some(key) = self.state.borrow().key_of(socket) {
            self.ready_slots.borrow_mut().mark_fillable(key);
        }
    }

    /// Nobody has this key any more.
    pub(super) fn forget_ready_slot(&self, key: KeyId) {
        let mut trays = self.ready_slots.borrow_mut();
        trays.by_key.remove(&key);
        trays.keys_to_fill.retain(|roomy| *roomy != key);
    }

    /// Lays warm connections on every tray that has room: those that would be handed out next.
    pub(super) fn fill_ready_slots(self: &Rc<Self>) {
        let roomy = std::mem::take(&mut self.ready_slots.borrow_mut().keys_to_fill);
        let still: Vec<_> = roomy
            .into_iter()
            .filter(|key| self.fill_ready_slot(*key).is_none())
            .collect();
        self.ready_slots.borrow_mut().keys_to_fill.extend(still);
    }

    /// `NoConnection`: nothing lies there.
    fn fill_ready_slot(self: &Rc<Self>, key: KeyId) -> Option<()> {
        let to = self.declared_keys.borrow().destination_of(key)?;
        let tray = self.ready_slots.borrow().by_key.get(&key)?.clone();
        let next = self.next_warm_sockets(key, MAX_READY_SOCKETS.saturating_sub(tray.len()));
        for socket in next.into_iter().rev() {
            let Some(duplicate) = self.duplicate_socket(&to, socket) else {
                continue;
            };
            self.ready_slots.borrow_mut().placed.insert(socket, key);
            tray.put(socket, duplicate);
        }
        (!tray.is_empty()).then_some(())
    }

    /// The newest `most` that lie nowhere and were not taken.
    fn next_warm_sockets(&self, key: KeyId, most: usize) -> Vec<SocketId> {
        let (stock, trays) = (self.state.borrow(), self.ready_slots.borrow());
        stock
            .warm_sockets(key)
            .filter(|socket| !trays.placed.contains_key(socket))
            .take(most)
            .collect()
    }

    fn duplicate_socket(&self, to: &EgressDestination, socket: SocketId) -> Option<OwnedFd> {
        let sockets = self.sockets.borrow();
        let Some(PooledSocket::Warm(stream)) = sockets.get(&socket) else {
            return None;
        };
        // A name may have IPv6 addresses alone, which no IPv4 socket reaches.
        let family = stream
            .peer_addr()
            .is_ok_and(|peer| peer.is_ipv4() == to.visible_ip.is_ipv4());
        let fits = family && !self.would_raise_cwnd(to, stream);
        fits.then(|| stream.as_fd().try_clone_to_owned().ok())?
    }
}

impl ReadySlotTable {
    fn remove_socket(&mut self, socket: SocketId) {
        if let Some(key) = self.placed.remove(&socket) {
            self.mark_fillable(key);
        }
    }

    fn mark_fillable(&mut self, key: KeyId) {
        if self.by_key.contains_key(&key) && !self.keys_to_fill.contains(&key) {
            self.keys_to_fill.push(key);
        }
    }
}
