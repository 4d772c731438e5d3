//! Direct calls to functions of other domains and machines: from watchdog to watchdog, over QUIC.
//!
//! The node names the functions that this instance may call ([`QuicPeers::update_callees`]), with
//! address and name of each instance. Before the first such frame there is no state. A session with
//! each instance is made beforehand ([`session_minting`]), so that the first call goes in the first
//! packets. Recently called functions get a connection, too. The instance is picked as in the
//! gateway ([`peer_selection`]). Calls that cannot go directly go to the gateway, which queues and
//! wakes.
//!
//! Instances on other nodes are called directly while the edge is hot ([`edge_heat`]), over
//! connections that are there: no call waits for one or goes in its first packets. So no sessions
//! are made for them.

mod call_counters;
mod dialers;
mod edge_heat;
mod peer;
mod peer_selection;
mod remote_callees;
mod reply_watch;
mod session_minting;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;
use nearpath_types::frames::{self, CallTally, HandshakeMessage};
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_wire::quic::config::TlsConfigError;
use nearpath_wire::quic::{CallerConfig, CallerConnection};
use nearpath_wire::zero_rtt::{CallerSessions, Provision};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

pub(crate) use call_counters::CountedCall;
use call_counters::{CalleeCounters, CounterSignals};
pub(crate) use dialers::PeerDialers;
use edge_heat::EdgeHeat;
use peer::QuicPeer;
use peer_selection::pick_peer;
use session_minting::SessionMinter;

/// Age of a callee's last call below which connections to it are opened ahead.
const RECENT_CALL_AGE: Duration = Duration::from_secs(60);
/// Interval between two reports of counters.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Handle to the callees, empty before the first is named. Clones share the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct QuicPeers(Rc<OnceCell<Rc<PeersState>>>);

/// Function that can be called directly.
#[derive(Debug)]
pub(crate) struct QuicCallee {
    zero_rtt: ZeroRttPolicy,
    peers: Vec<Rc<QuicPeer>>,
    /// Instances that finish their calls and get no new ones.
    leaving: Vec<Rc<QuicPeer>>,
    counters: Arc<CalleeCounters>,
    last_used: Cell<Option<Instant>>,
    /// Calls of the edge, for instances on other nodes.
    heat: Cell<EdgeHeat>,
}

/// Connection to an instance, for one call.
#[derive(Debug)]
pub(crate) struct PickedPeer {
    pub(crate) connection: CallerConnection,
    /// Name of its incarnation, if it runs on another node.
    pub(crate) remote: Option<Rc<str>>,
}

#[derive(Debug)]
struct PeersState {
    /// Callees by each name that the tenant's code may use.
    callees: RefCell<HashMap<FunctionId, Rc<QuicCallee>>>,
    /// Counters of all callees so far, kept while they have something to report.
    counters: RefCell<Vec<Arc<CalleeCounters>>>,
    signals: Arc<CounterSignals>,
    caller: RefCell<CallerConfig>,
    dialers: Rc<RefCell<PeerDialers>>,
    /// Sessions of the current certificate. Another certificate starts with an empty store, so none
    /// is mixed up.
    sessions: RefCell<Arc<CallerSessions>>,
    minter: SessionMinter,
    to_node: mpsc::UnboundedSender<Vec<u8>>,
}

impl QuicPeers {
    /// Returns whether no callee was named yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    /// Starts direct calls with the identity of `provision`. `dialers` open connections; frames for
    /// the node go to `to_node`.
    ///
    /// # Errors
    /// When the credentials are invalid.
    pub(crate) fn start(
        &self,
        provision: &Provision,
        dialers: &dyn Fn(&CallerConfig) -> PeerDialers,
        to_node: mpsc::UnboundedSender<Vec<u8>>,
    ) -> Result<(), TlsConfigError> {
        let sessions = Arc::default();
        let caller =
            CallerConfig::new(&provision.credentials, provision.caller_trust()?, &sessions)?;
        let (callees, counters, signals) = Default::default();
        let (dialers, caller, sessions) = (
            RefCell::new(dialers(&caller)),
            RefCell::new(caller),
            RefCell::new(sessions),
        );
        let (minter, dialers) = (SessionMinter::new(to_node.clone()), Rc::new(dialers));
        let state = Rc::new(PeersState {
            callees,
            counters,
            signals,
            caller,
            dialers,
            sessions,
            minter,
            to_node,
        });
        // A second start changes nothing: the running report belongs to the first state.
        if self.0.set(Rc::clone(&state)).is_ok() {
            spawn_local(state.report_tallies());
        }
        Ok(())
    }

    /// Replaces the dialers, after the node has given a socket.
    pub(crate) fn renew_dialers(&self, dialers: &dyn Fn(&CallerConfig) -> PeerDialers) {
        if let Some(state) = self.0.get() {
            let next = dialers(&state.caller.borrow());
            state.dialers.replace(next);
        }
    }

    /// Renews credentials and trust. With `same_certificate` only revocations have changed.
    ///
    /// # Errors
    /// As [`start`](Self::start); the state stays as it was.
    pub(crate) fn renew_credentials(
        &self,
        provision: &Provision,
        same_certificate: bool,
        dialers: &dyn Fn(&CallerConfig) -> PeerDialers,
    ) -> Result<(), TlsConfigError> {
        let Some(state) = self.0.get() else {
            return Ok(());
        };
        let trust = provision.caller_trust()?;
        // Sessions belong to a certificate, so with the same one they stay valid.
        let caller = match same_certificate {
            true => state.caller.borrow().with_trust(trust),
            false => {
                let sessions = Arc::default();
                // Fallible, hence before anything is replaced.
                let caller = CallerConfig::new(&provision.credentials, trust, &sessions)?;
                state.sessions.replace(sessions);
                caller
            }
        };
        state.dialers.replace(dialers(&caller));
        state.caller.replace(caller);
        state.all_peers().for_each(|peer| peer.drop_connection()); // a peer is checked when a connection is made
        if !same_certificate {
            state.prepare_peers();
        }
        Ok(())
    }

    /// Replaces the callees.
    pub(crate) fn update_callees(&self, all: Vec<frames::CalleeEntry>) {
        if let Some(state) = self.0.get() {
            state.set_callees(all);
        }
    }

    /// Handles the node's half of a handshake.
    pub(crate) fn handle_handshake(&self, half: HandshakeMessage) {
        if let Some(state) = self.0.get() {
            state.minter.handle_handshake(half);
        }
    }

    /// Returns a connection to one of the callee's instances. `None`: two of them failed, or all
    /// back off.
    pub(crate) async fn connect(&self, callee: &QuicCallee) -> Option<PickedPeer> {
        let state = self.0.get()?;
        callee.last_used.set(Some(Instant::now()));
        // Two attempts bound the time that is lost before the gateway takes the call.
        for _ in 0..2 {
            let load = |k: usize| {
                let (peer, now) = (&callee.peers[k], Instant::now());
                let may_call = !peer.is_remote() || peer.is_usable(now);
                peer.open_calls(now).filter(|_| may_call)
            };
            let peer = &callee.peers[pick_peer(callee.peers.len(), fastrand::u64(..), load)?];
            if let Ok(connection) = peer.connect(&state.dialers).await {
                let remote = peer.is_remote().then(|| Rc::clone(&peer.name));
                return Some(PickedPeer { connection, remote });
            }
        }
        None
    }

    /// Returns when no call is open; the counts are then on their way to the node.
    pub(crate) async fn wait_idle(&self) {
        let Some(state) = self.0.get() else { return };
        loop {
            // Created before the check, so that a call that ends in between is not missed.
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
        self.peers.iter().all(|peer| !peer.is_remote())
    }

    fn was_used_recently(&self) -> bool {
        self.last_used
            .get()
            .is_some_and(|used| used.elapsed() < RECENT_CALL_AGE)
    }
}

impl PeersState {
    fn set_callees(self: &Rc<Self>, all: Vec<frames::CalleeEntry>) {
        // Nothing awaits before the replacement below, so no call sees the empty map.
        let old = self.callees.take();
        // Kept by incarnation: connections, sessions and backoff outlive the update.
        let known_peers: HashMap<Rc<str>, Rc<QuicPeer>> = peers_of(&old)
            .map(|peer| (Rc::clone(&peer.name), peer))
            .collect();
        let mut new: HashMap<FunctionId, Rc<QuicCallee>> = HashMap::new();
        for entry in all {
            let callee = Rc::new(self.build_callee(&entry, old.get(&entry.function), &known_peers));
            // Aliases share the callee, hence its counters and its last use.
            let names = entry.aliases.into_iter().chain([entry.function]);
            names.for_each(|name| drop(new.insert(name, Rc::clone(&callee))));
        }
        // A peer that is not listed any more has ended (`contract/identity.md`).
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
        // An incarnation keeps its address; with another one the entry is new.
        let same = |entry: &frames::CalleePeer, peer: &Rc<QuicPeer>| peer.addr == entry.addr;
        let peer = |entry: &frames::CalleePeer| {
            let kept = known_peers
                .get(&*entry.name)
                .filter(|peer| same(entry, peer))
                .cloned();
            kept.unwrap_or_else(|| Rc::new(QuicPeer::from_entry(entry)))
        };
        let of = |leaving| {
            entry
                .peers
                .iter()
                .filter(move |entry| entry.leaving == leaving)
                .map(peer)
                .collect()
        };
        QuicCallee {
            zero_rtt: entry.zero_rtt,
            peers: of(false),
            leaving: of(true),
            // Kept over updates, or calls under way would not be reported.
            counters: previous.map_or_else(
                || self.add_counters(&entry.function),
                |before| Arc::clone(&before.counters),
            ),
            last_used: Cell::new(previous.and_then(|before| before.last_used.get())),
            heat: Cell::new(previous.map(|before| before.heat.get()).unwrap_or_default()),
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

    /// Makes sessions with new peers and connections to recently called ones, in the background.
    fn prepare_peers(self: &Rc<Self>) {
        let sessions = self.sessions.borrow();
        let is_unprepared = |peer: &Rc<QuicPeer>| {
            !peer.is_remote() && sessions.session_count(&peer.name) == 0 && !peer.has_connection()
        };
        let callees = self.callees.borrow();
        let hot = callees.values().filter(|callee| callee.heat.get().is_hot());
        hot.for_each(|callee| self.connect_remote_peers(callee, Instant::now()));
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
                // Checked afterwards: the peer may have been withdrawn meanwhile.
                if state.is_wanted(&peer) {
                    let _ = peer.connect(&state.dialers).await; // who calls it learns why
                }
            });
        }
    }

    /// Makes a session with the peer under the certificate that is current at the end.
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
            // Renewed meanwhile: the session is one of the old certificate, so another is made.
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

    /// Reports counts to the node: the first at once, later ones at the interval.
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
        // A second reference is a callee or an open call. Without one, the counters go once they
        // are reported.
        counters.retain(|counters| Arc::strong_count(counters) > 1 || !counters.is_reported());
        let _ = self.to_node.send(frames::tallies_frame(&tallies)); // a node that is gone counts nothing
    }
}

fn peers_of(callees: &HashMap<FunctionId, Rc<QuicCallee>>) -> impl Iterator<Item = Rc<QuicPeer>> {
    callees
        .values()
        .flat_map(|callee| callee.peers.iter().chain(&callee.leaving).cloned())
}
