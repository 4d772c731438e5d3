//! Warm connections that lie on a [`Tray`], the newest few of a key: clerks take them without asking, and tell afterwards.
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

use super::Lease;
use super::driver::{Held, Keeper};
use crate::destination::Destination;
use crate::ready_slot::{DEPTH, Tray};
use crate::state::{KeyId, SocketId};

/// All trays.
#[derive(Debug, Default)]
pub(super) struct Trays {
    by_key: HashMap<KeyId, Tray>,
    /// Keys of which more may lie there: nothing does, or something has changed.
    roomy: Vec<KeyId>,
    laid: HashMap<SocketId, KeyId>,
}

/// What was found when something was to be lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifted {
    /// It is the keeper's.
    Ours,
    /// A clerk has it.
    Taken,
}

impl Keeper {
    /// The tray of a destination, which is never bare for long while something is warm.
    pub fn tray(self: &Rc<Self>, to: &Destination) -> Option<Tray> {
        let key = self.id(&to.key)?;
        if let Some(tray) = self.trays.borrow().by_key.get(&key) {
            return Some(tray.clone());
        }
        let tray = Tray::default();
        self.trays.borrow_mut().by_key.insert(key, tray.clone());
        self.trays.borrow_mut().look_at(key);
        self.lay_out();
        Some(tray)
    }

    /// A clerk has taken it. `None`: it was closed meanwhile, as far as the keeper can.
    pub fn taken(self: &Rc<Self>, to: &Destination, socket: SocketId) -> Option<Lease> {
        self.trays.borrow_mut().clear(socket);
        let held = self.sockets.borrow_mut().remove(&socket);
        self.stock.borrow_mut().taken(Instant::now(), socket);
        self.act();
        match held? {
            Held::Warm(stream) | Held::Taken(stream) => Some(self.lease(to, socket, stream)),
            Held::Opening(_) => None,
        }
    }

    /// To be asked before anything is done with a warm connection.
    pub(super) fn lift(&self, socket: SocketId) -> Lifted {
        let mut trays = self.trays.borrow_mut();
        let Some(key) = trays.laid.get(&socket) else { return Lifted::Ours };
        // What lay on the tray of a key that is forgotten was closed before, unless it was taken.
        if trays.by_key.get(key).is_none_or(|tray| !tray.lift(socket)) {
            return Lifted::Taken;
        }
        trays.clear(socket);
        Lifted::Ours
    }

    /// A connection of this key has ended, and has shown what the path bears: what lies ready may be worth a window now.
    pub(super) fn look_over(&self, key: KeyId) {
        let Some(to) = self.declared.borrow().destination(key) else { return };
        let lying = self.trays.borrow().laid.iter().filter(|(_, of)| **of == key).map(|(socket, _)| *socket).collect();
        for socket in Vec::<_>::into_iter(lying) {
            if let Some(Held::Warm(stream)) = self.sockets.borrow().get(&socket)
                && self.would_open(&to, stream)
            {
                self.lift(socket); // it stays warm; whoever wants it asks
            }
        }
    }

    /// A connection has become warm.
    pub(super) fn has_more(&self, socket: SocketId) {
        if let Some(key) = self.stock.borrow().key(socket) {
            self.trays.borrow_mut().look_at(key);
        }
    }

    /// Nobody has this key any more.
    pub(super) fn forget_tray(&self, key: KeyId) {
        let mut trays = self.trays.borrow_mut();
        trays.by_key.remove(&key);
        trays.roomy.retain(|roomy| *roomy != key);
    }

    /// Lays warm connections on every tray that has room: those that would be handed out next.
    pub(super) fn lay_out(self: &Rc<Self>) {
        let roomy = std::mem::take(&mut self.trays.borrow_mut().roomy);
        let still: Vec<_> = roomy.into_iter().filter(|key| self.lay(*key).is_none()).collect();
        self.trays.borrow_mut().roomy.extend(still);
    }

    /// `None`: nothing lies there.
    fn lay(self: &Rc<Self>, key: KeyId) -> Option<()> {
        let to = self.declared.borrow().destination(key)?;
        let tray = self.trays.borrow().by_key.get(&key)?.clone();
        let next = self.next(key, DEPTH.saturating_sub(tray.len()));
        for socket in next.into_iter().rev() {
            let Some(duplicate) = self.duplicate(&to, socket) else { continue };
            self.trays.borrow_mut().laid.insert(socket, key);
            tray.lay(socket, duplicate);
        }
        (!tray.is_empty()).then_some(())
    }

    /// The newest `most` that lie nowhere and were not taken.
    fn next(&self, key: KeyId, most: usize) -> Vec<SocketId> {
        let (stock, trays) = (self.stock.borrow(), self.trays.borrow());
        stock.warm(key).filter(|socket| !trays.laid.contains_key(socket)).take(most).collect()
    }

    fn duplicate(&self, to: &Destination, socket: SocketId) -> Option<OwnedFd> {
        let sockets = self.sockets.borrow();
        let Some(Held::Warm(stream)) = sockets.get(&socket) else { return None };
        // A name may have IPv6 addresses alone, which no IPv4 socket reaches.
        let family = stream.peer_addr().is_ok_and(|peer| peer.is_ipv4() == to.stands.is_ipv4());
        let fits = family && !self.would_open(to, stream);
        fits.then(|| stream.as_fd().try_clone_to_owned().ok())?
    }
}

impl Trays {
    fn clear(&mut self, socket: SocketId) {
        if let Some(key) = self.laid.remove(&socket) {
            self.look_at(key);
        }
    }

    fn look_at(&mut self, key: KeyId) {
        if self.by_key.contains_key(&key) && !self.roomy.contains(&key) {
            self.roomy.push(key);
        }
    }
}
