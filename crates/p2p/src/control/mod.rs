//! A worker's side of the rendezvous: its line, what comes of calls, and the relay.
//!
//! [`Line`] is a handle; a task keeps the line itself, and opens it anew when it breaks, with a pause that grows. What was
//! said meanwhile is said then, and calls that wait are made again. Connections that are there do not notice.

mod backoff;
mod connect;
mod dial;
mod duplex_socket;
mod peer_session;
mod relay_stream;
mod rendezvous_url;
mod resumable_relay;
mod sequence;
mod task;
mod trusted_roots;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::punch::nat::ObserverSocket;
use nearpath_types::SpiffeId;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use rustls::ClientConfig;
use tokio::sync::{mpsc, oneshot, watch};

pub use dial::DialError;
use dial::ReachedServer;
pub use peer_session::PeerSession;
pub use relay_stream::RelayStream;
pub use rendezvous_url::{InvalidRendezvousUrl, RendezvousUrl};
pub use trusted_roots::client_config;

use crate::driver::ObserverSet;
use crate::handshake::ClientHello;
use crate::message::{
    Base64Bytes, CallRefusal, CloseReason, ControlWelcome, JobReport, LONGEST_HELLO,
    ObserverAddress, RelayedFrame, SignedToken, WorkerMessage,
};
use crate::reflexive_address::BindingClient;

/// What is heard and not read yet. When it is full the line is not read either, and the rendezvous ends it at last.
const EVENT_QUEUE_CAPACITY: usize = 1024;

/// Where the rendezvous is, and what lets one in.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// Where.
    pub url: RendezvousUrl,
    /// The worker's ticket.
    pub ticket: SignedToken,
    /// For `wss`: whose certificates are believed ([`client_config`]). It is not asked for `ws`.
    pub tls: Option<Arc<ClientConfig>>,
}

/// What happens on a line without having been asked for.
#[derive(Debug)]
pub enum ControlEvent {
    /// The line is there, (again).
    Connected(ControlWelcome),
    /// A worker of the job calls.
    IncomingCall(PeerSession),
    /// A worker of the job says this about its work.
    Report {
        /// Who.
        from: SpiffeId,
        /// What.
        report: JobReport,
    },
    /// A report was not passed on: who was meant has no line.
    Undelivered {
        /// Who was meant; nobody named: the job's leader.
        to: Option<SpiffeId>,
    },
    /// The line is gone, and is opened anew.
    Disconnected {
        /// For people.
        why: String,
    },
    /// The line is gone for good: nothing is heard after this.
    Ended(ControlEnd),
}

/// Why a line is not opened again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlEnd {
    /// The rendezvous said so.
    #[error(transparent)]
    ClosedByRendezvous(CloseReason),
    /// The rendezvous does not take the ticket.
    #[error("the rendezvous does not take the ticket: {0}")]
    TicketRefused(String),
}

/// Why a call came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerCallError {
    /// The rendezvous said so.
    #[error(transparent)]
    Refused(CallRefusal),
    /// There was no line in time.
    #[error(
        "the rendezvous was not reached in time: look whether it runs, and whether this machine reaches it"
    )]
    Unreachable,
    /// There is no line any longer.
    #[error("the line to the rendezvous is closed: {0}")]
    Ended(ControlEnd),
    /// The task that keeps the line is gone.
    #[error("the line to the rendezvous is closed")]
    Closed,
}

/// A worker's line. Clones are of the same one; it closes when the last one is dropped, and the last [`PeerSession`].
#[derive(Debug, Clone)]
pub struct ControlConnection {
    settings: Arc<ControlSettings>,
    commands: mpsc::UnboundedSender<ControlCommand>,
    welcome: watch::Receiver<Option<Arc<ConnectedState>>>,
}

/// The line as it is.
#[derive(Debug)]
struct ConnectedState {
    welcome: ControlWelcome,
    /// What the line was connected to.
    server: ReachedServer,
}

/// A call without an answer.
#[derive(Debug)]
struct UnansweredCall {
    peer: SpiffeId,
    about: String,
    hello: Option<Base64Bytes>,
    /// When its peer is not waited for any longer.
    deadline: Instant,
    result_sender: oneshot::Sender<Result<PeerSession, PeerCallError>>,
}

/// What handles want of the task.
#[derive(Debug)]
enum ControlCommand {
    Call(UnansweredCall),
    Send(WorkerMessage),
    /// It may be lost.
    Relay(RelayedFrame),
}

impl ControlConnection {
    /// Begins to open a line, and says what is heard on it. It must be read: see [`Heard`].
    pub fn open(settings: ControlSettings) -> (Self, mpsc::Receiver<ControlEvent>) {
        let (commands, received_commands) = mpsc::unbounded_channel();
        let (event_sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let (connected, welcome) = watch::channel(None);
        let weak_commands = commands.downgrade();
        let settings = Arc::new(settings);
        tokio::spawn(task::run_control_task(
            settings.clone(),
            received_commands,
            weak_commands,
            event_sender,
            connected,
        ));
        (
            Self {
                settings,
                commands,
                welcome,
            },
            events,
        )
    }

    /// Asks to be introduced to a worker of the job, and waits for so long if it is not here yet. `about`: what for; the
    /// peer is told. One of the two calls: if both do there are two sessions.
    ///
    /// # Errors
    /// When the peer does not come in time, when the rendezvous refuses, and when it is not reached.
    pub async fn call(
        &self,
        peer: SpiffeId,
        about: &str,
        within: Duration,
    ) -> Result<PeerSession, PeerCallError> {
        self.request_call(peer, about, within, None).await
    }

    /// The same for a connection as one of this pair, with TLS's hello in the call: so the connection is there a round trip to
    /// the rendezvous sooner.
    ///
    /// # Errors
    /// See [`Self::call_message`].
    pub async fn call_for(
        &self,
        pair: &PeerTlsConfig,
        about: &str,
        within: Duration,
    ) -> Result<PeerSession, PeerCallError> {
        // What cannot be made now cannot later, and is told then.
        let hello = ClientHello::new(pair)
            .ok()
            .filter(|hello| hello.flight().len() <= LONGEST_HELLO);
        let flight = hello
            .as_ref()
            .map(|hello| Base64Bytes(hello.flight().clone()));
        let mut session = self
            .request_call(pair.peer().clone(), about, within, flight)
            .await?;
        session.hello = hello.map(Box::new);
        Ok(session)
    }

    async fn request_call(
        &self,
        peer: SpiffeId,
        about: &str,
        within: Duration,
        hello: Option<Base64Bytes>,
    ) -> Result<PeerSession, PeerCallError> {
        let (result_sender, result) = oneshot::channel();
        let call = UnansweredCall {
            peer,
            about: about.to_owned(),
            hello,
            deadline: Instant::now() + within,
            result_sender,
        };
        self.commands
            .send(ControlCommand::Call(call))
            .map_err(|_| PeerCallError::Closed)?;
        result.await.unwrap_or(Err(PeerCallError::Closed))
    }

    /// Says something about the job's work, to the job's leader if nobody is named. [`Heard::SendFailure`] follows when that
    /// one has no line. What is longer than [`crate::message::MAX_REPORT_BYTES`] the rendezvous does not read: it ends the line.
    pub fn send_report(&self, to: Option<SpiffeId>, report: JobReport) {
        self.send_message(WorkerMessage::Report { to, report });
    }

    /// Waits until the line is there. `NoConnection`: it is over.
    pub async fn welcome(&self) -> Option<ControlWelcome> {
        Some(self.connected().await?.welcome.clone())
    }

    /// Whom a driver asks how its ports are seen; waits until the line is there. `NoConnection`: it is over.
    pub async fn observers(&self) -> Option<ObserverSet> {
        Some(self.connected().await?.observers())
    }

    async fn connected(&self) -> Option<Arc<ConnectedState>> {
        self.welcome
            .clone()
            .wait_for(Option::is_some)
            .await
            .ok()?
            .clone()
    }

    /// What is said to a line that is over goes nowhere.
    fn send_message(&self, message: WorkerMessage) {
        let _ = self.commands.send(ControlCommand::Send(message));
    }
}

impl ConnectedState {
    /// Where an observer has no address of its own, it has the one by which the line was reached.
    fn observers(&self) -> ObserverSet {
        let addrs_of = |transport| {
            let servers = self.welcome.observe.servers.iter();
            servers
                .filter(|observer| observer.transport == transport)
                .map(|one| self.resolve_addr(one.addr))
                .collect()
        };
        let protocol = Arc::new(self.binding_client());
        ObserverSet {
            udp: addrs_of(crate::punch::Transport::Udp),
            tcp: addrs_of(crate::punch::Transport::Tcp),
            protocol,
        }
    }

    /// Those for UDP, and which of the four each of them is.
    fn udp_observers(&self) -> Vec<(ObserverSocket, SocketAddr)> {
        let udp = self
            .welcome
            .observe
            .servers
            .iter()
            .filter(|observer| observer.transport == crate::punch::Transport::Udp);
        let socket_of = |observer: &ObserverAddress| ObserverSocket {
            second_address: observer.second_address,
            second_port: observer.second_port,
        };
        udp.map(|observer| (socket_of(observer), self.resolve_addr(observer.addr)))
            .collect()
    }

    fn binding_client(&self) -> BindingClient {
        BindingClient::new(self.welcome.observe.token, &self.welcome.observe.key)
    }

    fn resolve_addr(&self, addr: SocketAddr) -> SocketAddr {
        let ip = if addr.ip().is_unspecified() {
            self.server.addr.ip()
        } else {
            addr.ip()
        };
        SocketAddr::new(ip, addr.port())
    }
}
