//! Takes connections from the kernel, as many as there is room for.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::sync::Semaphore;

use super::accept_backoff::Backoff;
use super::connection::serve_connection;
use super::{ListenContext, Port};

/// Accepts until the drain begins. Above its number of connections the port leaves newcomers in the kernel's backlog.
pub(super) async fn accept(context: Rc<ListenContext>, port: Rc<Port>, socket: TcpListener) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = readiness(socket)?;
    let drain = port.drain.clone();
    tokio::select! {
        () = accept_all(&context, &port, &socket) => {}
        () = drain.signaled() => {}
    }
    Ok(())
}

async fn accept_all(context: &Rc<ListenContext>, port: &Rc<Port>, socket: &Readiness) {
    let room = Arc::new(Semaphore::new(port.connections));
    let mut backoff = Backoff::default();
    loop {
        let place = room.clone().acquire_owned().await.expect("this semaphore is never closed");
        match next(socket).await {
            Ok((socket, addr)) => {
                backoff.reset();
                context.worker.totals.connections.fetch_add(1, Ordering::Relaxed);
                context.worker.spawn(serve_connection(context.clone(), port.clone(), socket, addr, place));
            }
            Err(error) => {
                let pause = backoff.next();
                context.worker.totals.accept_errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, ?pause, "cannot accept a connection; pausing");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// tokio's own listener puts every connection into epoll as it accepts it. Its stream waits for readiness of any socket, and
/// leaves the call to be made to whoever asks: that is all that is wanted of it here.
type Readiness = tokio::net::TcpStream;

fn readiness(socket: TcpListener) -> io::Result<Readiness> {
    Readiness::from_std(TcpStream::from(OwnedFd::from(socket)))
}

/// The next connection, non-blocking and not in this thread's epoll: it joins when it must (see [`super::client_socket`]).
async fn next(socket: &Readiness) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (accepted, addr) = socket.async_io(Interest::READABLE, || Ok(acceptfrom_with(socket, flags)?)).await?;
    let addr = addr.and_then(|addr| SocketAddr::try_from(addr).ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((accepted.into(), addr))
}
