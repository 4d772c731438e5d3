//! A connection to the destination that speaks HTTP/1.1.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::body::HttpRequestBody;
use super::{HttpSession, MAX_HEADERS};
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};
use nearpath_connpool::pool::{ConnectionLease, LeaseGuard, NoConnection, is_quiet};

/// Its sender; a task of its own drives it.
#[derive(Debug)]
pub(super) struct HttpBackend {
    pub(super) sender: SendRequest<HttpRequestBody>,
    /// Its place below the ceiling: its task's, too, and after an upgrade the tunnel's alone.
    pub(super) permit: Rc<LeaseGuard>,
    /// Its socket: what has come since its task was awake last would be taken for the answer to the next request.
    socket_probe: OwnedFd,
}

impl ReusableConnection for HttpBackend {
    fn is_quiet(&self) -> bool {
        self.sender.is_ready() && is_quiet(&self.socket_probe)
    }

    /// Its task ends when its sender is gone.
    fn close(self) {}
}

/// A connection for one request, and whether it has served before.
pub(super) async fn acquire_backend(
    guest: &HttpSession,
) -> Result<(UsedConnection<HttpBackend>, bool), NoConnection> {
    if let Some(own) = guest.own_connection() {
        return Ok((own, true));
    }
    let born = Instant::now();
    let deadline = born + guest.context.upstream.destination.egress.wait;
    match guest
        .state
        .idle_pool
        .acquire(&guest.context.upstream, &(), deadline)
        .await?
    {
        AcquireOutcome::Reused(line) => Ok((line, true)),
        AcquireOutcome::New(lease) => {
            let failed = |error| NoConnection::Refused {
                to: guest.context.upstream.destination.key.host_port.clone(),
                error,
            };
            let opening = tokio::time::timeout_at(deadline.into(), open_backend(guest, lease));
            let line = opening
                .await
                .unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))?;
            Ok((UsedConnection::new(line, born), false))
        }
    }
}

async fn open_backend(
    guest: &HttpSession,
    lease: ConnectionLease,
) -> Result<HttpBackend, NoConnection> {
    let to = &guest.context.upstream.destination;
    let socket =
        nearpath_connpool::tls::wrap_lease(lease, to, &guest.context.upstream.adapters).await?;
    let mut client = http1::Builder::new();
    client.preserve_header_case(true).max_headers(MAX_HEADERS);
    let refused = |error| NoConnection::Refused {
        to: to.key.host_port.clone(),
        error: io::Error::other(error),
    };
    let witness = socket
        .duplicate_fd()
        .map_err(|error| NoConnection::Refused {
            to: to.key.host_port.clone(),
            error,
        })?;
    let (stream, gone) = socket.into_parts();
    let (sender, connection) = client
        .handshake(TokioIo::new(stream))
        .await
        .map_err(refused)?;
    let place = Rc::new(gone);
    let kept = place.clone();
    tokio::task::spawn_local(async move {
        // Whoever sent the request is told what broke.
        let _ = connection.with_upgrades().await;
        drop(kept);
    });
    Ok(HttpBackend {
        sender,
        permit: place,
        socket_probe: witness,
    })
}
