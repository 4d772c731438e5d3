//! Direct calls to functions of other domains and machines: watchdog to watchdog, over QUIC.
//!
//! The node says whom this instance may call so ([`QuicPeers::tell`]), with the address and the name of each instance that is ready. There is
//! nothing behind it before the node has said so for the first time. A session with each instance is made beforehand
//! ([`minting`]), so that the first call goes in the first packets; a connection, too, where calls were made lately. Who is called is
//! chosen as the gateway does ([`peer_selection`]). What cannot be called directly goes to the gateway, which queues and wakes.

mod call_counters;
mod peer;
mod peer_selection;
mod session_minting;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::frames::{self, CallTally, HandshakeMessage};
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_types::{FunctionId, InstanceLocality};
use nearpath_wire::quic::config::TlsConfigError;
use nearpath_wire::quic::{CallerConfig, CallerConnection, Dialer};
use nearpath_wire::zero_rtt::{CallerSessions, Provision};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

pub(crate) use call_counters::CountedCall;
use call_counters::{CalleeCounters, CounterSignals};
use peer::QuicPeer;
use peer_selection::pick_peer;
use session_minting::SessionMinter;

/// Connections are opened ahead of calls to whom was called so lately.
const RECENT_CALL_AGE: Duration = Duration::from_secs(60);
/// Counters are told at most so often.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The edges, once there is one. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct QuicPeers(Rc<OnceCell<Rc<PeersState>>>);

/// A function that can be called directly.
#[derive(Debug)]
pub(crate) struct QuicCallee {
    zero_rtt: ZeroRttPolicy,
    peers: Vec<Rc<QuicPeer>>,
    /// Those that finish what they have.
    leaving: Vec<Rc<QuicPeer>>,
    counters: Arc<CalleeCounters>,
    last_used: Cell<Option<Instant>>,
}

#[derive(Debug)]
struct PeersState {
    /// By each name that the tenant's code may call it.
    callees: RefCell<HashMap<FunctionId, Rc<QuicCallee>>>,
    /// Those of callees that were told once, as long as they have something to tell.
    counters: RefCell<Vec<Arc<CalleeCounters>>>,
    signals: Arc<CounterSignals>,
    caller: RefCell<CallerConfig>,
    dialer: Rc<RefCell<Dialer>>,
    /// Those of this instance's certificate: with another come others, so none can be mistaken.
    sessions: RefCell<Arc<CallerSessions>>,
    minter: SessionMinter,
    to_node: mpsc::UnboundedSender<Vec<u8>>,
}

impl QuicPeers {
    /// Whether no callee was ever told.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    /// This instance, which is who `told` says, can call others from now on. `dialer` opens its connections; what is for the node goes
    /// to `to_node`.
    ///
    /// # Errors
    /// When its credentials are no good.
    pub(crate) fn start(
        &self,
        provision: &Provision,
        dialer: &dyn Fn(&CallerConfig) -> Dialer,
        to_node: mpsc::UnboundedSender<Vec<u8>>,
    ) -> Result<(), TlsConfigError> {
        let sessions = Arc::default();
        let caller =
            CallerConfig::new(&provision.credentials, provision.caller_trust()?, &sessions)?;
        let (callees, counters, signals) = Default::default();
        let (dialer, me, sessions) = (
            RefCell::new(dialer(&caller)),
            RefCell::new(caller),
            RefCell::new(sessions),
        );
        let (minter, dialer) = (SessionMinter::new(to_node.clone()), Rc::new(dialer));
        let state = Rc::new(PeersState {
            callees,
            counters,
            signals,
            caller: me,
            dialer,
            sessions,
            minter,
            to_node,
        });
        if self.0.set(Rc::clone(&state)).is_ok() {
            spawn_local(state.report_tallies());
        }
        Ok(())
    }

    /// Something of what it was told has changed: its certificate, unless that is the `same`, or whom it believes.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); all stays as it was.
    pub(crate) fn renew_credentials(
        &self,
        provision: &Provision,
        same_certificate: bool,
        dialer: &dyn Fn(&CallerConfig) -> Dialer,
    ) -> Result<(), TlsConfigError> {
        let Some(state) = self.0.get() else {
            return Ok(());
        };
        let trust = provision.caller_trust()?;
        let caller = match same_certificate {
            true => state.caller.borrow().with_trust(trust),
            false => {
                let sessions = Arc::default();
                let caller = CallerConfig::new(&provision.credentials, trust, &sessions)?;
                state.sessions.replace(sessions);
                caller
            }
        };
        state.dialer.replace(dialer(&caller));
        state.caller.replace(caller);
        state.all_peers().for_each(|peer| peer.drop_connection()); // a peer is looked at when a connection is made
        if !same_certificate {
            state.prepare_peers();
        }
        Ok(())
    }

    /// Whom it may call, instead of what was told before.
    pub(crate) fn update_callees(&self, all: Vec<frames::CalleeEntry>) {
        if let Some(state) = self.0.get() {
            state.set_callees(all);
        }
    }

    /// The node's half of a handshake.
    pub(crate) fn handle_handshake(&self, half: HandshakeMessage) {
        if let Some(state) = self.0.get() {
            state.minter.handle_handshake(half);
        }
    }

    /// Who is meant by this name, if it can be called directly now.
    pub(crate) fn find_callee(&self, name: &FunctionId) -> Option<Rc<QuicCallee>> {
        let callees = self.0.get()?.callees.borrow();
        callees
            .get(name)
            .filter(|callee| !callee.peers.is_empty())
            .cloned()
    }

    /// A connection to one of its instances. Nothing: none of the two that were tried answers, or all are left alone.
    pub(crate) async fn connect(&self, callee: &QuicCallee) -> Option<CallerConnection> {
        let state = self.0.get()?;
        callee.last_used.set(Some(Instant::now()));
        for _ in 0..2 {
            let load = |k: usize| callee.peers[k].open_calls(Instant::now());
            let peer = &callee.peers[pick_peer(callee.peers.len(), fastrand::u64(..), load)?];
            if let Ok(connection) = peer.connect(&state.dialer).await {
                return Some(connection);
            }
        }
        None
    }

    /// Returns when no call is under way; what was counted is on its way to the node then.
    pub(crate) async fn wait_idle(&self) {
        let Some(state) = self.0.get() else { return };
        loop {
            let ended = state.signals.ended.notified();
            if state
                .counters
                .borrow()
                .iter()
                .all(|counters| counters.is_idle())
            {
                return state.send_tally();
            }
            ended.await;
        }
    }
}

impl QuicCallee {
    pub(crate) fn zero_rtt(&self) -> ZeroRttPolicy {
        self.zero_rtt
    }

    /// Counts a call that begins.
    pub(crate) fn count_call(&self) -> CountedCall {
        self.counters.begin_call()
    }

    /// Returns whether all its instances run on this instance's machine.
    pub(crate) fn is_on_same_node(&self) -> bool {
        self.peers
            .iter()
            .all(|peer| peer.locality == InstanceLocality::SameNode)
    }

    fn was_used_recently(&self) -> bool {
        self.last_used
            .get()
            .is_some_and(|used| used.elapsed() < RECENT_CALL_AGE)
    }
}

impl PeersState {
    fn set_callees(self: &Rc<Self>, all: Vec<frames::CalleeEntry>) {
        let old = self.callees.take();
        let known_peers: HashMap<Rc<str>, Rc<QuicPeer>> = peers_of(&old)
            .map(|peer| (Rc::clone(&peer.name), peer))
            .collect();
        let mut new: HashMap<FunctionId, Rc<QuicCallee>> = HashMap::new();
        for entry in all {
            let callee = Rc::new(self.build_callee(&entry, old.get(&entry.function), &known_peers));
            let names = entry.aliases.into_iter().chain([entry.function]);
            names.for_each(|name| drop(new.insert(name, Rc::clone(&callee))));
        }
        let removed = known_peers
            .into_values()
            .filter(|peer| peers_of(&new).all(|other| other.name != peer.name));
        let sessions = self.sessions.borrow();
        removed.for_each(|peer| {
            sessions.forget_worker(&peer.name);
            peer.close();
        });
        *self.callees.borrow_mut() = new;
        self.prepare_peers();
    }

    fn build_callee(
        &self,
        entry: &frames::CalleeEntry,
        previous: Option<&Rc<QuicCallee>>,
        known_peers: &HashMap<Rc<str>, Rc<QuicPeer>>,
    ) -> QuicCallee {
        let same = |told: &frames::CalleePeer, peer: &Rc<QuicPeer>| peer.addr == told.addr;
        let peer = |told: &frames::CalleePeer| {
            let kept = known_peers
                .get(&*told.name)
                .filter(|peer| same(told, peer))
                .cloned();
            kept.unwrap_or_else(|| Rc::new(QuicPeer::from_entry(told)))
        };
        let of = |leaving| {
            entry
                .peers
                .iter()
                .filter(move |told| told.leaving == leaving)
                .map(peer)
                .collect()
        };
        QuicCallee {
            zero_rtt: entry.zero_rtt,
            peers: of(false),
            leaving: of(true),
            counters: previous.map_or_else(
                || self.add_counters(&entry.function),
                |before| Arc::clone(&before.counters),
            ),
            last_used: Cell::new(previous.and_then(|before| before.last_used.get())),
        }
    }

    fn add_counters(&self, function: &FunctionId) -> Arc<CalleeCounters> {
        let counters = Arc::new(CalleeCounters::new(
            function.clone(),
            Arc::clone(&self.signals),
        ));
        self.counters.borrow_mut().push(Arc::clone(&counters));
        counters
    }

    /// Makes sessions with those of whom there is none, and connections to those that were called lately; beside everything else.
    fn prepare_peers(self: &Rc<Self>) {
        let sessions = self.sessions.borrow();
        let is_unprepared =
            |peer: &Rc<QuicPeer>| sessions.session_count(&peer.name) == 0 && !peer.has_connection();
        let callees = self.callees.borrow();
        let mut peers: Vec<_> = callees
            .values()
            .flat_map(|callee| &callee.peers)
            .filter(|peer| is_unprepared(peer))
            .cloned()
            .collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        peers.dedup_by(|a, b| a.name == b.name); // a function may have several names
        for peer in peers {
            let state = Rc::clone(self);
            spawn_local(async move {
                state.mint_session(&peer).await;
                if state.is_wanted(&peer) {
                    let _ = peer.connect(&state.dialer).await; // who calls it learns why
                }
            });
        }
    }

    /// Makes a session with this one, as who this instance is at the end of it.
    async fn mint_session(&self, peer: &QuicPeer) {
        loop {
            let (caller, sessions) = (
                self.caller.borrow().clone(),
                Arc::clone(&self.sessions.borrow()),
            );
            self.minter
                .mint_session(&caller, &sessions, &peer.name, peer.addr)
                .await;
            if self.all_peers().all(|one| one.name != peer.name) {
                return sessions.forget_worker(&peer.name); // it has gone meanwhile
            }
            if self.caller.borrow().has_same_certificate(&caller) {
                return;
            }
        }
    }

    fn is_wanted(&self, peer: &Rc<QuicPeer>) -> bool {
        let callees = self.callees.borrow();
        let mut theirs = callees
            .values()
            .filter(|callee| callee.peers.iter().any(|one| Rc::ptr_eq(one, peer)));
        theirs.any(|callee| callee.was_used_recently())
    }

    fn all_peers(&self) -> impl Iterator<Item = Rc<QuicPeer>> {
        peers_of(&self.callees.borrow())
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Tells the node what is counted: at once, and then at most once a while.
    async fn report_tallies(self: Rc<Self>) {
        loop {
            self.signals.changed.notified().await;
            self.send_tally();
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    }

    fn send_tally(&self) {
        let mut counters = self.counters.borrow_mut();
        let tallies: Vec<CallTally> = counters
            .iter()
            .map(|counters| counters.take_tally())
            .collect();
        counters.retain(|counters| Arc::strong_count(counters) > 1 || !counters.is_reported());
        let _ = self.to_node.send(frames::tallies_frame(&tallies)); // a node that is gone counts nothing
    }
}

fn peers_of(callees: &HashMap<FunctionId, Rc<QuicCallee>>) -> impl Iterator<Item = Rc<QuicPeer>> {
    callees
        .values()
        .flat_map(|callee| callee.peers.iter().chain(&callee.leaving).cloned())
}
