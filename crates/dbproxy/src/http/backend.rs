//! A connection to the destination that speaks HTTP/1.1.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::body::Upload;
use super::{Guest, HEADERS};
use nearpath_connpool::idle::{Got, Kept, Reused};
use nearpath_connpool::pool::{Gone, Lease, NoConnection, is_quiet};

/// Its sender; a task of its own drives it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) sender: SendRequest<Upload>,
    /// Its place below the ceiling: its task's, too, and after an upgrade the tunnel's alone.
    pub(super) place: Rc<Gone>,
    /// Its socket: what has come since its task was awake last would be taken for the answer to the next request.
    witness: OwnedFd,
}

impl Reused for Line {
    fn is_quiet(&self) -> bool {
        self.sender.is_ready() && is_quiet(&self.witness)
    }

    /// Its task ends when its sender is gone.
    fn close(self) {}
}

/// A connection for one request, and whether it has served before.
pub(super) async fn line(guest: &Guest) -> Result<(Kept<Line>, bool), NoConnection> {
    if let Some(own) = guest.own() {
        return Ok((own, true));
    }
    let born = Instant::now();
    let deadline = born + guest.visit.upstream.destination.egress.wait;
    match guest.house.bench.acquire(&guest.visit.upstream, &(), deadline).await? {
        Got::Used(line) => Ok((line, true)),
        Got::New(lease) => {
            let failed = |error| NoConnection::Refused { to: guest.visit.upstream.destination.key.to.clone(), error };
            let opening = tokio::time::timeout_at(deadline.into(), open(guest, lease));
            let line = opening.await.unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))?;
            Ok((Kept::new(line, born), false))
        }
    }
}

async fn open(guest: &Guest, lease: Lease) -> Result<Line, NoConnection> {
    let to = &guest.visit.upstream.destination;
    let socket = nearpath_connpool::tls::on(lease, to, &guest.visit.upstream.rooms).await?;
    let mut client = http1::Builder::new();
    client.preserve_header_case(true).max_headers(HEADERS);
    let refused = |error| NoConnection::Refused { to: to.key.to.clone(), error: io::Error::other(error) };
    let witness = socket.witness().map_err(|error| NoConnection::Refused { to: to.key.to.clone(), error })?;
    let (stream, gone) = socket.into_parts();
    let (sender, connection) = client.handshake(TokioIo::new(stream)).await.map_err(refused)?;
    let place = Rc::new(gone);
    let kept = place.clone();
    tokio::task::spawn_local(async move {
        // Whoever sent the request is told what broke.
        let _ = connection.with_upgrades().await;
        drop(kept);
    });
    Ok(Line { sender, place, witness })
}
