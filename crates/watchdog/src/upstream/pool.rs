//! Idle HTTP/1.1 connections to the tenant's server, newest first.

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

use super::Http1;

/// A server may close a connection that has been idle for some seconds, just when a request is sent on it. Ours are
/// given up long before.
const IDLE: Duration = Duration::from_millis(500);
/// Most idle connections.
const MOST: usize = 100;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<Idle>,
    given: Notify,
}

#[derive(Debug, Default)]
struct Idle {
    /// In the order in which they became idle.
    connections: Vec<(Instant, Http1)>,
    swept: bool,
}

impl Pool {
    /// A connection on which a request can be sent now.
    pub(super) fn take(&self) -> Option<Http1> {
        let mut idle = self.idle();
        while let Some((since, connection)) = idle.connections.pop() {
            if since.elapsed() < IDLE && connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Returns when a connection was given back; somebody else may have taken it already.
    pub(super) async fn given(&self) {
        self.given.notified().await;
    }

    /// Takes back a connection whose exchange is over.
    fn give(self: &Arc<Self>, mut connection: Http1) {
        if connection.sender.is_ready() {
            return self.keep(connection);
        }
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            if connection.sender.ready().await.is_ok() {
                pool.keep(connection);
            }
        });
    }

    fn keep(self: &Arc<Self>, connection: Http1) {
        let mut idle = self.idle();
        if idle.connections.len() < MOST {
            idle.connections.push((Instant::now(), connection));
            self.given.notify_one();
        }
        if !std::mem::replace(&mut idle.swept, true) {
            tokio::spawn(Arc::clone(self).sweep());
        }
    }

    /// Closes what has been idle too long; runs only while there is something to close.
    async fn sweep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(IDLE).await;
            let mut idle = self.idle();
            idle.connections.retain(|(since, _)| since.elapsed() < IDLE);
            if idle.connections.is_empty() {
                idle.swept = false;
                return;
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer's body with its connection, which goes back when all of the body was read. Else the connection is closed, which
/// tells the tenant's server that the caller has gone.
///
/// Simple servers (Python's `http.server`) write head and body apart and with Nagle's algorithm, so the body waits for the
/// head's acknowledgement, which the kernel delays by 40 ms on a connection in use. So whenever the body is waited for,
/// what has come is acknowledged at once (`TCP_QUICKACK`, tcp(7)).
#[derive(Debug)]
pub(super) struct Leased {
    body: Incoming,
    ended: bool,
    connection: Option<Http1>,
    pool: Arc<Pool>,
}

impl Leased {
    pub(super) fn new(body: Incoming, connection: Http1, pool: &Arc<Pool>) -> Self {
        Self { body, ended: false, connection: Some(connection), pool: Arc::clone(pool) }
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let ended = self.ended || self.body.is_end_stream();
        if let Some(connection) = self.connection.take().filter(|_| ended) {
            self.pool.give(connection);
        }
    }
}

impl Body for Leased {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.ended |= matches!(polled, Poll::Ready(None));
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
