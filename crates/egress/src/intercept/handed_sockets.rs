//! Sockets that were handed over, until the kernel reports them closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use nearpath_kernel::sockets::{CloseMonitor, ClosedSocket, SockDiag, SocketIdentity};
use nearpath_types::log_limiter::LogLimiter;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::warm_socket::WarmSocket;
use super::watch_readable;
use nearpath_connpool::pool::LeaseGuard;

/// Pause after a failure, which may last: each one costs a query for every open socket.
const MONITOR_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// All handed-over sockets in the network namespace that this was created in.
pub struct HandedSockets {
    /// Open sockets by the kernel's cookie.
    open: RefCell<HashMap<u64, (SocketIdentity, LeaseGuard)>>,
    diag: SockDiag,
    /// Limits the log lines about failures.
    failures: RefCell<LogLimiter<()>>,
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
            failures: RefCell::default(),
        });
        // A weak reference: the task ends with the last user.
        let weak = Rc::downgrade(&sockets);
        tokio::task::spawn_local(watch_closed(weak, monitor, CloseMonitor::next_closed));
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

    /// Handles all events that wait. Some may be lost after an error: `ENOBUFS` says that the
    /// buffer of the netlink socket was full.
    fn process_closed(
        &self,
        mut next_closed: impl FnMut() -> io::Result<Option<ClosedSocket>>,
    ) -> io::Result<()> {
        while let Some(closed) = next_closed()? {
            self.remove_closed(&closed);
        }
        Ok(())
    }

    fn log_failure(&self, error: &io::Error) {
        let due = self.failures.borrow_mut().take_due((), Instant::now());
        if let Some(suppressed) = due {
            tracing::warn!(%error, suppressed, "socket diagnostics: events were lost, handed-over sockets are counted again");
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

    /// Checks every socket after events were lost.
    fn recount_open(&self) {
        // Without an answer the socket counts as open: a late free slot is better than a limit
        // exceeded.
        self.open
            .borrow_mut()
            .retain(|_, (identity, _)| self.diag.is_open(identity).unwrap_or(true));
    }
}

/// Handles events until the last user of `sockets` is gone.
async fn watch_closed<M: AsRawFd>(
    sockets: Weak<HandedSockets>,
    monitor: AsyncFd<M>,
    next_closed: impl Fn(&M) -> io::Result<Option<ClosedSocket>>,
) {
    let mut loses_events = false;
    while let Ok(mut ready) = monitor.readable().await {
        let Some(open) = sockets.upgrade() else {
            return;
        };
        match open.process_closed(|| next_closed(monitor.get_ref())) {
            Ok(()) => {
                // Until all events are read, the kernel drops further ones, and does not tell again
                // (`netlink_overrun`). A socket may have closed since the last count.
                if std::mem::take(&mut loses_events) {
                    open.recount_open();
                }
                ready.clear_ready();
            }
            // Readiness stays: events may wait, of which the kernel does not tell again.
            Err(error) => {
                loses_events = true;
                open.log_failure(&error);
                drop(open);
                sleep(MONITOR_RETRY_INTERVAL).await;
                sockets.upgrade().inspect(|open| open.recount_open());
            }
        }
    }
}

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

    /// Sockets without a monitor of the kernel.
    fn unwatched_sockets() -> Rc<HandedSockets> {
        Rc::new(HandedSockets {
            open: RefCell::default(),
            diag: SockDiag::open().unwrap(),
            failures: RefCell::default(),
        })
    }

    /// A monitor that is always readable, and fails as with a full buffer.
    fn failing_monitor() -> AsyncFd<std::net::UdpSocket> {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        watch_readable(socket).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_failure_is_retried_with_pauses() {
        let (all, reads) = (unwatched_sockets(), Cell::new(0_u32));
        let failing = watch_closed(Rc::downgrade(&all), failing_monitor(), |_| {
            reads.set(reads.get() + 1);
            assert!(reads.get() < 1_000, "it spins");
            Err(rustix::io::Errno::NOBUFS.into())
        });
        let ended = tokio::time::timeout(MONITOR_RETRY_INTERVAL * 5, failing).await;
        assert!(ended.is_err(), "the users are not gone");
        assert!((1..=6).contains(&reads.get()), "{} reads", reads.get());
    }

    #[tokio::test]
    async fn sockets_are_counted_again_after_a_failure() {
        let (server, closed) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            Rc::new(Cell::new(0)),
        );
        let all = unwatched_sockets();
        let (warm_socket, copy, peer) = connected_warm_socket(&server, &closed);
        drop((all.track_socket(warm_socket), copy, peer));
        let reads = Cell::new(0_u32);
        let failing = watch_closed(Rc::downgrade(&all), failing_monitor(), |_| {
            reads.set(reads.get() + 1);
            assert!(reads.get() < 10_000, "it spins");
            Err(rustix::io::Errno::IO.into())
        });
        let counted = nearpath_testkit::eventually("the slot is free", async || closed.get() == 1);
        tokio::select! {
            () = failing => unreachable!("the users are not gone"),
            () = counted => assert_eq!(all.open_count(), 0),
        }
    }

    #[tokio::test]
    async fn a_socket_that_closes_before_all_events_are_read_is_counted() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = Rc::new(Cell::new(0));
        let all = unwatched_sockets();
        let (warm_socket, copy, peer) = connected_warm_socket(&server, &closed);
        let holders = Cell::new(Some((all.track_socket(warm_socket), copy, peer)));
        let reads = Cell::new(0_u32);
        let watching = watch_closed(Rc::downgrade(&all), failing_monitor(), |_| {
            reads.set(reads.get() + 1);
            if reads.get() == 1 {
                return Err(rustix::io::Errno::NOBUFS.into());
            }
            drop(holders.take()); // its event finds the buffer full
            Ok(None)
        });
        let counted = nearpath_testkit::eventually("the slot is free", async || closed.get() == 1);
        tokio::select! {
            () = watching => unreachable!("the users are not gone"),
            () = counted => assert_eq!(all.open_count(), 0),
        }
    }
}
