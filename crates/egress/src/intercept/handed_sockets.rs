//! Sockets that were handed over, until the kernel reports them closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nearpath_kernel::sockets::{CloseMonitor, ClosedSocket, SockDiag, SocketIdentity};

use super::warm_socket::WarmSocket;
use super::watch_readable;
use nearpath_connpool::pool::LeaseGuard;

/// All handed-over sockets in the network namespace that this was created in.
pub struct HandedSockets {
    /// Open sockets by the kernel's cookie.
    open: RefCell<HashMap<u64, (SocketIdentity, LeaseGuard)>>,
    diag: SockDiag,
}

impl HandedSockets {
    /// Subscribes to socket events on the calling thread's runtime and in its namespace.
    ///
    /// # Errors
    /// When the kernel lacks socket diagnostics (`CONFIG_INET_DIAG`).
    pub fn start() -> io::Result<Rc<Self>> {
        // Subscribed before the first handover, so that no close is missed.
        let monitor = watch_readable(CloseMonitor::open()?)?;
        let sockets = Rc::new(Self {
            open: RefCell::default(),
            diag: SockDiag::open()?,
        });
        // A weak reference: the task ends with the last user.
        let weak = Rc::downgrade(&sockets);
        tokio::task::spawn_local(async move {
            while let Ok(mut ready) = monitor.readable().await {
                let Some(sockets) = weak.upgrade() else {
                    return;
                };
                match sockets.process_closed(monitor.get_ref()) {
                    Ok(()) => ready.clear_ready(),
                    Err(error) => {
                        tracing::error!(%error, "socket diagnostics failed, slots of handed-over sockets stay in use")
                    }
                }
            }
        });
        Ok(sockets)
    }

    /// Counts a socket as open from before its handover until the kernel has freed it.
    pub(super) fn track_socket(&self, warm_socket: WarmSocket) -> OwnedFd {
        let identity = warm_socket.identity();
        let (socket, guard) = warm_socket.into_parts();
        self.open
            .borrow_mut()
            .insert(identity.cookie(), (identity, guard));
        socket
    }

    /// Returns the number of open sockets.
    pub fn open_count(&self) -> usize {
        self.open.borrow().len()
    }

    fn process_closed(&self, monitor: &CloseMonitor) -> io::Result<()> {
        loop {
            match monitor.next_closed() {
                Ok(Some(closed)) => self.remove_closed(&closed),
                Ok(None) => return Ok(()),
                // The kernel drops events when the buffer of the netlink socket is full.
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
        let guard = self.open.borrow_mut().remove(cookie);
        if let Some((_, mut guard)) = guard {
            // The flow is recorded before the guard frees the slot.
            flow.as_ref().inspect(|flow| guard.observe_flow(flow));
        }
    }

    /// Checks every socket after the kernel dropped events.
    fn recount_open(&self) {
        // Without an answer the socket counts as open: a late free slot is better than a limit
        // exceeded.
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
        let (copy, peer, closed) = (
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
            copy,
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
        let (warm_socket, copy, peer) = connected_warm_socket(&server, &closed);
        let (other, still_held, _peer) = connected_warm_socket(&server, &closed);
        drop((all.track_socket(warm_socket), all.track_socket(other)));
        assert_eq!((all.open_count(), closed.get()), (2, 0));
        drop((copy, peer));
        while closed.get() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!((all.open_count(), closed.get()), (1, 1));
        all.recount_open();
        assert_eq!(all.open_count(), 1);
        drop(still_held);
    }
}
