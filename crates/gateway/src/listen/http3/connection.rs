//! One client's connection.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearpath_wire::BoxError;
use nearpath_wire::h3::{Opened, Requests};
use quinn::{Connection, Incoming, ZeroRttAccepted};
use tokio::sync::OwnedSemaphorePermit;

use super::client::{Client, One, Open};
use super::half_open::HalfOpen;
use super::{Port, request};
use crate::context::WorkerContext;
use crate::listen::ListenContext;
use crate::listen::conn_state::Life;

/// How long a client that was told to leave may take to close, in round trips; and the least and the most of it. It has all answers, but
/// many throw away what they have not read when a connection is closed.
const LINGER: (u32, Duration, Duration) = (8, Duration::from_millis(100), Duration::from_secs(2));

/// Serves one connection to its end, and keeps its `place` until then.
pub(super) async fn serve_connection(
    context: Rc<ListenContext>,
    port: Rc<Port>,
    incoming: Incoming,
    half_open: HalfOpen,
    _place: OwnedSemaphorePermit,
) {
    let ListenContext { worker: lane, connections } = &*context;
    let (life, addr) = (Life::new(lane.ticks()), incoming.remote_address());
    connections.add(life.clone());
    if port.drain.is_draining() {
        connections.drain(lane.now()); // let in in the same moment: it did not hear the order
    }
    match life.govern(serve(lane, &port, &life, incoming, half_open)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%addr, %error, "connection ended"),
        None => drop(lane.totals.connections_cut.fetch_add(1, Ordering::Relaxed)),
    }
    connections.remove(&life);
}

async fn serve(
    lane: &Rc<WorkerContext>,
    port: &Rc<Port>,
    life: &Arc<Life>,
    incoming: Incoming,
    half_open: HalfOpen,
) -> Result<(), BoxError> {
    let (begun, addr) = (Instant::now(), incoming.remote_address());
    let (quic, complete, requests) =
        tokio::time::timeout(port.tls_timeout, shake(incoming, port)).await.map_err(io::Error::from)??;
    life.speaks(true);
    let whom = Rc::new(Client::new(lane, life, addr));
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
        let life = self.whom.visit.life.clone();
        while !(leaving && self.open.requests.get() == 0) {
            tokio::select! {
                biased;
                ended = complete.as_mut(), if half_open.is_some() => {
                    ended.map_err(io::Error::from)?;
                    half_open = None;
                    life.expects();
                }
                () = life.drained(), if !leaving => {
                    leaving = true;
                    // A client that takes no byte of it is not waited for.
                    let told = tokio::time::timeout(self.port.header_timeout, self.requests.leave());
                    told.await.map_err(io::Error::from)??;
                }
                () = self.open.fewer.notified(), if leaving => {}
                next = self.requests.next() => match next? {
                    Some(opened) => self.begin(opened, half_open.is_some()),
                    None => break,
                },
            }
        }
        let (trips, least, most) = LINGER;
        let _ = tokio::time::timeout((quic.rtt() * trips).clamp(least, most), self.refuse(&quic)).await; // closed by us, then
        Ok(())
    }

    /// Until the client closes: what it sent before it heard of GOAWAY is refused, so that it knows that it has not run.
    async fn refuse(&mut self, quic: &Connection) {
        while let Ok(Some(_)) = self.requests.next().await {}
        quic.closed().await;
    }

    fn begin(&self, opened: Opened, early: bool) {
        let (whom, one) = (self.whom.clone(), One::of(&self.open));
        let early = early && opened.is_early();
        self.whom.lane.spawn(request::answer(whom, self.port.clone(), opened, early, one));
    }
}
