//! Loop that runs a punching agent.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::punch::agent::{AgentState, PunchMessage};
use crate::punch::candidate::PairKey;
use crate::punch::session::PunchSession;
use crate::punch::{AgentAction, AgentEvent, PunchAgent, Transport};
use nearpath_wire::p2p_tls::PeerTlsConfig;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::local_ports::LocalPorts;
use super::observers::ObserverSet;
use super::outcome::{RelayReason, SearchOutcome};
use super::settings::DriverSettings;
use super::sockets::DriverSockets;
use crate::migrate::{DirectConnection, DirectConnections};
use crate::quic;

/// Probes that may wait while QUIC owns the socket.
const MAX_QUEUED_PROBES: usize = 32;
/// Time for which the agent still responds after a connection exists: the peer may not have it yet.
const SETTLE_GRACE: Duration = Duration::from_secs(5);

/// Messages between the two agents, through the rendezvous: in order and complete.
#[derive(Debug)]
pub struct SignalingChannel {
    /// Messages for the peer.
    pub outgoing: mpsc::UnboundedSender<PunchMessage>,
    /// Messages of the peer.
    pub incoming: mpsc::UnboundedReceiver<PunchMessage>,
}

/// Two introduced workers, as one of them sees it.
#[derive(Debug)]
pub struct PeerIntroduction {
    /// Session that the rendezvous granted.
    pub session: PunchSession,
    /// Messages to and from the peer's agent.
    pub signaling: SignalingChannel,
    /// Observers that report mapped addresses.
    pub observers: ObserverSet,
    /// Certificates that prove both identities.
    pub pair: Arc<PeerTlsConfig>,
}

/// Runs one session's agent. It ends when the stream needs no more of its connections.
#[derive(Debug)]
pub struct PunchDriver {
    agent: PunchAgent,
    sockets: DriverSockets,
    signaling: SignalingChannel,
    pair: Arc<PeerTlsConfig>,
    connections: mpsc::UnboundedSender<io::Result<Box<dyn DirectConnection>>>,
    outcome: watch::Sender<SearchOutcome>,
    handshakes: JoinSet<(PairKey, io::Result<quic::QuicDirectStream>)>,
    /// Pair that was nominated last.
    nominated: Option<PairKey>,
    started_at: Instant,
    wake_at: Option<Instant>,
    /// Time after which nothing is left to do.
    stop_at: Option<Instant>,
    peer_offered: bool,
    peer_gave_up: bool,
    /// True if the relay is allowed and there is no port for a search.
    has_no_port: bool,
}

/// Results of a driver.
#[derive(Debug)]
pub(super) struct DriverOutputs {
    pub(super) connections: mpsc::UnboundedSender<io::Result<Box<dyn DirectConnection>>>,
    pub(super) outcome: watch::Sender<SearchOutcome>,
}

impl DriverOutputs {
    pub(super) fn new(
        outcome: SearchOutcome,
    ) -> (Self, DirectConnections, watch::Receiver<SearchOutcome>) {
        let (connections, received_connections) = mpsc::unbounded_channel();
        let (outcome, outcome_receiver) = watch::channel(outcome);
        (
            Self {
                connections,
                outcome,
            },
            received_connections,
            outcome_receiver,
        )
    }
}

/// Next event of the loop.
enum DriverStep {
    Event(AgentEvent),
    Handshake(PairKey, io::Result<quic::QuicDirectStream>),
    End,
}

impl PunchDriver {
    /// Creates a driver on these ports, with its connections and its outcome.
    ///
    /// # Errors
    /// Fails when the process has too many open files.
    pub fn new(
        ports: LocalPorts,
        introduction: PeerIntroduction,
        settings: DriverSettings,
    ) -> io::Result<(Self, DirectConnections, watch::Receiver<SearchOutcome>)> {
        let (outputs, connections, outcome) = DriverOutputs::new(SearchOutcome::Searching);
        Ok((
            Self::with(outputs, ports, introduction, settings)?,
            connections,
            outcome,
        ))
    }

    pub(super) fn with(
        outputs: DriverOutputs,
        ports: LocalPorts,
        introduction: PeerIntroduction,
        settings: DriverSettings,
    ) -> io::Result<Self> {
        let now = Instant::now();
        let has_no_port = settings.agent.allow_relay && ports.is_empty();
        let PeerIntroduction {
            session,
            signaling,
            observers,
            pair,
        } = introduction;
        let sockets = DriverSockets::new(ports, &observers, settings.loopback, now)?;
        let agent = PunchAgent::new(session, settings.agent, random_nonce()?, now);
        let (wake_at, stop_at, nominated, handshakes) = (None, None, None, JoinSet::new());
        let (peer_offered, peer_gave_up) = (false, false);
        let DriverOutputs {
            connections: arrivals,
            outcome: verdict,
        } = outputs;
        Ok(Self {
            agent,
            sockets,
            signaling,
            pair,
            connections: arrivals,
            outcome: verdict,
            handshakes,
            nominated,
            started_at: now,
            wake_at,
            stop_at,
            peer_offered,
            peer_gave_up,
            has_no_port,
        })
    }

    /// Runs to the end, after a message of the peer that came before the driver existed.
    pub(super) async fn run_after_message(mut self, message: PunchMessage) {
        self.handle_event(AgentEvent::PeerMessage(message)).await;
        self.run().await;
    }

    /// Runs to the end.
    pub async fn run(mut self) {
        if self.has_no_port {
            // Spares the peer its search; without this message it searches in vain.
            let _ = self.signaling.outgoing.send(PunchMessage::FallBack);
            self.outcome
                .send_replace(SearchOutcome::Relayed(RelayReason::NoPort));
            return;
        }
        loop {
            match self.next_step().await {
                DriverStep::Event(event) => self.handle_event(event).await,
                DriverStep::Handshake(key, made) => self.finish_handshake(key, made),
                DriverStep::End => return,
            }
        }
    }

    async fn handle_event(&mut self, event: AgentEvent) {
        let now = Instant::now();
        // A past wakeup is delivered by this event.
        self.wake_at = self.wake_at.filter(|at| *at > now);
        // Requests share the loop's wakeups: each event may be late for one.
        self.sockets.send_requests(now);
        self.note_message(&event);
        for action in self.agent.handle_event(event, now) {
            self.perform(action).await;
        }
        self.conclude_if_relayed();
    }

    async fn next_step(&mut self) -> DriverStep {
        // The peer may have completed a handshake and migrated: a pending one is never cut.
        let stop_at = self.stop_at.filter(|_| self.handshakes.is_empty());
        let at = [self.wake_at, self.sockets.next_request_at(), stop_at]
            .into_iter()
            .flatten()
            .min();
        let is_over = stop_at.is_some_and(|until| until <= Instant::now());
        if is_over {
            return DriverStep::End;
        }
        let timer = async move {
            match at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The stream has dropped its receiver: it is settled, or gone.
            () = self.connections.closed() => DriverStep::End,
            Some(message) = self.signaling.incoming.recv() => DriverStep::Event(AgentEvent::PeerMessage(message)),
            Some(Ok((key, made))) = self.handshakes.join_next() => DriverStep::Handshake(key, made),
            event = poll_fn(|cx| self.sockets.poll(cx)) => DriverStep::Event(event),
            () = timer => DriverStep::Event(AgentEvent::Tick),
        }
    }

    async fn perform(&mut self, action: AgentAction) {
        match action {
            // Without a control connection the peer gets nothing more; what exists continues.
            AgentAction::Signal(message) => drop(self.signaling.outgoing.send(message)),
            AgentAction::Send { key, bytes } => {
                self.sockets.datagrams.send(key.base, key.remote, &bytes)
            }
            AgentAction::SendOpening { key, hop_limit } => self
                .sockets
                .datagrams
                .send_opening(key.base, key.remote, hop_limit),
            AgentAction::Listen { base } => {
                if let Err(error) = self.sockets.streams.listen(base) {
                    tracing::debug!(%base, %error, "driver: listen failed");
                }
            }
            AgentAction::Dial {
                key,
                timeout,
                opening,
            } => self.sockets.streams.dial(key, timeout, opening),
            AgentAction::Write { key, bytes } => self.sockets.streams.write(key, &bytes),
            AgentAction::Close(key) => self.sockets.streams.close(key),
            AgentAction::UsePair(key) => self.use_pair(key).await,
            AgentAction::UseRelay => (), // the stream began on the relay
            AgentAction::Wake { at } => self.wake_at = Some(at),
            AgentAction::GiveUp(reason) => {
                let _ = self
                    .connections
                    .send(Err(io::Error::new(io::ErrorKind::NotConnected, reason)));
                self.outcome.send_replace(SearchOutcome::Failed(reason));
                self.stop_at = Some(Instant::now());
            }
        }
    }

    async fn use_pair(&mut self, key: PairKey) {
        self.nominated = Some(key);
        if matches!(*self.outcome.borrow(), SearchOutcome::Direct { .. }) {
            // The leader has replaced this side's pair: the stream migrates to the new one, or not
            // at all.
            let another = io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the leader has nominated another pair",
            );
            // Without a receiver the next step ends the loop.
            let _ = self.connections.send(Err(another));
        }
        match key.transport {
            // TCP: after the last probe the connection belongs to TLS, from its first byte.
            Transport::Tcp => match self.sockets.streams.take_stream(key).await {
                Ok(stream) => self.publish_direct(key, Box::new(stream)),
                Err(error) => self.report_unusable(error),
            },
            Transport::Udp => {
                // UDP: QUIC takes over the socket's reads; probes come back through the channel.
                let (probes, diverted) = mpsc::channel(MAX_QUEUED_PROBES);
                // QUIC follows the session's roles, not those of TLS: the pair was punched for
                // them.
                let (role, pair) = (self.agent.role(), Arc::clone(&self.pair));
                match self.sockets.datagrams.hand_over(key.base, diverted) {
                    Ok(socket) => {
                        let result = quic::open_stream(socket, probes, key.remote, role, pair);
                        self.handshakes.spawn(async move { (key, result.await) });
                    }
                    Err(error) => self.report_unusable(error),
                }
            }
        }
    }

    fn finish_handshake(&mut self, key: PairKey, result: io::Result<quic::QuicDirectStream>) {
        match result {
            _ if self.nominated != Some(key) => (), // the leader has replaced this pair
            Ok(stream) => self.publish_direct(key, Box::new(stream)),
            Err(error) => self.report_unusable(error),
        }
    }

    fn publish_direct(&mut self, key: PairKey, direct: Box<dyn DirectConnection>) {
        let (now, round_trip) = (Instant::now(), self.agent.round_trip(&key));
        let (transport, remote, elapsed) = (key.transport, key.remote, now - self.started_at);
        self.outcome.send_replace(SearchOutcome::Direct {
            transport,
            remote,
            round_trip,
            elapsed,
        });
        let _ = self.connections.send(Ok(direct)); // without a receiver the next step ends the loop
        self.stop_at = Some(now + SETTLE_GRACE);
    }

    fn report_unusable(&mut self, error: io::Error) {
        tracing::debug!(%error, "driver: direct connection failed");
        let _ = self.connections.send(Err(error));
        self.outcome
            .send_replace(SearchOutcome::Relayed(RelayReason::Unusable));
        self.stop_at = Some(Instant::now() + SETTLE_GRACE);
    }

    fn note_message(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::PeerMessage(PunchMessage::Offer(_)) => self.peer_offered = true,
            AgentEvent::PeerMessage(PunchMessage::FallBack) => self.peer_gave_up = true,
            _ => (),
        }
    }

    /// Ends the loop once the agent has fallen back to the relay.
    fn conclude_if_relayed(&mut self) {
        if self.agent.state() != AgentState::Relayed {
            return;
        }
        let reason = match () {
            () if self.peer_gave_up => RelayReason::PeerGaveUp,
            () if !self.peer_offered => RelayReason::NoOffer,
            () => RelayReason::NoPath,
        };
        self.outcome.send_replace(SearchOutcome::Relayed(reason));
        self.stop_at = Some(Instant::now());
    }
}

fn random_nonce() -> io::Result<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(u64::from_le_bytes(bytes))
}
