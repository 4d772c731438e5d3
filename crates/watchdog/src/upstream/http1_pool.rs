//! Idle HTTP/1.1 connections, newest first.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use rustix::net::sockopt::set_tcp_quickack;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Http1Connection;

/// Age at which an idle connection is closed. Servers close theirs after some seconds, perhaps just
/// when a request is sent, so this is far below.
const MAX_IDLE_AGE: Duration = Duration::from_millis(500);
/// Age at which a connection carries no further request. A simple server handles one connection at
/// a time: those of the gateway have to get their turn.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(1);
/// Maximum number of idle connections to one server.
const MAX_IDLE_CONNECTIONS: usize = 100;

/// Idle connections of an HTTP/1.1 server.
#[derive(Debug, Default)]
pub(crate) struct Http1Pool {
    idle: Mutex<IdleHttp1>,
    returned: Notify,
}

#[derive(Debug, Default)]
struct IdleHttp1 {
    /// In the order in which they became idle.
    connections: Vec<(Instant, Http1Connection)>,
    has_sweeper: bool,
}

impl Http1Pool {
    /// Takes a connection that can carry a request now.
    pub(super) fn take_idle(&self) -> Option<Http1Connection> {
        let mut idle = self.lock_idle();
        // The newest first: the server is least likely to have closed it.
        while let Some((since, connection)) = idle.connections.pop() {
            if since.elapsed() < MAX_IDLE_AGE && connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Closes all idle connections.
    pub(super) fn close_idle(&self) {
        self.lock_idle().connections.clear();
    }

    /// Returns when a connection was returned; another task may have taken it already.
    pub(super) async fn wait_returned(&self) {
        self.returned.notified().await;
    }

    /// Takes back a connection after its exchange.
    fn return_connection(self: &Arc<Self>, mut connection: Http1Connection) {
        if connection.opened_at.elapsed() > MAX_CONNECTION_AGE {
            return;
        }
        if connection.sender.is_ready() {
            return self.store_idle(connection);
        }
        // hyper may still have to end the exchange, so the connection is kept once it is ready.
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            if connection.sender.ready().await.is_ok() {
                pool.store_idle(connection);
            }
        });
    }

    fn store_idle(self: &Arc<Self>, connection: Http1Connection) {
        let mut idle = self.lock_idle();
        if idle.connections.len() < MAX_IDLE_CONNECTIONS {
            idle.connections.push((Instant::now(), connection));
            self.returned.notify_one();
        }
        // Set under the lock, so there is at most one sweeper.
        if !std::mem::replace(&mut idle.has_sweeper, true) {
            tokio::spawn(Arc::clone(self).sweep_idle());
        }
    }

    /// Closes connections that were idle for too long. Runs only while there are any.
    async fn sweep_idle(self: Arc<Self>) {
        loop {
            tokio::time::sleep(MAX_IDLE_AGE).await;
            let mut idle = self.lock_idle();
            idle.connections
                .retain(|(since, _)| since.elapsed() < MAX_IDLE_AGE);
            if idle.connections.is_empty() {
                idle.has_sweeper = false;
                return;
            }
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, IdleHttp1> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Body of a response with its connection, which returns to the pool when the body was read to its
/// end. Otherwise the connection is closed, which tells the tenant's server that the caller has
/// left.
///
/// Simple servers (Python's `http.server`) write head and body apart with Nagle's algorithm. Then
/// the body waits for the acknowledgement of the head, which the kernel delays by 40 ms on a
/// connection in use. So received bytes are acknowledged at once while the body is awaited
/// (`TCP_QUICKACK`, tcp(7)).
#[derive(Debug)]
pub(super) struct PooledBody {
    body: Incoming,
    is_complete: bool,
    connection: Option<Http1Connection>,
    pool: Arc<Http1Pool>,
}

impl PooledBody {
    pub(super) fn new(body: Incoming, connection: Http1Connection, pool: &Arc<Http1Pool>) -> Self {
        Self {
            body,
            is_complete: false,
            connection: Some(connection),
            pool: Arc::clone(pool),
        }
    }
}

impl Drop for PooledBody {
    fn drop(&mut self) {
        let is_complete = self.is_complete || self.body.is_end_stream();
        // Bytes of an unread body would become the next response.
        if let Some(connection) = self.connection.take().filter(|_| is_complete) {
            self.pool.return_connection(connection);
        }
    }
}

impl Body for PooledBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.is_complete |= matches!(polled, Poll::Ready(None));
        if let (Poll::Pending, Some(connection)) = (&polled, &self.connection) {
            let _ = set_tcp_quickack(&connection.socket, true); // only speed depends on it
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
