//! Accepts TCP connections up to the limit of a port and the share of each source.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nearpath_types::log_limiter::LogLimiter;
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;

use super::accept_backoff::AcceptBackoff;
use super::connection::serve_connection;
use super::connection_limit::ConnectionLimit;
use super::{ListenContext, ListenPort};

/// Accepts connections until the drain begins. Above the limit of the port, a few connections serve
/// the administrator, and further ones wait in the kernel's backlog. Connections above the share of their source are closed.
pub(super) async fn accept_connections(
    context: Rc<ListenContext>,
    port: Rc<ListenPort>,
    socket: TcpListener,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = watch_readiness(socket)?;
    let drain = port.drain.clone();
    tokio::select! {
        () = accept_until_dropped(&context, &port, &socket) => {}
        () = drain.signaled() => {}
    }
    Ok(())
}

async fn accept_until_dropped(
    context: &Rc<ListenContext>,
    port: &Rc<ListenPort>,
    socket: &SocketReadiness,
) {
    let limit = ConnectionLimit::new(port.max_connections);
    let (mut backoff, mut log_lines) = (AcceptBackoff::default(), LogLimiter::default());
    loop {
        // Acquired before the accept, so that an accepted connection is always served at once.
        let room = limit.wait_for_room().await;
        match accept_next(socket).await {
            Ok((socket, addr)) => {
                backoff.reset();
                context
                    .worker
                    .totals
                    .connections
                    .fetch_add(1, Ordering::Relaxed);
                let Some(permit) = limit.admit_source(room, addr.ip()) else {
                    context
                        .worker
                        .totals
                        .connections_refused
                        .fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                context.worker.spawn(serve_connection(
                    context.clone(),
                    port.clone(),
                    socket,
                    addr,
                    permit,
                ));
            }
            Err(error) => {
                // Out of file descriptors, the socket stays readable: without a pause this loop
                // would spin.
                let pause = backoff.next_delay();
                context
                    .worker
                    .totals
                    .accept_errors
                    .fetch_add(1, Ordering::Relaxed);
                if let Some(suppressed) = log_lines.take_due(error.kind(), Instant::now()) {
                    tracing::warn!(%error, ?pause, suppressed, "accept failed, pausing");
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// tokio's listener registers every connection with epoll on accept. Its stream waits for
/// readiness of any socket and leaves the system call to the caller, which is all that is needed
/// here.
type SocketReadiness = tokio::net::TcpStream;

fn watch_readiness(socket: TcpListener) -> io::Result<SocketReadiness> {
    SocketReadiness::from_std(TcpStream::from(OwnedFd::from(socket)))
}

/// Accepts the next connection, non-blocking and not registered with epoll; see
/// [`super::client_socket`].
async fn accept_next(socket: &SocketReadiness) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (accepted, addr) = socket
        .async_io(Interest::READABLE, || Ok(acceptfrom_with(socket, flags)?))
        .await?;
    let addr = addr
        .and_then(|addr| SocketAddr::try_from(addr).ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok((accepted.into(), addr))
}
