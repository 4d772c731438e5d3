//! Where one warm socket lies ready, for whoever of a destination's clerks comes first: asking the pool's thread for it would cost two wake-ups from core
//! to core, more than all else that a swap takes.
//!
//! What lies here is a duplicate: the connection stays the keeper's, who lifts it when it has another use for it. Lifting and taking exclude each other.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::keeper::is_quiet;
use crate::stock::SocketId;

/// See the module. Clones are the same tray.
#[derive(Debug, Clone, Default)]
pub struct Tray(Arc<Mutex<Option<(SocketId, OwnedFd)>>>);

impl Tray {
    /// Lays a connection here, which takes the place of one that lies here already.
    pub(crate) fn lay(&self, socket: SocketId, duplicate: OwnedFd) {
        *self.lock() = Some((socket, duplicate));
    }

    /// Takes away what lies here. Whether it was still this connection: if not, a clerk has it, and says so soon.
    pub(crate) fn lift(&self, socket: SocketId) -> bool {
        self.lock().take_if(|(lies, _)| *lies == socket).is_some()
    }

    /// What lies here, if it is healthy at this moment: the keeper hears of one that is not, and closes it.
    pub(crate) fn take(&self) -> Option<(SocketId, OwnedFd)> {
        self.lock().take_if(|(_, socket)| is_quiet(socket))
    }

    /// Held for a few system calls at the most, by the node's own threads alone. Nothing in there can be left half done.
    fn lock(&self) -> MutexGuard<'_, Option<(SocketId, OwnedFd)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn one_is_taken_once_and_only_while_it_is_quiet() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (tray, [one, other]) = (Tray::default(), [1, 2].map(SocketId));
        let lay = |socket| {
            let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            tray.lay(socket, client.into());
            server.accept().unwrap().0
        };
        let _quiet = lay(one);
        assert!(!tray.lift(other), "it is another one");
        assert_eq!(tray.take().unwrap().0, one);
        assert!(tray.take().is_none() && !tray.lift(one));
        let mut loud = lay(other);
        loud.write_all(b"!").unwrap();
        let heard = |tray: &Tray| tray.lock().as_ref().is_some_and(|(_, socket)| !is_quiet(socket));
        while !heard(&tray) {
            std::thread::yield_now();
        }
        assert!(tray.take().is_none(), "it has something to read");
        assert!(tray.lift(other));
    }
}
