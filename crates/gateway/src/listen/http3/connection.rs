//! One client's connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearpath_wire::BoxError;
use nearpath_wire::h3::{Opened, Requests};
use quinn::{Connection, Incoming, ZeroRttAccepted};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::accept::HalfOpen;
use super::{Port, request};
use crate::Zone;
use crate::call::Peer;
use crate::lane::Lane;
use crate::listen::connection::{Visit, peer};
use crate::listen::life::Life;
use crate::listen::resets::Resets;

/// How long a client that was told to leave may take to close, in round trips; and the least and the most of it. It has all answers, but
/// many throw away what they have not read when a connection is closed.
const LINGER: (u32, Duration, Duration) = (8, Duration::from_millis(100), Duration::from_secs(2));

/// Serves one connection to its end, and keeps its `place` until then.
pub(super) async fn serve_connection(
    lane: Rc<Lane>,
    port: Rc<Port>,
    incoming: Incoming,
    half_open: HalfOpen,
    _place: OwnedSemaphorePermit,
) {
    let (life, addr) = (Life::new(lane.ticks()), incoming.remote_address());
    lane.lives.add(life.clone());
    if port.drain.is_draining() {
        lane.lives.drain(lane.now()); // let in in the same moment: it did not hear the order
    }
    match life.govern(serve(&lane, &port, &life, incoming, half_open)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%addr, %error, "connection ended"),
        None => drop(lane.totals.connections_cut.fetch_add(1, Ordering::Relaxed)),
    }
    lane.lives.remove(&life);
}

async fn serve(
    lane: &Rc<Lane>,
    port: &Rc<Port>,
    life: &Arc<Life>,
    incoming: Incoming,
    half_open: HalfOpen,
) -> Result<(), BoxError> {
    let begun = Instant::now();
    let (quic, complete, requests) =
        tokio::time::timeout(port.tls_timeout, shake(incoming, port)).await.map_err(io::Error::from)??;
    life.speaks(true);
    let whom = Rc::new(Client::new(lane, life, quic.clone()));
    let left = port.tls_timeout.saturating_sub(begun.elapsed());
    let complete = tokio::time::timeout(left, complete);
    let served = Served { port: port.clone(), whom, requests, open: Rc::default() };
    served.run(quic, complete, half_open).await
}

/// The part of the handshake after which requests may come, those of a first flight too.
async fn shake(incoming: Incoming, port: &Port) -> Result<(Connection, ZeroRttAccepted, Requests), BoxError> {
    let mut connecting = incoming.accept()?;
    // A ClientHello of two packets: before it is complete the client's settings are not known.
    connecting.handshake_data().await?;
    let (quic, complete) =
        connecting.into_0rtt().map_err(|_| "a server that cannot begin before the handshake's end")?;
    let requests = Requests::begin(quic.clone(), &port.limits).await?;
    Ok((quic, complete, requests))
}

/// A connection as its requests see it.
pub(super) struct Client {
    pub(super) lane: Rc<Lane>,
    quic: Connection,
    /// The address at the last request: a client may move (RFC 9000 section 9).
    seen: Cell<SocketAddr>,
    visit: RefCell<Rc<Visit>>,
}

impl Client {
    fn new(lane: &Rc<Lane>, life: &Arc<Life>, quic: Connection) -> Self {
        let addr = quic.remote_address();
        let (peer, resets) = (Rc::new(whom(addr)), Resets::new(lane.now()));
        let visit = Visit { lane: lane.clone(), peer, life: life.clone(), alt_svc: None, resets: resets.into() };
        Self { lane: lane.clone(), quic, seen: Cell::new(addr), visit: RefCell::new(Rc::new(visit)) }
    }

    /// For the next request.
    pub(super) fn visit(&self) -> Rc<Visit> {
        let addr = self.quic.remote_address();
        if self.seen.replace(addr) != addr {
            let moved = self.visit.borrow().moved(whom(addr));
            *self.visit.borrow_mut() = Rc::new(moved);
        }
        self.visit.borrow().clone()
    }
}

fn whom(addr: SocketAddr) -> Peer {
    peer(Zone::Public, true, addr)
}

/// Requests that have not ended.
#[derive(Default)]
struct Open {
    requests: Cell<usize>,
    fewer: Notify,
}

/// One of them.
pub(super) struct One(Rc<Open>);

impl One {
    fn of(open: &Rc<Open>) -> Self {
        open.requests.set(open.requests.get() + 1);
        Self(open.clone())
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
        self.0.fewer.notify_one();
    }
}

struct Served {
    port: Rc<Port>,
    whom: Rc<Client>,
    requests: Requests,
    open: Rc<Open>,
}

impl Served {
    async fn run(
        mut self,
        quic: Connection,
        complete: tokio::time::Timeout<ZeroRttAccepted>,
        half_open: HalfOpen,
    ) -> Result<(), BoxError> {
        let mut complete = std::pin::pin!(complete);
        let (mut half_open, mut leaving) = (Some(half_open), false);
        let life = self.whom.visit().life.clone();
        while !(leaving && self.open.requests.get() == 0) {
            tokio::select! {
                biased;
                ended = complete.as_mut(), if half_open.is_some() => {
                    ended.map_err(io::Error::from)?;
                    half_open = None;
                }
                () = life.drained(), if !leaving => {
                    leaving = true;
                    self.requests.leave().await?;
                }
                () = self.open.fewer.notified(), if leaving => {}
                next = self.requests.next() => match next? {
                    Some(opened) => self.begin(opened, half_open.is_some()),
                    None => break,
                },
            }
        }
        let (trips, least, most) = LINGER;
        let _ = tokio::time::timeout((quic.rtt() * trips).clamp(least, most), quic.closed()).await; // closed by us, then
        Ok(())
    }

    fn begin(&self, opened: Opened, early: bool) {
        let (whom, one) = (self.whom.clone(), One::of(&self.open));
        let early = early && opened.is_early();
        self.whom.lane.spawn(request::answer(whom, self.port.clone(), opened, early, one));
    }
}
