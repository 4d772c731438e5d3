//! Sockets that were given away, until the kernel says that they are closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nearpath_kernel::sockets::{CloseMonitor, ClosedSocket, SockDiag, SocketIdentity};

use super::warm_socket::Warm;
use super::watch;
use nearpath_connpool::pool::Gone;

/// All of one node: sockets of the namespace that this was made in.
pub struct Given {
    /// By the kernel's cookie.
    open: RefCell<HashMap<u64, (SocketIdentity, Gone)>>,
    diag: SockDiag,
}

impl Given {
    /// Starts to listen to the kernel, on the calling thread's runtime and for its namespace.
    ///
    /// # Errors
    /// When the kernel tells nobody about sockets (`CONFIG_INET_DIAG`).
    pub fn start() -> io::Result<Rc<Self>> {
        let ends = watch(CloseMonitor::open()?)?;
        let given = Rc::new(Self { open: RefCell::default(), diag: SockDiag::open()? });
        let watched = Rc::downgrade(&given);
        tokio::task::spawn_local(async move {
            while let Ok(mut ready) = ends.readable().await {
                let Some(given) = watched.upgrade() else { return };
                match given.hear(ends.get_ref()) {
                    Ok(()) => ready.clear_ready(),
                    Err(error) => tracing::error!(%error, "the kernel no longer tells which sockets are closed"),
                }
            }
        });
        Ok(given)
    }

    /// Counts a socket as open until the kernel has freed it, from before it is given away.
    pub(super) fn note(&self, warm: Warm) -> OwnedFd {
        let identity = warm.identity();
        let (socket, gone) = warm.into_parts();
        self.open.borrow_mut().insert(identity.cookie(), (identity, gone));
        socket
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open.borrow().len()
    }

    fn hear(&self, ends: &CloseMonitor) -> io::Result<()> {
        loop {
            match ends.next_closed() {
                Ok(Some(ended)) => self.end(&ended),
                Ok(None) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(NO_BUFFER) => self.count_anew(),
                Err(error) => return Err(error),
            }
        }
    }

    fn end(&self, ClosedSocket { cookie, flow_info: flow }: &ClosedSocket) {
        let gone = self.open.borrow_mut().remove(cookie);
        if let Some((_, mut gone)) = gone {
            flow.as_ref().inspect(|flow| gone.saw(flow));
        }
    }

    /// The kernel had more to tell than it could: each is asked for.
    fn count_anew(&self) {
        self.open.borrow_mut().retain(|_, (identity, _)| self.diag.is_open(identity).unwrap_or(true));
    }
}

const NO_BUFFER: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::net::{TcpListener, TcpStream};

    fn given(server: &TcpListener, closed: &Rc<Cell<u32>>) -> (Warm, TcpStream, TcpStream) {
        let socket = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (held, peer, closed) = (socket.try_clone().unwrap(), server.accept().unwrap().0, closed.clone());
        (Warm::new(socket.into(), Gone::then(move || closed.set(closed.get() + 1))).unwrap(), held, peer)
    }

    #[tokio::test(flavor = "local")]
    async fn a_place_is_free_when_the_last_holder_has_closed() {
        let (server, closed) = (TcpListener::bind("127.0.0.1:0").unwrap(), Rc::new(Cell::new(0)));
        let all = Given::start().unwrap();
        let (warm, held, peer) = given(&server, &closed);
        let (other, still_held, _peer) = given(&server, &closed);
        drop((all.note(warm), all.note(other)));
        assert_eq!((all.open(), closed.get()), (2, 0));
        drop((held, peer));
        while closed.get() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!((all.open(), closed.get()), (1, 1));
        all.count_anew();
        assert_eq!(all.open(), 1);
        drop(still_held);
    }
}
