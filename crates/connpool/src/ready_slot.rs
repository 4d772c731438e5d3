//! Warm sockets that a destination's connect supervisors take without asking the pool's thread.
//!
//! A request to that thread costs two cross-core wake-ups, more than the rest of a handover. A slot
//! holds several sockets, so that a supervisor can report later: the pool's work would otherwise
//! run between a request and its answer.
//!
//! A slot holds duplicates; the connection stays with the pool, which takes it back for other uses.
//! Taking and taking back exclude each other.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pool::is_quiet;
use crate::state::SocketId;

/// Maximum number of sockets in a slot: connections that may start before the first report (ADR
/// 30).
pub const MAX_READY_SOCKETS: usize = 4;

/// Ready sockets of one destination. Clones share the slot.
#[derive(Debug, Clone, Default)]
pub struct ReadySlot(Arc<Mutex<Vec<(SocketId, OwnedFd)>>>);

impl ReadySlot {
    /// Adds a socket, which becomes the first one to be taken.
    pub fn put(&self, socket: SocketId, duplicate: OwnedFd) {
        self.lock_sockets().push((socket, duplicate));
    }

    /// Removes a socket. Returns false if a supervisor has taken it and will report soon.
    pub fn take_back(&self, socket: SocketId) -> bool {
        let mut sockets = self.lock_sockets();
        let index = sockets.iter().position(|(id, _)| *id == socket);
        index.map(|index| sockets.remove(index)).is_some()
    }

    /// Takes the newest healthy socket. The pool notices the others itself and closes them.
    pub fn take(&self) -> Option<(SocketId, OwnedFd)> {
        let mut sockets = self.lock_sockets();
        // The newest socket is the least likely to have been closed by its server.
        let index = sockets.iter().rposition(|(_, socket)| is_quiet(socket))?;
        Some(sockets.remove(index))
    }

    /// Returns true if no socket is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of ready sockets.
    pub fn len(&self) -> usize {
        self.lock_sockets().len()
    }

    /// Locks the list. The lock is held for a few system calls, by threads of the node only. Every
    /// change is a single step, so a poisoned lock is safe to use.
    fn lock_sockets(&self) -> MutexGuard<'_, Vec<(SocketId, OwnedFd)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testkit::eventually_blocking;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_socket_is_taken_once_and_only_while_it_is_quiet() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (slot, [one, other]) = (ReadySlot::default(), [1, 2].map(SocketId));
        let put = |socket| {
            let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            slot.put(socket, client.into());
            server.accept().unwrap().0
        };
        let _quiet = put(one);
        assert!(!slot.take_back(other), "it is another one");
        assert_eq!(slot.take().unwrap().0, one);
        assert!(slot.take().is_none() && !slot.take_back(one));
        let mut noisy = put(other);
        noisy.write_all(b"!").unwrap();
        let has_bytes = |slot: &ReadySlot| {
            slot.lock_sockets()
                .iter()
                .any(|(_, socket)| !is_quiet(socket))
        };
        eventually_blocking("the bytes arrive", || has_bytes(&slot));
        assert!(slot.take().is_none(), "it has something to read");
        assert!(slot.len() == 1 && slot.take_back(other) && slot.is_empty());
    }

    #[test]
    fn the_newest_that_is_quiet_comes_first() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let slot = ReadySlot::default();
        let mut peers: Vec<_> = [1, 2, 3]
            .map(SocketId)
            .map(|socket| {
                slot.put(
                    socket,
                    TcpStream::connect(server.local_addr().unwrap())
                        .unwrap()
                        .into(),
                );
                server.accept().unwrap().0
            })
            .into();
        peers[2].write_all(b"!").unwrap();
        eventually_blocking("the byte arrives", || !is_quiet(&slot.lock_sockets()[2].1));
        assert_eq!(slot.take().map(|(socket, _)| socket), Some(SocketId(2)));
        assert!(slot.take_back(SocketId(3)) && !slot.take_back(SocketId(2)));
        assert_eq!(slot.take().map(|(socket, _)| socket), Some(SocketId(1)));
    }
}
