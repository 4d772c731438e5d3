//! Worker's side of the rendezvous: control connection, calls and relay.
//!
//! [`ControlConnection`] is a handle. A task keeps the connection and reopens it when it breaks,
//! with a growing delay. Messages queued meanwhile are sent then, and waiting calls are repeated.
//! Existing links do not notice.

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
    Base64Bytes, CallRefusal, CloseReason, ControlWelcome, JobReport, MAX_HELLO_BYTES,
    ObserverAddress, RelayedFrame, SignedToken, WorkerMessage,
};
use crate::reflexive_address::BindingClient;

/// Events that may wait for the reader. When the queue is full the connection is not read, and the
/// rendezvous closes it in the end.
const EVENT_QUEUE_CAPACITY: usize = 1024;

/// Address and credentials of the rendezvous.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// Address of the rendezvous.
    pub url: RendezvousUrl,
    /// Ticket of the worker.
    pub ticket: SignedToken,
    /// TLS settings for `wss`, with the trusted roots ([`client_config`]). Not used for `ws`.
    pub tls: Option<Arc<ClientConfig>>,
}

/// Event of a control connection.
#[derive(Debug)]
pub enum ControlEvent {
    /// Connection is open, first or again.
    Connected(ControlWelcome),
    /// Worker of the job calls.
    IncomingCall(PeerSession),
    /// Worker of the job reports.
    Report {
        /// Reporting worker.
        from: SpiffeId,
        /// Report about its work.
        report: JobReport,
    },
    /// Report was not forwarded: its recipient has no control connection.
    Undelivered {
        /// Intended recipient; `None`: the job's leader.
        to: Option<SpiffeId>,
    },
    /// Connection is lost, and will be reopened.
    Disconnected {
        /// Cause, for people.
        why: String,
    },
    /// Connection has ended for good: the last event.
    Ended(ControlEnd),
}

/// Reason why a connection is not reopened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlEnd {
    /// Rendezvous closed it.
    #[error(transparent)]
    ClosedByRendezvous(CloseReason),
    /// Rendezvous refused the ticket.
    #[error("the rendezvous refuses the ticket: {0}")]
    TicketRefused(String),
    /// Its first certificate is not trusted, or for another name. After a connection that worked, a
    /// wrong certificate may pass.
    #[error("{0}; check the name in the address, and the authority that is trusted")]
    Untrusted(String),
}

/// Reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerCallError {
    /// Rendezvous refused it.
    #[error(transparent)]
    Refused(CallRefusal),
    /// No connection in time.
    #[error(
        "the rendezvous was not reached in time: check that it runs, and that this machine reaches it"
    )]
    Unreachable,
    /// Connection has ended.
    #[error("the connection to the rendezvous is closed: {0}")]
    Ended(ControlEnd),
    /// Task of the connection has ended.
    #[error("the connection to the rendezvous is closed")]
    Closed,
}

/// Control connection of a worker.
///
/// Clones share one connection. It closes when the last clone and the last [`PeerSession`] are
/// dropped.
#[derive(Debug, Clone)]
pub struct ControlConnection {
    settings: Arc<ControlSettings>,
    commands: mpsc::UnboundedSender<ControlCommand>,
    welcome: watch::Receiver<Option<Arc<ConnectedState>>>,
}

/// State of an open connection.
#[derive(Debug)]
struct ConnectedState {
    welcome: ControlWelcome,
    /// Server of the connection.
    server: ReachedServer,
}

/// Call without a response.
#[derive(Debug)]
struct UnansweredCall {
    peer: SpiffeId,
    about: String,
    hello: Option<Base64Bytes>,
    /// Time after which the peer is no longer awaited.
    deadline: Instant,
    result_sender: oneshot::Sender<Result<PeerSession, PeerCallError>>,
}

/// Command of a handle for the task.
#[derive(Debug)]
enum ControlCommand {
    Call(UnansweredCall),
    Send(WorkerMessage),
    /// Frame for the peer; it may be lost.
    Relay(RelayedFrame),
}

impl ControlConnection {
    /// Starts a connection and returns its events, which must be read: see [`ControlEvent`].
    pub fn open(settings: ControlSettings) -> (Self, mpsc::Receiver<ControlEvent>) {
        let (commands, received_commands) = mpsc::unbounded_channel();
        let (event_sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let (connected, welcome) = watch::channel(None);
        // Weak: sessions that the task creates must not keep the connection open.
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

    /// Requests an introduction to a worker of the job, and waits if it is absent. `about`:
    /// subject, for the peer.
    ///
    /// Only one of the two calls: two calls make two sessions.
    ///
    /// # Errors
    /// Fails when the peer does not connect in time, when the rendezvous refuses, and when it is
    /// not reached.
    pub async fn call(
        &self,
        peer: SpiffeId,
        about: &str,
        within: Duration,
    ) -> Result<PeerSession, PeerCallError> {
        self.request_call(peer, about, within, None).await
    }

    /// Calls for a connection of this pair, with the TLS hello in the call.
    ///
    /// The connection is then ready a round trip to the rendezvous sooner (decision 49).
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn call_for(
        &self,
        pair: &PeerTlsConfig,
        about: &str,
        within: Duration,
    ) -> Result<PeerSession, PeerCallError> {
        // A hello that cannot be made now fails again later, where the error is reported.
        // Above the limit the rendezvous would refuse the whole call.
        let hello = ClientHello::new(pair)
            .ok()
            .filter(|hello| hello.flight().len() <= MAX_HELLO_BYTES);
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

    /// Reports about the job's work, to the job's leader if there is no recipient.
    ///
    /// [`ControlEvent::Undelivered`] follows when the recipient has no connection. The rendezvous
    /// closes the connection on a report longer than [`crate::message::MAX_REPORT_BYTES`].
    pub fn send_report(&self, to: Option<SpiffeId>, report: JobReport) {
        self.send_message(WorkerMessage::Report { to, report });
    }

    /// Waits until the connection is open. `None`: it has ended.
    pub async fn welcome(&self) -> Option<ControlWelcome> {
        Some(self.connected().await?.welcome.clone())
    }

    /// Returns the observers of the rendezvous; waits until the connection is open. `None`: it has
    /// ended.
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

    /// Sends a message; dropped when the connection has ended.
    fn send_message(&self, message: WorkerMessage) {
        let _ = self.commands.send(ControlCommand::Send(message));
    }
}

impl ConnectedState {
    /// Returns the observers. One without an address has that of the rendezvous.
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

    /// Returns the observers for UDP, and which of the four sockets each is.
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
        // An unspecified address stands for the rendezvous' own (`contract/rendezvous.md`,
        // "Observing").
        let ip = if addr.ip().is_unspecified() {
            self.server.addr.ip()
        } else {
            addr.ip()
        };
        SocketAddr::new(ip, addr.port())
    }
}
