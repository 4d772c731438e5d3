//! Where a few warm sockets lie ready, for whoever of a destination's clerks comes first: asking the pool's thread for one would cost two wake-ups from
//! core to core, more than all else that a swap takes. There are several, so that who took one need not say so at once: that thread's work would come
//! between a request and its answer.
//!
//! What lies here is a duplicate: the connection stays the keeper's, who lifts it when it has another use for it. Lifting and taking exclude each other.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pool::is_quiet;
use crate::state::SocketId;

/// So many lie on one at the most: as many connections as begin before anybody is told of the first.
pub const MAX_READY_SOCKETS: usize = 4;

/// See the module. Clones are the same tray.
#[derive(Debug, Clone, Default)]
pub struct ReadySlot(Arc<Mutex<Vec<(SocketId, OwnedFd)>>>);

impl ReadySlot {
    /// Lays a connection here, which is the first one to be taken.
    pub fn put(&self, socket: SocketId, duplicate: OwnedFd) {
        self.lock_sockets().push((socket, duplicate));
    }

    /// Takes away what lies here. Whether it was still this connection: if not, a clerk has it, and says so soon.
    pub fn take_back(&self, socket: SocketId) -> bool {
        let mut lying = self.lock_sockets();
        let at = lying.iter().position(|(lies, _)| *lies == socket);
        at.map(|at| lying.remove(at)).is_some()
    }

    /// The newest that is healthy at this moment: the keeper hears of those that are not, and closes them.
    pub fn take(&self) -> Option<(SocketId, OwnedFd)> {
        let mut lying = self.lock_sockets();
        let at = lying.iter().rposition(|(_, socket)| is_quiet(socket))?;
        Some(lying.remove(at))
    }

    /// Returns true if no socket is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of ready sockets.
    pub fn len(&self) -> usize {
        self.lock_sockets().len()
    }

    /// Held for a few system calls at the most, by the node's own threads alone. Nothing in there can be left half done.
    fn lock_sockets(&self) -> MutexGuard<'_, Vec<(SocketId, OwnedFd)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_socket_is_taken_once_and_only_while_it_is_quiet() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (tray, [one, other]) = (ReadySlot::default(), [1, 2].map(SocketId));
        let lay = |socket| {
            let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            tray.put(socket, client.into());
            server.accept().unwrap().0
        };
        let _quiet = lay(one);
        assert!(!tray.take_back(other), "it is another one");
        assert_eq!(tray.take().unwrap().0, one);
        assert!(tray.take().is_none() && !tray.take_back(one));
        let mut loud = lay(other);
        loud.write_all(b"!").unwrap();
        let heard = |tray: &ReadySlot| {
            tray.lock_sockets()
                .iter()
                .any(|(_, socket)| !is_quiet(socket))
        };
        while !heard(&tray) {
            std::thread::yield_now();
        }
        assert!(tray.take().is_none(), "it has something to read");
        assert!(tray.len() == 1 && tray.take_back(other) && tray.is_empty());
    }

    #[test]
    fn the_newest_that_is_quiet_comes_first() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let tray = ReadySlot::default();
        let mut peers: Vec<_> = [1, 2, 3]
            .map(SocketId)
            .map(|socket| {
                tray.put(
                    socket,
                    TcpStream::connect(server.local_addr().unwrap())
                        .unwrap()
                        .into(),
                );
                server.accept().unwrap().0
            })
            .into();
        peers[2].write_all(b"!").unwrap();
        while is_quiet(&tray.lock_sockets()[2].1) {
            std::thread::yield_now();
        }
        assert_eq!(tray.take().map(|(socket, _)| socket), Some(SocketId(2)));
        assert!(tray.take_back(SocketId(3)) && !tray.take_back(SocketId(2)));
        assert_eq!(tray.take().map(|(socket, _)| socket), Some(SocketId(1)));
    }
}
