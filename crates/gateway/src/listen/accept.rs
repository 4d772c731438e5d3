//! Takes connections from the kernel, as many as there is room for.

use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::Semaphore;

use super::Port;
use super::backoff::Backoff;
use super::connection::serve_connection;
use crate::lane::Lane;

/// Accepts until the drain begins. Above its number of connections the port leaves newcomers in the kernel's backlog.
pub(super) async fn accept(lane: Rc<Lane>, port: Rc<Port>, socket: TcpListener) -> std::io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = tokio::net::TcpListener::from_std(socket)?;
    let drain = port.drain.clone();
    tokio::select! {
        () = accept_all(&lane, &port, &socket) => {}
        () = drain.signaled() => {}
    }
    Ok(())
}

async fn accept_all(lane: &Rc<Lane>, port: &Rc<Port>, socket: &tokio::net::TcpListener) {
    let room = Arc::new(Semaphore::new(port.connections));
    let mut backoff = Backoff::default();
    loop {
        let place = room.clone().acquire_owned().await.expect("this semaphore is never closed");
        match socket.accept().await {
            Ok((stream, addr)) => {
                backoff.reset();
                lane.totals.connections.fetch_add(1, Ordering::Relaxed);
                lane.spawn(serve_connection(lane.clone(), port.clone(), stream, addr, place));
            }
            Err(error) => {
                let pause = backoff.next();
                lane.totals.accept_errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, ?pause, "cannot accept a connection; pausing");
                tokio::time::sleep(pause).await;
            }
        }
    }
}
