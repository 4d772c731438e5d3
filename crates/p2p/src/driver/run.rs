//! The loop that runs an agent.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::punch::agent::{Message, State};
use crate::punch::candidate::Key;
use crate::punch::session::Session;
use crate::punch::{Action, Agent, Event, Transport};
use nearpath_wire::pair::Pair;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::local_ports::Ports;
use super::observers::Observers;
use super::outcome::{Verdict, Why};
use super::settings::Settings;
use super::sockets::Rim;
use crate::migrate::{Arrivals, Direct};
use crate::quic;

/// Probes that wait while QUIC has the socket.
const PASSED: usize = 32;
/// Once there is a connection, the machine still answers for so long: the peer may not know yet.
const AFTERCARE: Duration = Duration::from_secs(5);

/// What passes between the two agents, through the rendezvous: in order, and all of it.
#[derive(Debug)]
pub struct Line {
    /// For the peer.
    pub tell: mpsc::UnboundedSender<Message>,
    /// From the peer.
    pub told: mpsc::UnboundedReceiver<Message>,
}

/// Two workers that were introduced to each other, as one of them sees it.
#[derive(Debug)]
pub struct Introduction {
    /// What the rendezvous granted.
    pub session: Session,
    /// To the peer's agent.
    pub line: Line,
    /// Who tells how the ports are seen.
    pub observers: Observers,
    /// How the two prove who they are.
    pub pair: Arc<Pair>,
}

/// Runs one session's agent. It ends when the way that takes its arrivals needs no more of them.
#[derive(Debug)]
pub struct Driver {
    agent: Agent,
    rim: Rim,
    line: Line,
    pair: Arc<Pair>,
    arrivals: mpsc::UnboundedSender<io::Result<Box<dyn Direct>>>,
    verdict: watch::Sender<Verdict>,
    handshakes: JoinSet<(Key, io::Result<quic::Stream>)>,
    /// The pair that was nominated last.
    used: Option<Key>,
    begun: Instant,
    wake: Option<Instant>,
    /// When there is nothing left to do.
    until: Option<Instant>,
    offered: bool,
    peer_gave_up: bool,
    /// The relay is allowed, and there is no port to look from.
    hopeless: bool,
}

/// What comes of a driver.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) arrivals: mpsc::UnboundedSender<io::Result<Box<dyn Direct>>>,
    pub(super) verdict: watch::Sender<Verdict>,
}

impl Outlet {
    pub(super) fn new(verdict: Verdict) -> (Self, Arrivals, watch::Receiver<Verdict>) {
        let (arrivals, arriving) = mpsc::unbounded_channel();
        let (verdict, known) = watch::channel(verdict);
        (Self { arrivals, verdict }, arriving, known)
    }
}

/// What comes next.
enum Next {
    Event(Event),
    Handshake(Key, io::Result<quic::Stream>),
    End,
}

impl Driver {
    /// A driver on these ports; what comes of it; and what is known of it.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn new(
        ports: Ports,
        introduction: Introduction,
        settings: Settings,
    ) -> io::Result<(Self, Arrivals, watch::Receiver<Verdict>)> {
        let (outlet, arrivals, verdict) = Outlet::new(Verdict::Looking);
        Ok((Self::with(outlet, ports, introduction, settings)?, arrivals, verdict))
    }

    pub(super) fn with(
        outlet: Outlet,
        ports: Ports,
        introduction: Introduction,
        settings: Settings,
    ) -> io::Result<Self> {
        let now = Instant::now();
        let hopeless = settings.agent.relay && ports.is_empty();
        let Introduction { session, line, observers, pair } = introduction;
        let rim = Rim::new(ports, &observers, settings.loopback, now)?;
        let agent = Agent::new(session, settings.agent, nonce()?, now);
        let (wake, until, used, handshakes) = (None, None, None, JoinSet::new());
        let (offered, peer_gave_up) = (false, false);
        let Outlet { arrivals, verdict } = outlet;
        Ok(Self {
            agent,
            rim,
            line,
            pair,
            arrivals,
            verdict,
            handshakes,
            used,
            begun: now,
            wake,
            until,
            offered,
            peer_gave_up,
            hopeless,
        })
    }

    /// Runs to the end, when the peer has said this before.
    pub(super) async fn go_on(mut self, said: Message) {
        self.take(Event::Told(said)).await;
        self.run().await;
    }

    /// Runs to the end.
    pub async fn run(mut self) {
        if self.hopeless {
            let _ = self.line.tell.send(Message::Relay); // the peer need not look either; if it does not hear it, it looks in vain
            self.verdict.send_replace(Verdict::Relayed(Why::NoPort));
            return;
        }
        loop {
            match self.next().await {
                Next::Event(event) => self.take(event).await,
                Next::Handshake(key, made) => self.shaken(key, made),
                Next::End => return,
            }
        }
    }

    async fn take(&mut self, event: Event) {
        let now = Instant::now();
        self.wake = self.wake.filter(|at| *at > now);
        self.rim.ask(now);
        self.note(&event);
        for action in self.agent.take(event, now) {
            self.act(action).await;
        }
        self.conclude();
    }

    async fn next(&mut self) -> Next {
        // The peer may be through with a handshake, and move: it ends by itself.
        let until = self.until.filter(|_| self.handshakes.is_empty());
        let at = [self.wake, self.rim.next_ask(), until].into_iter().flatten().min();
        let over = until.is_some_and(|until| until <= Instant::now());
        if over {
            return Next::End;
        }
        let timer = async move {
            match at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.arrivals.closed() => Next::End,
            Some(message) = self.line.told.recv() => Next::Event(Event::Told(message)),
            Some(Ok((key, made))) = self.handshakes.join_next() => Next::Handshake(key, made),
            event = poll_fn(|cx| self.rim.poll(cx)) => Next::Event(event),
            () = timer => Next::Event(Event::Tick),
        }
    }

    async fn act(&mut self, action: Action) {
        match action {
            // Without a line the peer hears nothing more of us; what there is goes on.
            Action::Tell(message) => drop(self.line.tell.send(message)),
            Action::Send { key, bytes } => self.rim.datagrams.send(key.base, key.remote, &bytes),
            Action::Listen { base } => {
                if let Err(error) = self.rim.streams.listen(base) {
                    tracing::debug!(%base, %error, "connections are not accepted");
                }
            }
            Action::Dial { key, patience } => self.rim.streams.dial(key, patience),
            Action::Write { key, bytes } => self.rim.streams.write(key, &bytes),
            Action::Close(key) => self.rim.streams.close(key),
            Action::Use(key) => self.use_pair(key).await,
            Action::UseRelay => (), // the way is there already
            Action::Wake { at } => self.wake = Some(at),
            Action::GiveUp(reason) => {
                let _ = self.arrivals.send(Err(io::Error::new(io::ErrorKind::NotConnected, reason)));
                self.verdict.send_replace(Verdict::Ended(reason));
                self.until = Some(Instant::now());
            }
        }
    }

    async fn use_pair(&mut self, key: Key) {
        self.used = Some(key);
        if matches!(*self.verdict.borrow(), Verdict::Direct { .. }) {
            // The leader has given up the one that this side has: it moves to another one, or not at all.
            let another = io::Error::new(io::ErrorKind::ConnectionAborted, "the leader has nominated another pair");
            let _ = self.arrivals.send(Err(another)); // nobody there: the next turn ends
        }
        match key.transport {
            Transport::Tcp => match self.rim.streams.give(key).await {
                Ok(stream) => self.arrived(key, Box::new(stream)),
                Err(error) => self.unusable(error),
            },
            Transport::Udp => {
                let (probes, passed) = mpsc::channel(PASSED);
                let (role, pair) = (self.agent.role(), Arc::clone(&self.pair));
                match self.rim.datagrams.give(key.base, passed) {
                    Ok(socket) => {
                        let made = quic::open(socket, probes, key.remote, role, pair);
                        self.handshakes.spawn(async move { (key, made.await) });
                    }
                    Err(error) => self.unusable(error),
                }
            }
        }
    }

    fn shaken(&mut self, key: Key, made: io::Result<quic::Stream>) {
        match made {
            _ if self.used != Some(key) => (), // the leader has given it up
            Ok(stream) => self.arrived(key, Box::new(stream)),
            Err(error) => self.unusable(error),
        }
    }

    fn arrived(&mut self, key: Key, direct: Box<dyn Direct>) {
        let (now, round_trip) = (Instant::now(), self.agent.round_trip(&key));
        let (transport, remote, after) = (key.transport, key.remote, now - self.begun);
        self.verdict.send_replace(Verdict::Direct { transport, remote, round_trip, after });
        let _ = self.arrivals.send(Ok(direct)); // nobody there: the next turn ends
        self.until = Some(now + AFTERCARE);
    }

    fn unusable(&mut self, error: io::Error) {
        tracing::debug!(%error, "a direct way was found and cannot be used");
        let _ = self.arrivals.send(Err(error));
        self.verdict.send_replace(Verdict::Relayed(Why::Unusable));
        self.until = Some(Instant::now() + AFTERCARE);
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Told(Message::Offer(_)) => self.offered = true,
            Event::Told(Message::Relay) => self.peer_gave_up = true,
            _ => (),
        }
    }

    /// Once the machine has settled for the relay, there is nothing more to do.
    fn conclude(&mut self) {
        if self.agent.state() != State::Relayed {
            return;
        }
        let why = match () {
            () if self.peer_gave_up => Why::PeerGaveUp,
            () if !self.offered => Why::NoOffer,
            () => Why::NoPath,
        };
        self.verdict.send_replace(Verdict::Relayed(why));
        self.until = Some(Instant::now());
    }
}

fn nonce() -> io::Result<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(u64::from_le_bytes(bytes))
}
