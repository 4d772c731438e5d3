//! HTTP/1.1: requests of all clients take turns on few connections. A connection serves the next request when one whole response was framed and read on
//! it, and the request was wholly written; hyper, on both sides, knows when that is.
//!
//! Where `cache` is set, [`cache`] decides which responses are kept, and [`cache_exchange`] gives them.
//!
//! [`backend`] is a connection to the destination, [`handle_backend`] a request and its response, [`read_body`] what flows between, [`hop`] the headers that end here.
//! Clients that speak HTTP/2 without TLS need `protocol=tcp`.

mod backend;
mod body;
mod cache;
mod cache_exchange;
mod hop;
mod prefetch;
mod relay;

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

/// Headers of one request or response at most: more than any server of the field takes.
const MAX_HEADERS: usize = 1000;

/// What is kept from one client to the next.
struct HttpState {
    idle_pool: Rc<IdlePool<(), HttpBackend>>,
    /// Responses; `NoConnection`: none are kept.
    cache: Option<Rc<RefCell<HttpCache>>>,
    /// Reads that are issued ahead; empty: none are.
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

/// One client.
struct HttpSession {
    context: ClientContext,
    state: Rc<HttpState>,
    /// Some ways to log in (NTLM, Negotiate) are to a connection: from then on it is this client's alone.
    own_connection: RefCell<OwnConnection>,
    /// What carries it on when it has left HTTP.
    upgraded_tunnel: RefCell<Option<UpgradedTunnel>>,
}

type UpgradedTunnel = Pin<Box<dyn Future<Output = ()>>>;

/// Whether a client has a connection of its own.
enum OwnConnection {
    Shared,
    /// While it is in use.
    InUse,
    Idle(UsedConnection<HttpBackend>),
}

/// Serves one client until it leaves.
///
/// # Errors
/// When its connection breaks, or a response breaks off: the client has lost its connection then, as it would have without the pool.
pub async fn serve(client: TcpStream, visit: ClientContext) -> io::Result<()> {
    let guest = open_session(visit);
    let answer = service_fn(|request| {
        let guest = guest.clone();
        async move { Ok::<_, std::convert::Infallible>(relay::relay_request(guest, request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server
        .preserve_header_case(true)
        .auto_date_header(false)
        .max_headers(MAX_HEADERS);
    server
        .serve_connection(TokioIo::new(client), answer)
        .with_upgrades()
        .await
        .map_err(io::Error::other)?;
    let left = guest.upgraded_tunnel.take();
    if let Some(left) = left {
        left.await;
    }
    Ok(())
}

fn open_session(visit: ClientContext) -> Rc<HttpSession> {
    let house = visit
        .upstream
        .adapters
        .state_of::<HttpState>(&visit.upstream.destination);
    if !visit.upstream.destination.egress.prefetch.is_empty() {
        house.prefetch.get_or_init(|| {
            visit
                .upstream
                .adapters
                .usage_memory(&visit.upstream.destination)
        });
    }
    Rc::new(HttpSession {
        context: visit,
        state: house,
        own_connection: RefCell::new(OwnConnection::Shared),
        upgraded_tunnel: RefCell::default(),
    })
}

impl HttpSession {
    /// Takes a connection back on which a response has ended.
    fn release_backend(&self, line: UsedConnection<HttpBackend>) {
        let mut own = self.own_connection.borrow_mut();
        match &*own {
            OwnConnection::Shared => {
                self.state
                    .idle_pool
                    .give_back(&self.context.upstream, &(), line)
            }
            _ => *own = OwnConnection::Idle(line),
        }
    }

    /// A response without a body has come on it.
    async fn finish_response(&self, mut line: UsedConnection<HttpBackend>) {
        if line.connection.sender.ready().await.is_ok() {
            self.release_backend(line);
        }
    }

    /// The connection that is in use stays with this client.
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

    /// Its own connection, if it has one.
    fn own_connection(&self) -> Option<UsedConnection<HttpBackend>> {
        let mut own = self.own_connection.borrow_mut();
        match std::mem::replace(&mut *own, OwnConnection::InUse) {
            OwnConnection::Idle(line) => Some(line),
            other => {
                *own = other;
                None
            }
        }
    }
}
