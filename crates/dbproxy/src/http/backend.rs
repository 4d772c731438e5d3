//! An HTTP/1.1 connection to the destination.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::MAX_HEADERS;
use super::request_body::HttpRequestBody;
use nearpath_connpool::idle::ReusableConnection;
use nearpath_connpool::pool::{ConnectionLease, LeaseGuard, NoConnection, is_quiet};
use nearpath_connpool::upstream::UpstreamHandle;

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

/// Starts HTTP/1.1 on a new connection, with TLS where the egress declares it.
pub(super) async fn open_backend(
    upstream: &UpstreamHandle,
    lease: ConnectionLease,
) -> Result<HttpBackend, NoConnection> {
    let to = &upstream.destination;
    let socket = nearpath_connpool::tls::wrap_lease(lease, to, &upstream.adapters).await?;
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
