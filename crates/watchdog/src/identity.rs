//! Who this instance is, and the ways in that need to know: QUIC and TLS, for callers on other machines.
//!
//! The node says it through the pipe whose number is in `NEARPATH_IDENTITY_FD`: first credentials and the sessions that were minted for
//! it, later whatever of it changes. TLS is spoken on the HTTP port, QUIC on the same number over UDP. A call walks the same
//! way as one over plain HTTP, [`crate::serve::answer`]; limits, metrics and the drain know no difference.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use nearpath_wire::early::{LONGEST, Provision, ProvisionError};
use nearpath_wire::mutual;
use nearpath_wire::quic::{Call, Refused, Worker, WorkerError};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{oneshot, watch};

use crate::arrival::Arrival;
use crate::body::Body;
use crate::listen::{Open, Watch};
use crate::logs::say;
use crate::patience::Busy;
use crate::serve::{App, answer};

/// Why there is no identity, or what came of a later one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the node's pipe: {0}")]
    Pipe(#[from] std::io::Error),
    #[error("a frame of {0} bytes")]
    Length(usize),
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("cannot speak TLS: {0}")]
    Tls(#[from] mutual::ConfigError),
}

/// Serves on this address, which is that of the HTTP port, until the watch says to close. Without an identity, callers use plain HTTP.
/// `listens` is dropped as soon as it is known which.
pub(crate) async fn serve(
    app: Arc<App>,
    addr: SocketAddr,
    pipe: impl AsyncRead + Unpin,
    watch: Watch,
    listens: Option<oneshot::Sender<()>>,
) {
    let taken = take_part(&app, addr, pipe, watch, listens).await;
    app.entrance.give_up(); // whatever was given stays good
    if let Err(fault) = taken {
        say!("calls from other machines go over plain HTTP, not over QUIC or TLS: {fault}");
    }
}

async fn take_part(
    app: &Arc<App>,
    addr: SocketAddr,
    mut pipe: impl AsyncRead + Unpin,
    mut watch: Watch,
    listens: Option<oneshot::Sender<()>>,
) -> Result<(), Fault> {
    let Some(provision) = next(&mut pipe).await? else { return Ok(()) }; // a node that gives no identities
    app.entrance.provision(&provision)?;
    let id = provision.credentials.id.clone();
    let (walking, open) = (Arc::clone(app), watch.open.clone());
    let started = socket(addr).map_err(WorkerError::from).and_then(|socket| {
        Worker::start(socket, provision, move |call| walk(Arc::clone(&walking), call, open.clone()))
    });
    match &started {
        Ok(_) => say!("TLS and QUIC on {addr} as {id}"),
        Err(fault) => say!("TLS on {addr} as {id}, but no QUIC: {fault}"), // a taken port, for one
    }
    drop(listens);
    tokio::task::spawn_local(tell("TLS", app.entrance.refused()));
    let mut worker = started.ok();
    if let Some(worker) = &worker {
        tokio::task::spawn_local(tell("QUIC", worker.refused()));
    }
    loop {
        tokio::select! {
            next = next(&mut pipe) => match next? {
                Some(provision) => {
                    app.entrance.provision(&provision)?;
                    worker.as_mut().map_or(Ok(()), |worker| worker.update(provision))?;
                }
                None => break, // the node has gone: what was given stays good until it ends
            },
            () = watch.closed() => break,
        }
    }
    watch.closed().await;
    if let Some(worker) = worker {
        worker.stop().await;
    }
    Ok(())
}

fn socket(addr: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(addr)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Writes down who was not let in: at most a line a second, so that nobody fills the log by knocking. Ends with the worker.
async fn tell(over: &str, mut refused: watch::Receiver<Refused>) {
    while refused.changed().await.is_ok() {
        let Refused { count, last } = refused.borrow_and_update().clone();
        say!("{over}: {count} callers refused so far, the last was {last}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The next frame; nothing at the pipe's end.
async fn next(pipe: &mut (impl AsyncRead + Unpin)) -> Result<Option<Provision>, Fault> {
    let length = match pipe.read_u32_le().await {
        Ok(length) => length as usize,
        Err(end) if end.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(fault) => return Err(fault.into()),
    };
    if length > LONGEST {
        return Err(Fault::Length(length));
    }
    let mut frame = vec![0; length];
    pipe.read_exact(&mut frame).await?;
    Ok(Some(Provision::read(&frame)?))
}

async fn walk(app: Arc<App>, call: Call, open: Open) -> Response<Body> {
    answer(app, call.request.map(Arrival::Quic), Busy::default().enter(), open).await
}
