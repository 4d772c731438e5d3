//! HTTP/1.1: requests of all clients take turns on few connections.
//!
//! A connection serves the next request after one whole response was framed and read, and the
//! request was written in full. hyper tracks both, on either side.
//!
//! [`relay`] handles one request and its response, and [`exchange`] sends it on a connection of
//! [`backend`]. [`request_body`] and [`response_body`] stream the bodies, and `nearpath_wire::hop`
//! removes the hop-by-hop headers. If `cache` is set, [`cache`] decides which responses are stored,
//! and [`cache_exchange`] serves them. HTTP/2 without TLS needs `protocol=tcp`.

mod backend;
mod body_copy;
mod cache;
mod cache_exchange;
mod exchange;
mod prefetch;
mod relay;
mod request_body;
mod response_body;

use std::cell::{OnceCell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_types::egress::CacheLimit as Limit;
use tokio::net::TcpStream;

use crate::ClientContext;
use backend::HttpBackend;
use cache::HttpCache;
use nearpath_connpool::adapter_state::{AdapterState, IdleConnections};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::{IdlePool, UsedConnection};
use prefetch::HttpPrefetch;
pub use prefetch::prefetch_reads;

/// Headers of one request or response: more than common servers accept (Apache: 100).
const MAX_HEADERS: usize = 1000;

/// State of one destination, shared by all its clients.
struct HttpState {
    idle_pool: Rc<IdlePool<(), HttpBackend>>,
    /// Stored responses. `None`: caching is off.
    cache: Option<Rc<RefCell<HttpCache>>>,
    /// Prefetched responses. Empty: the egress declares no prefetch.
    prefetch: OnceCell<Rc<HttpPrefetch>>,
}

impl AdapterState for HttpState {
    fn for_destination(to: &EgressDestination) -> Self {
        let cache = match to.egress.cache {
            Some(Limit::Bytes(bound)) => Some(Rc::new(RefCell::new(HttpCache::new(bound)))),
            _ => None,
        };
        Self {
            idle_pool: IdlePool::new(to),
            cache,
            prefetch: OnceCell::new(),
        }
    }

    fn idle_connections(&self) -> Option<&dyn IdleConnections> {
        Some(&*self.idle_pool)
    }
}

/// A client connection.
struct HttpSession {
    context: ClientContext,
    state: Rc<HttpState>,
    /// NTLM and Negotiate authenticate a connection (RFC 4559). From then on it serves this client
    /// only.
    own_connection: RefCell<OwnConnection>,
    /// Task that relays the bytes after a protocol upgrade.
    upgraded_tunnel: RefCell<Option<UpgradedTunnel>>,
}

type UpgradedTunnel = Pin<Box<dyn Future<Output = ()>>>;

/// Ownership of a backend by one client.
enum OwnConnection {
    Shared,
    /// Owned, and in use by the current request.
    InUse,
    Idle(UsedConnection<HttpBackend>),
}

/// Serves one client until it closes.
///
/// # Errors
/// Fails when the client's connection breaks, or a response ends early. Without a pool the client
/// would lose its connection, too.
pub async fn serve(client: TcpStream, context: ClientContext) -> io::Result<()> {
    let session = open_session(context);
    let answer = service_fn(|request| {
        let session = session.clone();
        async move { Ok::<_, std::convert::Infallible>(relay::relay_request(session, request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    // Header case and the absence of `Date` pass through unchanged: the adapter is not visible to
    // either side.
    server
        .preserve_header_case(true)
        .auto_date_header(false)
        .max_headers(MAX_HEADERS);
    server
        .serve_connection(TokioIo::new(client), answer)
        .with_upgrades()
        .await
        .map_err(io::Error::other)?;
    // The tunnel needs the client's socket, which the server loop has released only now.
    let tunnel = session.upgraded_tunnel.take();
    if let Some(tunnel) = tunnel {
        tunnel.await;
    }
    Ok(())
}

fn open_session(context: ClientContext) -> Rc<HttpSession> {
    let state = context
        .upstream
        .adapters
        .state_of::<HttpState>(&context.upstream.destination);
    if !context.upstream.destination.egress.prefetch.is_empty() {
        // Learned reads outlive the instances of a function, so that a function scaled to zero can
        // prefetch at its first call.
        state.prefetch.get_or_init(|| {
            context
                .upstream
                .adapters
                .usage_memory(&context.upstream.destination)
        });
    }
    Rc::new(HttpSession {
        context,
        state,
        own_connection: RefCell::new(OwnConnection::Shared),
        upgraded_tunnel: RefCell::default(),
    })
}

impl HttpSession {
    /// Takes a backend back after its response has ended.
    fn release_backend(&self, backend: UsedConnection<HttpBackend>) {
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
    async fn finish_response(&self, mut backend: UsedConnection<HttpBackend>) {
        if backend.connection.sender.ready().await.is_ok() {
            self.release_backend(backend);
        }
    }

    /// Pins the current backend to this client.
    fn pin_backend(&self) {
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
    fn own_connection(&self) -> Option<UsedConnection<HttpBackend>> {
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
