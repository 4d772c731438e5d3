//! Edges over links between workers that meet at a rendezvous.
//!
//! Both ends ask for an edge: its producer calls, again if need be; its consumer takes the call. An attempt has a [`Met`] of
//! its own, all of them share the process's line.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::worker::{Connector, End, Orders, Route, Travelled};
use nearpath_p2p::Transport;
use nearpath_p2p::control::{CallError, Meeting};
use nearpath_p2p::driver::{self, Search};
use nearpath_p2p::link::{Known, Link};
use nearpath_p2p::migrate::Place;
use nearpath_types::SpiffeId;
use nearpath_wire::pair::Pair;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::remote::call_queue::about;
use crate::remote::concurrency;
use crate::remote::connection::{Line, Shared};
use crate::remote::identity::Identity;
use crate::remote::worker_name::{self, BadName};

/// Both are tried on every edge.
const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];
/// A direct way is looked for half as long as a peer is waited for, between these bounds: one end may begin an attempt so much
/// later than the other and still be found.
const LOOKS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// The search has this part of the time for a peer, alone, before the relay is opened: a third of a second of half a minute.
const HEAD_START: f64 = 90.0;
const MINUTE: Duration = Duration::from_secs(60);
/// An edge that lasts this part of the time for a peer, ten seconds of a minute, is no short one. A peer may be busy for as long.
const SHORT: f64 = 6.0;
/// To shake hands an edge has this part of the time for a peer to itself, a fifth of a second of a minute; then, if it is short, a tenth.
const SOON_THERE: f64 = 300.0;
const SOON_OVER: f64 = 600.0;
/// First probes of a pair; after the first dozen they go once a second.
const TRIES: u32 = 24;
/// What opens an edge has fewer bytes, and goes over the relay more often than not.
const OPENING: u64 = 2048;
/// Before another call, and what it grows to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// One attempt's edges of one worker.
pub struct Met {
    shared: Arc<Shared>,
    identity: Identity,
    attempt: u32,
    /// A little shorter than the worker's: so the reason is told, and not only that it took too long.
    patience: Duration,
    transports: Vec<Transport>,
}

/// Why a worker cannot meet others.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum MetError {
    #[error("the identity is {identity}, and the orders are for {worker}")]
    Other { identity: Box<SpiffeId>, worker: Box<SpiffeId> },
    #[error(transparent)]
    Name(#[from] BadName),
}

impl Met {
    /// For an attempt that begins: calls for those before it are not answered any more.
    ///
    /// # Errors
    /// When the identity is somebody else's.
    pub fn new(line: &Line, identity: Identity, orders: &Orders) -> Result<Self, MetError> {
        let worker = worker_name::identity(line.job(), &orders.name)?;
        if worker != *identity.id() {
            return Err(MetError::Other { identity: Box::new(identity.id().clone()), worker: Box::new(worker) });
        }
        let (shared, attempt) = (Arc::clone(line.shared()), orders.attempt);
        let open = orders.inputs.iter().filter(|input| input.processed.is_some());
        shared.begin(attempt, open.map(|input| input.from.clone()).collect());
        let patience = Duration::from_secs_f64(orders.patience.clamp(0.0, 1e6)).mul_f64(0.95);
        Ok(Self { shared, identity, attempt, patience, transports: TRANSPORTS.to_vec() })
    }

    /// The same, but direct ways are looked for over these transports alone.
    #[must_use]
    pub fn over(self, transports: &[Transport]) -> Self {
        Self { transports: transports.to_vec(), ..self }
    }

    /// As the producer: until the peer answers.
    async fn call(&self, peer: &str, why: &mut Option<io::Error>) -> io::Result<Link> {
        let pair = self.identity.pair(self.id(peer)?);
        let (until, mut pause) = (Instant::now() + self.patience, PAUSE.0);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let made = match self.shared.line()?.call_for(&pair, &about(self.attempt), left).await {
                Ok(meeting) => self.link(meeting, pair.clone()).await,
                Err(over @ (CallError::Over(_) | CallError::Closed)) => return Err(io::Error::other(over)),
                Err(error) => Err(io::Error::new(io::ErrorKind::NotFound, error)),
            };
            match made {
                Ok(link) => return Ok(link),
                Err(error) => *why = Some(error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// As the consumer: the newest call counts, for its caller has given up the others.
    async fn answer(&self, peer: &str, why: &mut Option<io::Error>) -> io::Result<Link> {
        loop {
            let meeting = self.shared.called(peer, self.attempt).await?;
            let pair = self.identity.pair(meeting.granted.peer.clone());
            tokio::select! {
                made = self.answered(meeting, pair) => match made {
                    Ok(link) => return Ok(link),
                    Err(error) => *why = Some(error),
                },
                again = self.shared.rings(peer, self.attempt) => again?,
            }
        }
    }

    /// The next call is answered when this edge is over, or has had time to be.
    async fn answered(&self, meeting: Meeting, pair: Arc<Pair>) -> io::Result<Link> {
        let [there, over] = [SOON_THERE, SOON_OVER].map(|part| self.patience.div_f64(part));
        let (known, is_known) = oneshot::channel();
        concurrency::answer(Arc::clone(&self.shared.answers), is_known, there, over).await;
        let link = self.link(meeting, pair).await?;
        let _ = known.send(link.known().clone()); // it has taken too long
        Ok(link)
    }

    fn id(&self, peer: &str) -> io::Result<SpiffeId> {
        worker_name::identity(&self.shared.job, peer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    async fn link(&self, meeting: Meeting, pair: Arc<Pair>) -> io::Result<Link> {
        let (known, is_known) = oneshot::channel();
        let ports = Box::pin(concurrency::ports(Arc::clone(&self.shared.searches), self.transports.clone(), is_known));
        let search = Search::WhenWorth { ports, lasts: self.patience.div_f64(SHORT) };
        let link = self.shared.line()?.connect(meeting, pair, search, self.settings()).await.map_err(explained)?;
        let _ = known.send(link.known().clone()); // a search may have been given up
        Ok(link)
    }

    /// Who gives peers more than a minute has slow surroundings, where asking again soon is work for nothing.
    fn settings(&self) -> driver::Settings {
        let mut settings = driver::Settings { loopback: self.shared.is_on_loopback(), ..driver::Settings::default() };
        let slow = self.patience.div_duration_f64(MINUTE).max(1.0);
        let agent = &mut settings.agent;
        (agent.relay, agent.tries) = (true, TRIES);
        agent.patience = (self.patience / 2).clamp(LOOKS.0, LOOKS.1);
        (agent.interval, agent.pace) = (agent.interval.mul_f64(slow), agent.pace.mul_f64(slow));
        settings.relaying.head_start = Some(self.patience.div_f64(HEAD_START));
        settings.relaying.heard = self.patience.div_f64(SHORT);
        settings.handshake = self.patience;
        settings
    }
}

impl Connector for Met {
    type Stream = Link;

    async fn connect(&self, end: End, peer: &str) -> io::Result<Link> {
        let mut why = None;
        let made = async {
            match end {
                End::Producer => self.call(peer, &mut why).await,
                End::Consumer => self.answer(peer, &mut why).await,
            }
        };
        match timeout(self.patience, made).await {
            Ok(made) => made,
            Err(_) => Err(late(end, self.patience, why)),
        }
    }

    async fn close(&self, link: Link) -> io::Result<()> {
        link.close().await
    }

    fn route(&self, link: &Link, end: End) -> Route {
        let known = link.known().clone();
        let before = relayed(&known, end); // shaking hands is not counted
        Arc::new(move |bytes| travelled(&known, end, before, bytes))
    }
}

/// TLS says little to people.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(
            error.kind(),
            format!("one does not take the other's certificate ({error}): is it of another run of the job?"),
        ),
        _ => error,
    }
}

fn late(end: End, patience: Duration, why: Option<io::Error>) -> io::Error {
    let why = why.map_or_else(String::new, |why| format!("; the last try: {why}"));
    let what = if end == End::Producer { "it did not answer" } else { "it did not call" };
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {:.1} s{why}", patience.as_secs_f64()))
}

fn relayed(known: &Known, end: End) -> u64 {
    if end == End::Producer { known.relayed.out() } else { known.relayed.inward() }
}

/// What is still on the relay has all gone over it, and batches that wait to be written will.
fn travelled(known: &Known, end: End, before: u64, bytes: u64) -> Travelled {
    let relayed = relayed(known, end) - before;
    let places = *known.places.borrow();
    let place = if end == End::Producer { places.out } else { places.inward };
    let by_relay = place == Place::Relay || relayed > bytes / 2 + OPENING;
    Travelled { path: if by_relay { "relay" } else { "punch" }, relayed }
}
