//! Accepts TCP connections up to the limit of a port and the share of each source.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nearpath_daemon::drain::DrainWatch;
use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::{Eip, InnerListener, VirtualAddress};
use rustix::net::{Shutdown, SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::sync::mpsc::UnboundedReceiver;

use super::accept_backoff::AcceptBackoff;
use super::connection::AcceptedConnection;
use super::connection_limit::{ConnectionLimit, ConnectionRoom};
use super::{ListenContext, ListenPort};

/// Instances that find room for their connections on a thread, however many others open.
const MIN_INNER_SOURCES: usize = 8;

/// Connections that are accepted in one turn of the thread. Their requests are read in it, and the events of
/// others wait: some 20 µs for each. An estimate, not measured.
const MAX_ACCEPTS_PER_TURN: u32 = 32;

/// Accepts connections of one kind of callers.
#[derive(Clone)]
pub(super) struct Acceptor {
    context: Rc<ListenContext>,
    port: Rc<ListenPort>,
    limit: ConnectionLimit,
    /// Instance whose own listener this is; `None`: the callers have the addresses that they come
    /// from.
    caller: Option<Eip>,
}

/// Serves the gateway's listeners inside instances, as long as the node sends any. They have one limit
/// of connections, as large as that of the port for instances.
pub(super) async fn serve_inner_listeners(
    context: Rc<ListenContext>,
    port: Rc<ListenPort>,
    mut listeners: UnboundedReceiver<InnerListener>,
) {
    let acceptor = Acceptor {
        limit: ConnectionLimit::with_sources(port.max_connections, MIN_INNER_SOURCES),
        ..Acceptor::new(context, port)
    };
    while let Some(InnerListener { socket, caller }) = listeners.recv().await {
        let acceptor = Acceptor {
            caller: Some(caller),
            ..acceptor.clone()
        };
        tokio::task::spawn_local(acceptor.accept_inner_connections(socket));
    }
}

impl Acceptor {
    pub(super) fn new(context: Rc<ListenContext>, port: Rc<ListenPort>) -> Self {
        Self {
            limit: ConnectionLimit::new(port.max_connections),
            context,
            port,
            caller: None,
        }
    }

    /// Accepts an instance's calls until it ends. The drain does not end that: requests that it waits
    /// for may call others.
    async fn accept_inner_connections(self, socket: TcpListener) {
        let nonblocking = socket.set_nonblocking(true);
        let watched = nonblocking.and_then(|()| watch_readiness(socket));
        match watched.map(ShutDownOnDrop) {
            Ok(socket) => self.accept_until_ended(&socket.0).await,
            Err(error) => {
                let caller = self.caller.map(|eip| eip.0);
                tracing::error!(?caller, %error, "a listener inside an instance cannot be served");
            }
        }
    }

    /// Accepts connections until the drain begins, or until another process accepts them. Above the limit of the port, a few connections
    /// serve the administrator, and further ones wait in the kernel's backlog. Connections above the
    /// share of their source are closed.
    pub(super) async fn accept_connections(
        self,
        socket: TcpListener,
        handed_over: Option<DrainWatch>,
    ) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let socket = watch_readiness(socket)?;
        let drain = self.port.drain.clone();
        tokio::select! {
            () = self.accept_until_ended(&socket) => {}
            () = drain.signaled() => {}
            () = wait_handed_over(handed_over) => {}
        }
        Ok(())
    }

    /// Ends when an instance's own listener was shut down.
    async fn accept_until_ended(&self, socket: &SocketReadiness) {
        let (mut backoff, mut log_lines) = (AcceptBackoff::default(), LogLimiter::default());
        let totals = &self.context.worker.totals;
        let mut accepted = 0_u32;
        loop {
            let _ = socket.readable().await; // the accept has the error
            // Acquired before the accept, so that an accepted connection is always served at once.
            let room = self.limit.wait_for_room().await;
            match accept_one(socket) {
                Ok((socket, addr)) => {
                    backoff.reset();
                    totals.connections.fetch_add(1, Ordering::Relaxed);
                    self.admit_and_serve(room, socket, addr);
                    accepted = accepted.wrapping_add(1);
                    if accepted.is_multiple_of(MAX_ACCEPTS_PER_TURN) {
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if self.has_ended(&error) => return,
                Err(error) => {
                    drop(room); // others may have it during the pause
                    // Out of file descriptors, the socket stays readable: without a pause this loop
                    // would spin.
                    let pause = backoff.next_delay();
                    totals.accept_errors.fetch_add(1, Ordering::Relaxed);
                    if let Some(suppressed) = log_lines.take_due(error.kind(), Instant::now()) {
                        tracing::warn!(%error, ?pause, suppressed, "accept failed, pausing");
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn admit_and_serve(&self, room: ConnectionRoom, socket: TcpStream, addr: SocketAddr) {
        let worker = &self.context.worker;
        let called_address = self
            .caller
            .and_then(|_| VirtualAddress::of_source(addr.ip()));
        let addr = self.caller.map_or(addr, |eip| (eip.0, addr.port()).into());
        let Some(permit) = self.limit.admit_source(room, addr.ip()) else {
            let refused = &worker.totals.connections_refused;
            refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (context, port) = (self.context.clone(), self.port.clone());
        let accepted = AcceptedConnection::register(context, port, (addr, called_address), permit);
        accepted.serve(socket);
    }

    /// Returns whether an instance's own listener was shut down (EINVAL, accept(2)).
    fn has_ended(&self, error: &io::Error) -> bool {
        self.caller.is_some() && error.kind() == io::ErrorKind::InvalidInput
    }
}

/// Waits until another process accepts the port's connections; for most ports forever.
async fn wait_handed_over(handed_over: Option<DrainWatch>) {
    match handed_over {
        // Dropped at the end: the trigger waits until this process accepts nothing any more.
        Some(handed_over) => handed_over.signaled().await,
        None => std::future::pending().await,
    }
}

/// tokio's listener registers every connection with epoll on accept. Its stream waits for
/// readiness of any socket and leaves the system call to the caller, which is all that is needed
/// here.
type SocketReadiness = tokio::net::TcpStream;

/// An instance's own listener. The node has another descriptor of it, so its end is more than a close:
/// later connections would wait for an accept.
struct ShutDownOnDrop(SocketReadiness);

impl Drop for ShutDownOnDrop {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Read); // it may have ended already
    }
}

fn watch_readiness(socket: TcpListener) -> io::Result<SocketReadiness> {
    SocketReadiness::from_std(TcpStream::from(OwnedFd::from(socket)))
}

/// Accepts a waiting connection, non-blocking and not registered with epoll; see
/// [`super::client_socket`].
fn accept_one(socket: &SocketReadiness) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (accepted, addr) =
        socket.try_io(Interest::READABLE, || Ok(acceptfrom_with(socket, flags)?))?;
    let addr = addr
        .and_then(|addr| SocketAddr::try_from(addr).ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok((accepted.into(), addr))
}
