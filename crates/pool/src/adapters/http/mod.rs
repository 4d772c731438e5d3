//! HTTP/1.1: requests of all clients take turns on few connections. A connection serves the next request when one whole response was framed and read on
//! it, and the request was wholly written; hyper, on both sides, knows when that is.
//!
//! [`line`] is a connection to the destination, [`exchange`] a request and its response, [`body`] what flows between, [`hop`] the headers that end here.
//! Clients that speak HTTP/2 without TLS need `protocol=tcp`.

mod body;
mod exchange;
mod hop;
mod line;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::bench::{Bench, Kept};
use super::{Room, Visit};
use crate::destination::Destination;
use line::Line;

/// Headers of one request or response at most: more than any server of the field takes.
const HEADERS: usize = 1000;

/// What is kept from one client to the next.
struct House(Rc<Bench<(), Line>>);

impl Room for House {
    fn open(to: &Destination) -> Self {
        Self(Bench::new(to))
    }

    fn oldest(&self) -> Option<Instant> {
        self.0.oldest()
    }

    fn idle(&self) -> usize {
        self.0.idle()
    }

    fn close_oldest(&self) {
        self.0.close_oldest();
    }

    fn shut(&self) {
        self.0.shut();
    }
}

/// One client.
struct Guest {
    visit: Visit,
    bench: Rc<Bench<(), Line>>,
    /// Some ways to log in (NTLM, Negotiate) are to a connection: from then on it is this client's alone.
    own: RefCell<Own>,
}

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
    client.set_nodelay(true)?;
    let bench = visit.rooms.of::<House>(&visit.destination).0.clone();
    let guest = Rc::new(Guest { visit, bench, own: RefCell::new(Own::No) });
    let answer = service_fn(move |request| {
        let guest = guest.clone();
        async move { Ok::<_, std::convert::Infallible>(exchange::answer(guest, request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.preserve_header_case(true).auto_date_header(false).max_headers(HEADERS);
    server.serve_connection(TokioIo::new(client), answer).with_upgrades().await.map_err(io::Error::other)
}

impl Guest {
    /// Takes a connection back on which a response has ended.
    fn give_back(&self, line: Kept<Line>) {
        let mut own = self.own.borrow_mut();
        match &*own {
            Own::No => self.bench.give_back(&self.visit, &(), line),
            _ => *own = Own::Here(line),
        }
    }

    /// The connection that is in use stays with this client.
    fn keeps(&self) {
        let mut own = self.own.borrow_mut();
        if let Own::No = &*own {
            *own = Own::Away;
            self.visit.ledger.pinned("a login to the connection");
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
