//! Edges over links between workers that meet at a rendezvous.
//!
//! Both ends request an edge: its producer calls and repeats the call if necessary; its consumer
//! answers. Each attempt has a [`RemoteConnector`]; all of them share the process's connection.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::worker::{EdgeConnector, EdgeEnd, EdgePath, EdgePathProbe, WorkerAssignment};
use nearpath_p2p::Transport;
use nearpath_p2p::control::{PeerCallError, PeerSession};
use nearpath_p2p::driver::{self, SearchPlan};
use nearpath_p2p::link::{LinkStatus, P2pLink};
use nearpath_p2p::migrate::StreamPath;
use nearpath_types::SpiffeId;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::remote::call_queue::call_subject;
use crate::remote::concurrency;
use crate::remote::connection::{ConnectionShared, RendezvousConnection};
use crate::remote::identity::WorkerIdentity;
use crate::remote::worker_name::{self, InvalidWorkerName};

/// Transports to try on every edge: networks that drop UDP let TCP through, and some NATs let only
/// UDP through.
const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];
/// The search for a direct path takes half the connect timeout, between these bounds. So one end
/// may start an attempt that much later than the other.
const SEARCH_TIMEOUT_RANGE: (Duration, Duration) =
    (Duration::from_secs(5), Duration::from_secs(30));
/// Share of the connect timeout that the search runs alone, before the relay is opened: a third of
/// a second of 30 s.
const HEAD_START_DIVISOR: f64 = 90.0;
/// A longer connect timeout than this marks a slow environment.
const USUAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// An edge that lasts longer than this share of the connect timeout is not short: ten seconds of a
/// minute. A peer may be busy for as long.
const SHORT_EDGE_DIVISOR: f64 = 6.0;
/// Share of the connect timeout for the handshake of an answered edge: a fifth of a second of a
/// minute.
const ANSWER_PERMIT_DIVISOR: f64 = 300.0;
// A short edge keeps its permit for half of that again: a tenth of a second of a minute.
const SHORT_PERMIT_DIVISOR: f64 = 600.0;
/// Number of first probes of a candidate pair; after a dozen they follow every second.
const MAX_PROBES: u32 = 24;
/// The open frames of an edge take fewer bytes, and usually go over the relay.
const MAX_HANDSHAKE_BYTES: u64 = 2048;
/// First and longest delay before a repeated call.
const CALL_RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Edges of one worker in one attempt.
pub struct RemoteConnector {
    shared: Arc<ConnectionShared>,
    identity: WorkerIdentity,
    attempt: u32,
    /// A little shorter than the worker's own timeout, so that the error says why and not only that
    /// it took too long.
    connect_timeout: Duration,
    transports: Vec<Transport>,
}

/// Reasons why a worker cannot connect to others.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum RemoteConnectorError {
    #[error("the identity is for {identity}, the assignment for {worker}")]
    WrongIdentity {
        identity: Box<SpiffeId>,
        worker: Box<SpiffeId>,
    },
    #[error(transparent)]
    InvalidName(#[from] InvalidWorkerName),
}

impl RemoteConnector {
    /// Begins an attempt: calls for earlier ones are not answered any more.
    ///
    /// # Errors
    /// When the identity belongs to another worker.
    pub fn new(
        connection: &RendezvousConnection,
        identity: WorkerIdentity,
        assignment: &WorkerAssignment,
    ) -> Result<Self, RemoteConnectorError> {
        let worker = worker_name::to_spiffe_id(connection.job(), &assignment.name)?;
        // Found here instead of in the TLS handshake of every edge, whose error would blame the
        // peer.
        if worker != *identity.id() {
            return Err(RemoteConnectorError::WrongIdentity {
                identity: Box::new(identity.id().clone()),
                worker: Box::new(worker),
            });
        }
        let (shared, attempt) = (Arc::clone(connection.shared()), assignment.attempt);
        let open = assignment
            .inputs
            .iter()
            .filter(|input| input.processed.is_some());
        shared.begin_attempt(attempt, open.map(|input| input.from.clone()).collect());
        // Clamped: `from_secs_f64` panics on negative, infinite and huge values, and the number
        // comes from JSON.
        let connect_timeout =
            Duration::from_secs_f64(assignment.connect_timeout.clamp(0.0, 1e6)).mul_f64(0.95);
        Ok(Self {
            shared,
            identity,
            attempt,
            connect_timeout,
            transports: TRANSPORTS.to_vec(),
        })
    }

    /// Restricts the search for direct paths to these transports.
    #[must_use]
    pub fn with_transports(self, transports: &[Transport]) -> Self {
        Self {
            transports: transports.to_vec(),
            ..self
        }
    }

    /// Producer: calls until the peer answers.
    async fn call_peer(
        &self,
        peer: &str,
        last_error: &mut Option<io::Error>,
    ) -> io::Result<P2pLink> {
        let pair = self.identity.peer_tls(self.peer_id(peer)?);
        let (deadline, mut retry_delay) =
            (Instant::now() + self.connect_timeout, CALL_RETRY_DELAY.0);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let result = match self
                .shared
                .control()?
                .call_for(&pair, &call_subject(self.attempt), left)
                .await
            {
                Ok(meeting) => self.connect_link(meeting, pair.clone()).await,
                // The connection will not come back, so a repeated call cannot succeed.
                Err(over @ (PeerCallError::Ended(_) | PeerCallError::Closed)) => {
                    return Err(io::Error::other(over));
                }
                Err(error) => Err(io::Error::new(io::ErrorKind::NotFound, error)),
            };
            match result {
                Ok(link) => return Ok(link),
                Err(error) => *last_error = Some(error),
            }
            tokio::time::sleep(retry_delay).await;
            // Exponential: hundreds of edges call at the start of an attempt, and a rendezvous
            // limits messages per second.
            retry_delay = (retry_delay * 2).min(CALL_RETRY_DELAY.1);
        }
    }

    /// Consumer: answers the newest call, because its caller has given up the older ones.
    async fn answer_peer(
        &self,
        peer: &str,
        last_error: &mut Option<io::Error>,
    ) -> io::Result<P2pLink> {
        loop {
            let meeting = self.shared.next_call(peer, self.attempt).await?;
            let pair = self.identity.peer_tls(meeting.grant.peer.clone());
            tokio::select! {
                result = self.answer_call(meeting, pair) => match result {
                    Ok(link) => return Ok(link),
                    Err(error) => *last_error = Some(error),
                },
                called_again = self.shared.wait_for_call(peer, self.attempt) => called_again?,
            }
        }
    }

    /// Answers a call. The permit limits how many edges connect at the same time.
    async fn answer_call(
        &self,
        meeting: PeerSession,
        pair: Arc<PeerTlsConfig>,
    ) -> io::Result<P2pLink> {
        let [connect_limit, short_limit] = [ANSWER_PERMIT_DIVISOR, SHORT_PERMIT_DIVISOR]
            .map(|part| self.connect_timeout.div_f64(part));
        let (known, known_receiver) = oneshot::channel();
        concurrency::acquire_answer_permit(
            Arc::clone(&self.shared.answer_permits),
            known_receiver,
            connect_limit,
            short_limit,
        )
        .await;
        let link = self.connect_link(meeting, pair).await?;
        let _ = known.send(link.status().clone()); // fails when the permit has timed out
        Ok(link)
    }

    fn peer_id(&self, peer: &str) -> io::Result<SpiffeId> {
        worker_name::to_spiffe_id(&self.shared.job, peer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    async fn connect_link(
        &self,
        meeting: PeerSession,
        pair: Arc<PeerTlsConfig>,
    ) -> io::Result<P2pLink> {
        let (known, known_receiver) = oneshot::channel();
        let ports = Box::pin(concurrency::bind_search_ports(
            Arc::clone(&self.shared.search_permits),
            self.transports.clone(),
            known_receiver,
        ));
        let search = SearchPlan::OnDemand {
            ports,
            short_link_age: self.connect_timeout.div_f64(SHORT_EDGE_DIVISOR),
        };
        let link = self
            .shared
            .control()?
            .connect(meeting, pair, search, self.driver_settings())
            .await
            .map_err(explain_tls_error)?;
        let _ = known.send(link.status().clone()); // fails when the search has timed out
        Ok(link)
    }

    /// Settings of the p2p driver. A connect timeout above a minute means a slow environment, where
    /// frequent probes are wasted work.
    fn driver_settings(&self) -> driver::DriverSettings {
        let mut settings = driver::DriverSettings {
            loopback: self.shared.is_on_loopback(),
            ..driver::DriverSettings::default()
        };
        let slowdown = self
            .connect_timeout
            .div_duration_f64(USUAL_CONNECT_TIMEOUT)
            .max(1.0);
        let agent = &mut settings.agent;
        (agent.allow_relay, agent.max_tries) = (true, MAX_PROBES);
        agent.search_timeout =
            (self.connect_timeout / 2).clamp(SEARCH_TIMEOUT_RANGE.0, SEARCH_TIMEOUT_RANGE.1);
        (agent.retry_interval, agent.pace_interval) = (
            agent.retry_interval.mul_f64(slowdown),
            agent.pace_interval.mul_f64(slowdown),
        );
        settings.relay_policy.head_start = Some(self.connect_timeout.div_f64(HEAD_START_DIVISOR));
        settings.relay_policy.ack_timeout = self.connect_timeout.div_f64(SHORT_EDGE_DIVISOR);
        settings.handshake_timeout = self.connect_timeout;
        settings
    }
}

impl EdgeConnector for RemoteConnector {
    type Stream = P2pLink;

    async fn connect(&self, end: EdgeEnd, peer: &str) -> io::Result<P2pLink> {
        let mut last_error = None;
        let connected = async {
            match end {
                EdgeEnd::Producer => self.call_peer(peer, &mut last_error).await,
                EdgeEnd::Consumer => self.answer_peer(peer, &mut last_error).await,
            }
        };
        match timeout(self.connect_timeout, connected).await {
            Ok(made) => made,
            Err(_) => Err(timeout_error(end, self.connect_timeout, last_error)),
        }
    }

    async fn close(&self, link: P2pLink) -> io::Result<()> {
        link.close().await
    }

    fn path_probe(&self, link: &P2pLink, end: EdgeEnd) -> EdgePathProbe {
        let known = link.status().clone();
        let before = relayed_bytes(&known, end); // the handshake is not counted
        Arc::new(move |bytes| edge_path(&known, end, before, bytes))
    }
}

/// Explains a TLS error: the library's text does not name the likely cause.
fn explain_tls_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(
            error.kind(),
            format!("certificate refused ({error}): is it from another run of the job?"),
        ),
        _ => error,
    }
}

fn timeout_error(end: EdgeEnd, time_limit: Duration, why: Option<io::Error>) -> io::Error {
    let why = why.map_or_else(String::new, |why| format!("; last attempt: {why}"));
    let what = if end == EdgeEnd::Producer {
        "peer did not answer"
    } else {
        "peer did not call"
    };
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("{what} within {:.1} s{why}", time_limit.as_secs_f64()),
    )
}

fn relayed_bytes(known: &LinkStatus, end: EdgeEnd) -> u64 {
    if end == EdgeEnd::Producer {
        known.relayed_bytes.sent()
    } else {
        known.relayed_bytes.received()
    }
}

/// Path of an edge. Bytes of an edge still on the relay all went over it, and batches that wait to
/// be written will too.
fn edge_path(known: &LinkStatus, end: EdgeEnd, before: u64, bytes: u64) -> EdgePath {
    let relayed = relayed_bytes(known, end) - before;
    let places = *known.paths.borrow();
    let place = if end == EdgeEnd::Producer {
        places.outgoing
    } else {
        places.incoming
    };
    // The handshake is subtracted: a short edge that moved at once would else count as relayed.
    let by_relay = place == StreamPath::Relay || relayed > bytes / 2 + MAX_HANDSHAKE_BYTES;
    EdgePath {
        path: if by_relay { "relay" } else { "punch" },
        relayed,
    }
}
