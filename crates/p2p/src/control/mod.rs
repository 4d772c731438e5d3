//! A worker's side of the rendezvous: its line, what comes of calls, and the relay.
//!
//! [`Line`] is a handle; a task keeps the line itself, and opens it anew when it breaks, with a pause that grows. What was
//! said meanwhile is said then, and calls that wait are made again. Connections that are there do not notice.

mod backoff;
mod connect;
mod dial;
mod duplex_socket;
mod peer_connection;
mod relay_stream;
mod rendezvous_url;
mod resumable_relay;
mod sequence;
mod task;
mod trusted_roots;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::punch::nat::Server;
use nearpath_types::SpiffeId;
use nearpath_wire::pair::Pair;
use rustls::ClientConfig;
use tokio::sync::{mpsc, oneshot, watch};

pub use dial::DialError;
use dial::Reached;
pub use peer_connection::Meeting;
pub use relay_stream::RelayStream;
pub use rendezvous_url::{InvalidPlace, Place};
pub use trusted_roots::trust;

use crate::driver::Observers;
use crate::handshake::Hello;
use crate::message::{Base64, Bye, LONGEST_HELLO, Observer, Parcel, Pass, Refusal, Report, Said, Welcome};
use crate::reflexive_address::Asker;

/// What is heard and not read yet. When it is full the line is not read either, and the rendezvous ends it at last.
const HEARD: usize = 1024;

/// Where the rendezvous is, and what lets one in.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where.
    pub place: Place,
    /// The worker's ticket.
    pub ticket: Pass,
    /// For `wss`: whose certificates are believed ([`trust`]). It is not asked for `ws`.
    pub tls: Option<Arc<ClientConfig>>,
}

/// What happens on a line without having been asked for.
#[derive(Debug)]
pub enum Heard {
    /// The line is there, (again).
    Here(Welcome),
    /// A worker of the job calls.
    Called(Meeting),
    /// A worker of the job says this about its work.
    Report {
        /// Who.
        from: SpiffeId,
        /// What.
        report: Report,
    },
    /// A report was not passed on: who was meant has no line.
    Undelivered {
        /// Who was meant; nobody named: the job's leader.
        to: Option<SpiffeId>,
    },
    /// The line is gone, and is opened anew.
    Away {
        /// For people.
        why: String,
    },
    /// The line is gone for good: nothing is heard after this.
    Over(Over),
}

/// Why a line is not opened again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The rendezvous said so.
    #[error(transparent)]
    Said(Bye),
    /// The rendezvous does not take the ticket.
    #[error("the rendezvous does not take the ticket: {0}")]
    Ticket(String),
}

/// Why a call came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The rendezvous said so.
    #[error(transparent)]
    Refused(Refusal),
    /// There was no line in time.
    #[error("the rendezvous was not reached in time: look whether it runs, and whether this machine reaches it")]
    Away,
    /// There is no line any longer.
    #[error("the line to the rendezvous is closed: {0}")]
    Over(Over),
    /// The task that keeps the line is gone.
    #[error("the line to the rendezvous is closed")]
    Closed,
}

/// A worker's line. Clones are of the same one; it closes when the last one is dropped, and the last [`Meeting`].
#[derive(Debug, Clone)]
pub struct Line {
    settings: Arc<Settings>,
    orders: mpsc::UnboundedSender<Order>,
    welcome: watch::Receiver<Option<Arc<Here>>>,
}

/// The line as it is.
#[derive(Debug)]
struct Here {
    welcome: Welcome,
    /// What the line was connected to.
    rendezvous: Reached,
}

/// A call without an answer.
#[derive(Debug)]
struct Call {
    peer: SpiffeId,
    about: String,
    hello: Option<Base64>,
    /// When its peer is not waited for any longer.
    until: Instant,
    answer: oneshot::Sender<Result<Meeting, CallError>>,
}

/// What handles want of the task.
#[derive(Debug)]
enum Order {
    Call(Call),
    Say(Said),
    /// It may be lost.
    Carry(Parcel),
}

impl Line {
    /// Begins to open a line, and says what is heard on it. It must be read: see [`Heard`].
    pub fn open(settings: Settings) -> (Self, mpsc::Receiver<Heard>) {
        let (orders, ordered) = mpsc::unbounded_channel();
        let (tell, heard) = mpsc::channel(HEARD);
        let (here, welcome) = watch::channel(None);
        let own = orders.downgrade();
        let settings = Arc::new(settings);
        tokio::spawn(task::keep(settings.clone(), ordered, own, tell, here));
        (Self { settings, orders, welcome }, heard)
    }

    /// Asks to be introduced to a worker of the job, and waits for so long if it is not here yet. `about`: what for; the
    /// peer is told. One of the two calls: if both do there are two sessions.
    ///
    /// # Errors
    /// When the peer does not come in time, when the rendezvous refuses, and when it is not reached.
    pub async fn call(&self, peer: SpiffeId, about: &str, within: Duration) -> Result<Meeting, CallError> {
        self.ask(peer, about, within, None).await
    }

    /// The same for a connection as one of this pair, with TLS's hello in the call: so the connection is there a round trip to
    /// the rendezvous sooner.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn call_for(&self, pair: &Pair, about: &str, within: Duration) -> Result<Meeting, CallError> {
        // What cannot be made now cannot later, and is told then.
        let hello = Hello::new(pair).ok().filter(|hello| hello.flight().len() <= LONGEST_HELLO);
        let flight = hello.as_ref().map(|hello| Base64(hello.flight().clone()));
        let mut meeting = self.ask(pair.peer().clone(), about, within, flight).await?;
        meeting.hello = hello.map(Box::new);
        Ok(meeting)
    }

    async fn ask(
        &self,
        peer: SpiffeId,
        about: &str,
        within: Duration,
        hello: Option<Base64>,
    ) -> Result<Meeting, CallError> {
        let (answer, answered) = oneshot::channel();
        let call = Call { peer, about: about.to_owned(), hello, until: Instant::now() + within, answer };
        self.orders.send(Order::Call(call)).map_err(|_| CallError::Closed)?;
        answered.await.unwrap_or(Err(CallError::Closed))
    }

    /// Says something about the job's work, to the job's leader if nobody is named. [`Heard::Undelivered`] follows when that
    /// one has no line. What is longer than [`crate::message::MOST_OF_A_REPORT`] the rendezvous does not read: it ends the line.
    pub fn report(&self, to: Option<SpiffeId>, report: Report) {
        self.say(Said::Report { to, report });
    }

    /// Waits until the line is there. `None`: it is over.
    pub async fn welcome(&self) -> Option<Welcome> {
        Some(self.here().await?.welcome.clone())
    }

    /// Whom a driver asks how its ports are seen; waits until the line is there. `None`: it is over.
    pub async fn observers(&self) -> Option<Observers> {
        Some(self.here().await?.observers())
    }

    async fn here(&self) -> Option<Arc<Here>> {
        self.welcome.clone().wait_for(Option::is_some).await.ok()?.clone()
    }

    /// What is said to a line that is over goes nowhere.
    fn say(&self, said: Said) {
        let _ = self.orders.send(Order::Say(said));
    }
}

impl Here {
    /// Where an observer has no address of its own, it has the one by which the line was reached.
    fn observers(&self) -> Observers {
        let of = |transport| {
            let servers = self.welcome.observe.servers.iter();
            servers.filter(|one| one.transport == transport).map(|one| self.reached(one.addr)).collect()
        };
        let ask = Arc::new(self.asker());
        Observers { udp: of(crate::punch::Transport::Udp), tcp: of(crate::punch::Transport::Tcp), ask }
    }

    /// Those for UDP, and which of the four each of them is.
    fn servers(&self) -> Vec<(Server, SocketAddr)> {
        let udp = self.welcome.observe.servers.iter().filter(|one| one.transport == crate::punch::Transport::Udp);
        let server = |one: &Observer| Server { second_address: one.second_address, second_port: one.second_port };
        udp.map(|one| (server(one), self.reached(one.addr))).collect()
    }

    fn asker(&self) -> Asker {
        Asker::new(self.welcome.observe.token, &self.welcome.observe.key)
    }

    fn reached(&self, addr: SocketAddr) -> SocketAddr {
        let ip = if addr.ip().is_unspecified() { self.rendezvous.addr.ip() } else { addr.ip() };
        SocketAddr::new(ip, addr.port())
    }
}
