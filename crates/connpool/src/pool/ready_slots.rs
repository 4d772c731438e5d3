//! Fills the [`ReadySlot`] of each key with its newest warm connections. Supervisors take them
//! without asking and report afterwards.
//!
//! To the state machine such a connection is warm until it is reported as taken. So every use of a
//! warm connection first takes it back from its slot. If it is gone, a supervisor has it, and its
//! report is on the way.
//!
//! Only this thread can set an initial window, when it hands a connection out. So where a path has
//! more capacity than the default window, the slot stays empty and supervisors ask. A bulk transfer
//! does not notice the two wake-ups.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use super::ConnectionLease;
use super::driver::{ConnectionPool, PooledSocket};
use super::ready_slot_table::TakeBackResult;
use crate::destination::EgressDestination;
use crate::ready_slot::{MAX_READY_SOCKETS, ReadySlot};
use crate::state::{KeyId, SocketId};

impl ConnectionPool {
    /// Returns the ready slot of a destination, which is refilled while anything is warm.
    pub fn ready_slot(self: &Rc<Self>, to: &EgressDestination) -> Option<ReadySlot> {
        let key = self.key_id(&to.key)?;
        if let Some(slot) = self.ready_slots.borrow().by_key.get(&key) {
            return Some(slot.clone());
        }
        let slot = ReadySlot::default();
        self.ready_slots
            .borrow_mut()
            .by_key
            .insert(key, slot.clone());
        self.ready_slots.borrow_mut().mark_fillable(key);
        // Filled at once, so that the first connect already finds a socket.
        self.fill_ready_slots();
        Some(slot)
    }

    /// Records that a supervisor has taken a socket. Returns `None` if it was closed meanwhile, as
    /// far as the pool can.
    pub fn confirm_taken(
        self: &Rc<Self>,
        to: &EgressDestination,
        socket: SocketId,
    ) -> Option<ConnectionLease> {
        // Recorded as gone first, so that nothing below tries to take it back.
        self.ready_slots.borrow_mut().remove_socket(socket);
        let socket_state = self.sockets.borrow_mut().remove(&socket);
        self.state
            .borrow_mut()
            .confirm_taken(Instant::now(), socket);
        self.apply_and_reschedule();
        match socket_state? {
            PooledSocket::Warm(stream) | PooledSocket::Taken(stream) => {
                Some(self.make_lease(to, socket, stream))
            }
            PooledSocket::Connecting(_) => None,
        }
    }

    /// Takes a socket back from its slot. Required before any other use of a warm connection.
    pub(super) fn take_back(&self, socket: SocketId) -> TakeBackResult {
        let mut slots = self.ready_slots.borrow_mut();
        let Some(key) = slots.placed.get(&socket) else {
            return TakeBackResult::Recovered;
        };
        // The sockets of a forgotten key were closed before it was forgotten, unless a supervisor
        // had taken them.
        if slots
            .by_key
            .get(key)
            .is_none_or(|slot| !slot.take_back(socket))
        {
            return TakeBackResult::AlreadyTaken;
        }
        slots.remove_socket(socket);
        TakeBackResult::Recovered
    }

    /// Takes ready sockets of a key back whose path would now allow a larger window: a connection
    /// has ended and reported its flow.
    pub(super) fn recheck_ready_sockets(&self, key: KeyId) {
        let Some(to) = self.declared_keys.borrow().destination_of(key) else {
            return;
        };
        // Collected first, because taking a socket back borrows the table again.
        let ready = self
            .ready_slots
            .borrow()
            .placed
            .iter()
            .filter(|(_, of)| **of == key)
            .map(|(socket, _)| *socket)
            .collect();
        for socket in Vec::<_>::into_iter(ready) {
            if let Some(PooledSocket::Warm(stream)) = self.sockets.borrow().get(&socket)
                && self.would_raise_cwnd(&to, stream)
            {
                self.take_back(socket); // the socket stays warm; supervisors ask for it
            }
        }
    }

    /// Marks the slot of a newly warm connection as fillable.
    pub(super) fn mark_slot_fillable(&self, socket: SocketId) {
        if let Some(key) = self.state.borrow().key_of(socket) {
            self.ready_slots.borrow_mut().mark_fillable(key);
        }
    }

    /// Drops the slot of a key without instances.
    pub(super) fn forget_ready_slot(&self, key: KeyId) {
        let mut slots = self.ready_slots.borrow_mut();
        slots.by_key.remove(&key);
        slots.keys_to_fill.retain(|fillable| *fillable != key);
    }

    /// Fills every slot that has room with the connections that would be handed out next.
    pub(super) fn fill_ready_slots(self: &Rc<Self>) {
        // Taken out, because filling a slot borrows the table again.
        let fillable = std::mem::take(&mut self.ready_slots.borrow_mut().keys_to_fill);
        let still: Vec<_> = fillable
            .into_iter()
            .filter(|key| self.fill_ready_slot(*key).is_none())
            .collect();
        self.ready_slots.borrow_mut().keys_to_fill.extend(still);
    }

    /// Fills one slot. Returns `None` if it stays empty.
    fn fill_ready_slot(self: &Rc<Self>, key: KeyId) -> Option<()> {
        let to = self.declared_keys.borrow().destination_of(key)?;
        let slot = self.ready_slots.borrow().by_key.get(&key)?.clone();
        let next = self.next_warm_sockets(key, MAX_READY_SOCKETS.saturating_sub(slot.len()));
        // Oldest first, so that the newest ends up on top and is taken first.
        for socket in next.into_iter().rev() {
            let Some(duplicate) = self.duplicate_socket(&to, socket) else {
                continue;
            };
            // Recorded before it is visible: a supervisor may take it at once.
            self.ready_slots.borrow_mut().placed.insert(socket, key);
            slot.put(socket, duplicate);
        }
        (!slot.is_empty()).then_some(())
    }

    /// Returns the newest warm connections that are in no slot, at most `max`.
    fn next_warm_sockets(&self, key: KeyId, max: usize) -> Vec<SocketId> {
        let (state, slots) = (self.state.borrow(), self.ready_slots.borrow());
        state
            .warm_sockets(key)
            .filter(|socket| !slots.placed.contains_key(socket))
            .take(max)
            .collect()
    }

    fn duplicate_socket(&self, to: &EgressDestination, socket: SocketId) -> Option<OwnedFd> {
        let sockets = self.sockets.borrow();
        let Some(PooledSocket::Warm(stream)) = sockets.get(&socket) else {
            return None;
        };
        // A name may have IPv6 addresses only, which no IPv4 socket reaches.
        let is_same_family = stream
            .peer_addr()
            .is_ok_and(|peer| peer.is_ipv4() == to.visible_ip.is_ipv4());
        let fits = is_same_family && !self.would_raise_cwnd(to, stream);
        fits.then(|| stream.as_fd().try_clone_to_owned().ok())?
    }
}
