//! HTTP/1.1: requests of all clients take turns on few connections. A connection serves the next request when one whole response was framed and read on
//! it, and the request was wholly written; hyper, on both sides, knows when that is.
//!
//! Where `cache` is set, [`cache`] decides which responses are kept, and [`cached`] gives them.
//!
//! [`backend`] is a connection to the destination, [`relay`] a request and its response, [`body`] what flows between, [`hop`] the headers that end here.
//! Clients that speak HTTP/2 without TLS need `protocol=tcp`.

mod backend;
mod body;
mod cache;
mod cached;
mod hop;
mod prefetch;
mod relay;

use std::cell::{OnceCell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_types::egress::Cache as Limit;
use tokio::net::TcpStream;

use crate::Visit;
use backend::Line;
use cache::Cache;
use nearpath_connpool::adapter_state::{Idlers, Room};
use nearpath_connpool::destination::Destination;
use nearpath_connpool::idle::{Bench, Kept};
use prefetch::Reads;
pub use prefetch::foresee;

/// Headers of one request or response at most: more than any server of the field takes.
const HEADERS: usize = 1000;

/// What is kept from one client to the next.
struct House {
    bench: Rc<Bench<(), Line>>,
    /// Responses; `None`: none are kept.
    cache: Option<Rc<RefCell<Cache>>>,
    /// Reads that are issued ahead; empty: none are.
    reads: OnceCell<Rc<Reads>>,
}

impl Room for House {
    fn open(to: &Destination) -> Self {
        let cache = match to.egress.cache {
            Some(Limit::Bytes(bound)) => Some(Rc::new(RefCell::new(Cache::new(bound)))),
            _ => None,
        };
        Self { bench: Bench::new(to), cache, reads: OnceCell::new() }
    }

    fn idlers(&self) -> Option<&dyn Idlers> {
        Some(&*self.bench)
    }
}

/// One client.
struct Guest {
    visit: Visit,
    house: Rc<House>,
    /// Some ways to log in (NTLM, Negotiate) are to a connection: from then on it is this client's alone.
    own: RefCell<Own>,
    /// What carries it on when it has left HTTP.
    left: RefCell<Option<Left>>,
}

type Left = Pin<Box<dyn Future<Output = ()>>>;

/// Whether a client has a connection of its own.
enum Own {
    No,
    /// While it is in use.
    Away,
    Here(Kept<Line>),
}

/// Serves one client until it leaves.
///
/// # Errors
/// When its connection breaks, or a response breaks off: the client has lost its connection then, as it would have without the pool.
pub async fn serve(client: TcpStream, visit: Visit) -> io::Result<()> {
    let guest = guest(visit);
    let answer = service_fn(|request| {
        let guest = guest.clone();
        async move { Ok::<_, std::convert::Infallible>(relay::answer(guest, request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.preserve_header_case(true).auto_date_header(false).max_headers(HEADERS);
    server.serve_connection(TokioIo::new(client), answer).with_upgrades().await.map_err(io::Error::other)?;
    let left = guest.left.take();
    if let Some(left) = left {
        left.await;
    }
    Ok(())
}

fn guest(visit: Visit) -> Rc<Guest> {
    let house = visit.upstream.rooms.of::<House>(&visit.upstream.destination);
    if !visit.upstream.destination.egress.prefetch.is_empty() {
        house.reads.get_or_init(|| visit.upstream.rooms.memory(&visit.upstream.destination));
    }
    Rc::new(Guest { visit, house, own: RefCell::new(Own::No), left: RefCell::default() })
}

impl Guest {
    /// Takes a connection back on which a response has ended.
    fn give_back(&self, line: Kept<Line>) {
        let mut own = self.own.borrow_mut();
        match &*own {
            Own::No => self.house.bench.give_back(&self.visit.upstream, &(), line),
            _ => *own = Own::Here(line),
        }
    }

    /// A response without a body has come on it.
    async fn finish(&self, mut line: Kept<Line>) {
        if line.item.sender.ready().await.is_ok() {
            self.give_back(line);
        }
    }

    /// The connection that is in use stays with this client.
    fn keeps(&self) {
        let mut own = self.own.borrow_mut();
        if let Own::No = &*own {
            *own = Own::Away;
            self.visit.upstream.ledger.pinned("a login to the connection");
        }
    }

    /// Its own connection, if it has one.
    fn own(&self) -> Option<Kept<Line>> {
        let mut own = self.own.borrow_mut();
        match std::mem::replace(&mut *own, Own::Away) {
            Own::Here(line) => Some(line),
            other => {
                *own = other;
                None
            }
        }
    }
}
