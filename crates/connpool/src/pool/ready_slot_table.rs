//! Table of the ready slots of all keys, with the sockets that are in them.

use std::collections::HashMap;

use crate::ready_slot::ReadySlot;
use crate::state::{KeyId, SocketId};

/// Ready slots of all keys.
#[derive(Debug, Default)]
pub(super) struct ReadySlotTable {
    pub(super) by_key: HashMap<KeyId, ReadySlot>,
    /// Keys whose slot may have room: it is empty, or something has changed.
    pub(super) keys_to_fill: Vec<KeyId>,
    /// Sockets that are in a slot, or were taken from it without a report yet.
    pub(super) placed: HashMap<SocketId, KeyId>,
}

/// Outcome of taking a socket back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeBackResult {
    /// The pool has it.
    Recovered,
    /// A supervisor has it.
    AlreadyTaken,
}

impl ReadySlotTable {
    /// Records that a socket has left its slot, which then has room.
    pub(super) fn remove_socket(&mut self, socket: SocketId) {
        if let Some(key) = self.placed.remove(&socket) {
            self.mark_fillable(key);
        }
    }

    /// Marks the slot of a key, if it has one.
    pub(super) fn mark_fillable(&mut self, key: KeyId) {
        // Slots are created on demand: keys without supervisors have none.
        if self.by_key.contains_key(&key) && !self.keys_to_fill.contains(&key) {
            self.keys_to_fill.push(key);
        }
    }
}
