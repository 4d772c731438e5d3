//! An HTTP/1.1 connection to the destination.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::request_body::HttpRequestBody;
use super::{HttpSession, MAX_HEADERS};
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};
use nearpath_connpool::pool::{ConnectionLease, LeaseGuard, NoConnection, is_quiet};

/// Request sender of a connection that a task of its own drives.
#[derive(Debug)]
pub(super) struct HttpBackend {
    pub(super) sender: SendRequest<HttpRequestBody>,
    /// Permit below the destination's `max`. The driving task holds it, too; after an upgrade only
    /// the tunnel does.
    pub(super) permit: Rc<LeaseGuard>,
    /// Duplicate of the socket. It shows bytes that arrived after the driving task ran last; they
    /// would be taken for the next response.
    socket_probe: OwnedFd,
}

impl ReusableConnection for HttpBackend {
    fn is_quiet(&self) -> bool {
        // hyper's view may be stale until its task runs again, so the socket itself is checked as
        // well.
        self.sender.is_ready() && is_quiet(&self.socket_probe)
    }

    /// The driving task ends when the sender is dropped.
    fn close(self) {}
}

/// Returns a connection for one request, and whether it has served before.
pub(super) async fn acquire_backend(
    session: &HttpSession,
) -> Result<(UsedConnection<HttpBackend>, bool), NoConnection> {
    // The client's own connection comes first: its login is not valid on any other.
    if let Some(own) = session.own_connection() {
        return Ok((own, true));
    }
    let opened_at = Instant::now();
    let deadline = opened_at + session.context.upstream.destination.egress.wait;
    match session
        .state
        .idle_pool
        .acquire(&session.context.upstream, &(), deadline)
        .await?
    {
        AcquireOutcome::Reused(backend) => Ok((backend, true)),
        AcquireOutcome::New(lease) => {
            let failed = |error| NoConnection::Refused {
                to: session.context.upstream.destination.key.host_port.clone(),
                error,
            };
            // The deadline covers waiting, connecting and both handshakes: `wait` is what the
            // function declared.
            let opening = tokio::time::timeout_at(deadline.into(), open_backend(session, lease));
            let backend = opening
                .await
                .unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))?;
            Ok((UsedConnection::new(backend, opened_at), false))
        }
    }
}

async fn open_backend(
    session: &HttpSession,
    lease: ConnectionLease,
) -> Result<HttpBackend, NoConnection> {
    let to = &session.context.upstream.destination;
    let socket =
        nearpath_connpool::tls::wrap_lease(lease, to, &session.context.upstream.adapters).await?;
    let mut client = http1::Builder::new();
    client.preserve_header_case(true).max_headers(MAX_HEADERS);
    let refused = |error| NoConnection::Refused {
        to: to.key.host_port.clone(),
        error: io::Error::other(error),
    };
    // The duplicate is taken before `into_parts` moves the socket into hyper, which gives no access
    // to it afterwards.
    let socket_probe = socket
        .duplicate_fd()
        .map_err(|error| NoConnection::Refused {
            to: to.key.host_port.clone(),
            error,
        })?;
    let (stream, guard) = socket.into_parts();
    let (sender, connection) = client
        .handshake(TokioIo::new(stream))
        .await
        .map_err(refused)?;
    let permit = Rc::new(guard);
    let task_permit = permit.clone();
    tokio::task::spawn_local(async move {
        // The error is ignored here: the request's own future reports it.
        let _ = connection.with_upgrades().await;
        // Released after the socket is closed, so that `max` holds at the server.
        drop(task_permit);
    });
    Ok(HttpBackend {
        sender,
        permit,
        socket_probe,
    })
}
