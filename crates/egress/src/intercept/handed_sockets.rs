//! Sockets that were given away, until the kernel says that they are closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nearpath_kernel::sockets::{CloseMonitor, ClosedSocket, SockDiag, SocketIdentity};

use super::warm_socket::WarmSocket;
use super::watch_readable;
use nearpath_connpool::pool::LeaseGuard;

/// All of one node: sockets of the namespace that this was made in.
pub struct HandedSockets {
    /// By the kernel's cookie.
    open: RefCell<HashMap<u64, (SocketIdentity, LeaseGuard)>>,
    diag: SockDiag,
}

impl HandedSockets {
    /// Starts to listen to the kernel, on the calling thread's runtime and for its namespace.
    ///
    /// # Errors
    /// When the kernel tells nobody about sockets (`CONFIG_INET_DIAG`).
    pub fn start() -> io::Result<Rc<Self>> {
        let ends = watch_readable(CloseMonitor::open()?)?;
        let given = Rc::new(Self {
            open: RefCell::default(),
            diag: SockDiag::open()?,
        });
        let watched = Rc::downgrade(&given);
        tokio::task::spawn_local(async move {
            while let Ok(mut ready) = ends.readable().await {
                let Some(given) = watched.upgrade() else {
                    return;
                };
                match given.process_closed(ends.get_ref()) {
                    Ok(()) => ready.clear_ready(),
                    Err(error) => {
                        tracing::error!(%error, "the kernel no longer tells which sockets are closed")
                    }
                }
            }
        });
        Ok(given)
    }

    /// Counts a socket as open until the kernel has freed it, from before it is given away.
    pub(super) fn track_socket(&self, warm: WarmSocket) -> OwnedFd {
        let identity = warm.identity();
        let (socket, gone) = warm.into_parts();
        self.open
            .borrow_mut()
            .insert(identity.cookie(), (identity, gone));
        socket
    }

    /// How many are open.
    pub fn open_count(&self) -> usize {
        self.open.borrow().len()
    }

    fn process_closed(&self, ends: &CloseMonitor) -> io::Result<()> {
        loop {
            match ends.next_closed() {
                Ok(Some(ended)) => self.remove_closed(&ended),
                Ok(None) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => self.recount_open(),
                Err(error) => return Err(error),
            }
        }
    }

    fn remove_closed(
        &self,
        ClosedSocket {
            cookie,
            flow_info: flow,
        }: &ClosedSocket,
    ) {
        let gone = self.open.borrow_mut().remove(cookie);
        if let Some((_, mut gone)) = gone {
            flow.as_ref().inspect(|flow| gone.observe_flow(flow));
        }
    }

    /// The kernel had more to tell than it could: each is asked for.
    fn recount_open(&self) {
        self.open
            .borrow_mut()
            .retain(|_, (identity, _)| self.diag.is_open(identity).unwrap_or(true));
    }
}

const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::net::{TcpListener, TcpStream};

    fn connected_warm_socket(
        server: &TcpListener,
        closed: &Rc<Cell<u32>>,
    ) -> (WarmSocket, TcpStream, TcpStream) {
        let socket = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (held, peer, closed) = (
            socket.try_clone().unwrap(),
            server.accept().unwrap().0,
            closed.clone(),
        );
        (
            WarmSocket::new(
                socket.into(),
                LeaseGuard::on_drop(move || closed.set(closed.get() + 1)),
            )
            .unwrap(),
            held,
            peer,
        )
    }

    #[tokio::test(flavor = "local")]
    async fn a_slot_is_freed_when_the_last_holder_has_closed() {
        let (server, closed) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            Rc::new(Cell::new(0)),
        );
        let all = HandedSockets::start().unwrap();
        let (warm, held, peer) = connected_warm_socket(&server, &closed);
        let (other, still_held, _peer) = connected_warm_socket(&server, &closed);
        drop((all.track_socket(warm), all.track_socket(other)));
        assert_eq!((all.open_count(), closed.get()), (2, 0));
        drop((held, peer));
        while closed.get() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!((all.open_count(), closed.get()), (1, 1));
        all.recount_open();
        assert_eq!(all.open_count(), 1);
        drop(still_held);
    }
}
