//! One client's connection: its destination, and the backend that may belong to it alone.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use nearpath_connpool::idle::{AcquireOutcome, UsedConnection};
use nearpath_connpool::pool::NoConnection;

use super::backend::{HttpBackend, open_backend};
use super::state::{HttpState, state_of};
use crate::ClientContext;

/// A client connection.
pub(super) struct HttpSession {
    pub(super) context: ClientContext,
    pub(super) state: Rc<HttpState>,
    /// NTLM and Negotiate authenticate a connection (RFC 4559). From then on it serves this client
    /// only.
    own_connection: RefCell<OwnConnection>,
    /// Task that relays the bytes after a protocol upgrade.
    pub(super) upgraded_tunnel: RefCell<Option<UpgradedTunnel>>,
}

type UpgradedTunnel = Pin<Box<dyn Future<Output = ()>>>;

/// Ownership of a backend by one client.
enum OwnConnection {
    Shared,
    /// Owned, and in use by the current request.
    InUse,
    Idle(UsedConnection<HttpBackend>),
}

impl HttpSession {
    /// Opens the session of a client that shares all backends.
    pub(super) fn open(context: ClientContext) -> Rc<Self> {
        Rc::new(Self {
            state: state_of(&context),
            context,
            own_connection: RefCell::new(OwnConnection::Shared),
            upgraded_tunnel: RefCell::default(),
        })
    }

    /// Returns a connection for one request, and whether it has served before.
    pub(super) async fn acquire_backend(
        &self,
    ) -> Result<(UsedConnection<HttpBackend>, bool), NoConnection> {
        // The client's own connection comes first: its login is not valid on any other.
        if let Some(own) = self.own_connection() {
            return Ok((own, true));
        }
        let upstream = &self.context.upstream;
        let opened_at = Instant::now();
        let deadline = opened_at + upstream.destination.egress.wait;
        let acquired = self.state.idle_pool.acquire(upstream, &(), deadline);
        match acquired.await? {
            AcquireOutcome::Reused(backend) => Ok((backend, true)),
            AcquireOutcome::New(lease) => {
                let failed = |error| NoConnection::Refused {
                    to: upstream.destination.key.host_port.clone(),
                    error,
                };
                // The deadline covers waiting, connecting and both handshakes: `wait` is what the
                // function declared.
                let opening =
                    tokio::time::timeout_at(deadline.into(), open_backend(upstream, lease));
                let backend = opening
                    .await
                    .unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))?;
                Ok((UsedConnection::new(backend, opened_at), false))
            }
        }
    }

    /// Takes a backend back after its response has ended.
    pub(super) fn release_backend(&self, backend: UsedConnection<HttpBackend>) {
        let mut own = self.own_connection.borrow_mut();
        match &*own {
            OwnConnection::Shared => {
                self.state
                    .idle_pool
                    .give_back(&self.context.upstream, &(), backend)
            }
            // A backend that is authenticated for this client must never reach the shared pool.
            _ => *own = OwnConnection::Idle(backend),
        }
    }

    /// Finishes a backend whose response has no body.
    pub(super) async fn finish_response(&self, mut backend: UsedConnection<HttpBackend>) {
        if backend.connection.sender.ready().await.is_ok() {
            self.release_backend(backend);
        }
    }

    /// Pins the current backend to this client.
    pub(super) fn pin_backend(&self) {
        let mut own = self.own_connection.borrow_mut();
        if let OwnConnection::Shared = &*own {
            *own = OwnConnection::InUse;
            self.context
                .upstream
                .counters
                .count_pin("a login to the connection");
        }
    }

    /// Takes the client's own backend, if it has one that is idle.
    pub(super) fn own_connection(&self) -> Option<UsedConnection<HttpBackend>> {
        let mut own = self.own_connection.borrow_mut();
        match std::mem::replace(&mut *own, OwnConnection::InUse) {
            OwnConnection::Idle(backend) => Some(backend),
            other => {
                *own = other;
                None
            }
        }
    }
}
