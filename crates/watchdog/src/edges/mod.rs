//! Direct calls to functions of other domains and machines: watchdog to watchdog, over QUIC.
//!
//! The node says whom this instance may call so ([`Edges::tell`]), with the address and the name of each instance that is ready. There is
//! nothing behind it before the node has said so for the first time. A session with each instance is made beforehand
//! ([`minting`]), so that the first call goes in the first packets; a connection, too, where calls were made lately. Who is called is
//! chosen as the gateway does ([`choice`]). What cannot be called directly goes to the gateway, which queues and wakes.

mod choice;
mod counters;
mod minting;
mod peer;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::frames::{self, Handshake, Tally};
use nearpath_types::policy::ZeroRtt;
use nearpath_types::{FunctionId, Locality};
use nearpath_wire::early::{Provision, Sessions};
use nearpath_wire::quic::config::ConfigError;
use nearpath_wire::quic::{Caller, Dialer, Line};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use choice::choose;
pub(crate) use counters::Counted;
use counters::{Counters, News};
use minting::Minting;
use peer::Peer;

/// Connections are opened ahead of calls to whom was called so lately.
const LATELY: Duration = Duration::from_secs(60);
/// Counters are told at most so often.
const PAUSE: Duration = Duration::from_secs(1);

/// The edges, once there is one. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Edges(Rc<OnceCell<Rc<Desk>>>);

/// A function that can be called directly.
#[derive(Debug)]
pub(crate) struct Callee {
    zero_rtt: ZeroRtt,
    peers: Vec<Rc<Peer>>,
    /// Those that finish what they have.
    leaving: Vec<Rc<Peer>>,
    counters: Arc<Counters>,
    used: Cell<Option<Instant>>,
}

#[derive(Debug)]
struct Desk {
    /// By each name that the tenant's code may call it.
    callees: RefCell<HashMap<FunctionId, Rc<Callee>>>,
    /// Those of callees that were told once, as long as they have something to tell.
    counters: RefCell<Vec<Arc<Counters>>>,
    news: Arc<News>,
    me: RefCell<Caller>,
    dialer: Rc<RefCell<Dialer>>,
    /// Those of this instance's certificate: with another come others, so none can be mistaken.
    sessions: RefCell<Arc<Sessions>>,
    minting: Minting,
    to_node: mpsc::UnboundedSender<Vec<u8>>,
}

impl Edges {
    /// Whether no callee was ever told.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    /// This instance, which is who `told` says, can call others from now on. `dialer` opens its connections; what is for the node goes
    /// to `to_node`.
    ///
    /// # Errors
    /// When its credentials are no good.
    pub(crate) fn begin(
        &self,
        told: &Provision,
        dialer: &dyn Fn(&Caller) -> Dialer,
        to_node: mpsc::UnboundedSender<Vec<u8>>,
    ) -> Result<(), ConfigError> {
        let sessions = Arc::default();
        let me = Caller::new(&told.credentials, told.trust_as_caller()?, &sessions)?;
        let (callees, counters, news) = Default::default();
        let (dialer, me, sessions) = (RefCell::new(dialer(&me)), RefCell::new(me), RefCell::new(sessions));
        let (minting, dialer) = (Minting::new(to_node.clone()), Rc::new(dialer));
        let desk = Rc::new(Desk { callees, counters, news, me, dialer, sessions, minting, to_node });
        if self.0.set(Rc::clone(&desk)).is_ok() {
            spawn_local(desk.report());
        }
        Ok(())
    }

    /// Something of what it was told has changed: its certificate, unless that is the `same`, or whom it believes.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); all stays as it was.
    pub(crate) fn renew(
        &self,
        told: &Provision,
        same: bool,
        dialer: &dyn Fn(&Caller) -> Dialer,
    ) -> Result<(), ConfigError> {
        let Some(desk) = self.0.get() else { return Ok(()) };
        let trust = told.trust_as_caller()?;
        let me = match same {
            true => desk.me.borrow().trusting(trust),
            false => {
                let sessions = Arc::default();
                let me = Caller::new(&told.credentials, trust, &sessions)?;
                desk.sessions.replace(sessions);
                me
            }
        };
        desk.dialer.replace(dialer(&me));
        desk.me.replace(me);
        desk.peers().for_each(|peer| peer.part()); // a peer is looked at when a connection is made
        if !same {
            desk.meet();
        }
        Ok(())
    }

    /// Whom it may call, instead of what was told before.
    pub(crate) fn tell(&self, all: Vec<frames::Callee>) {
        if let Some(desk) = self.0.get() {
            desk.tell(all);
        }
    }

    /// The node's half of a handshake.
    pub(crate) fn hear(&self, half: Handshake) {
        if let Some(desk) = self.0.get() {
            desk.minting.hear(half);
        }
    }

    /// Who is meant by this name, if it can be called directly now.
    pub(crate) fn callee(&self, name: &FunctionId) -> Option<Rc<Callee>> {
        let callees = self.0.get()?.callees.borrow();
        callees.get(name).filter(|callee| !callee.peers.is_empty()).cloned()
    }

    /// A connection to one of its instances. Nothing: none of the two that were tried answers, or all are left alone.
    pub(crate) async fn line(&self, callee: &Callee) -> Option<Line> {
        let desk = self.0.get()?;
        callee.used.set(Some(Instant::now()));
        for _ in 0..2 {
            let load = |k: usize| callee.peers[k].load(Instant::now());
            let peer = &callee.peers[choose(callee.peers.len(), fastrand::u64(..), load)?];
            if let Ok(line) = peer.line(&desk.dialer).await {
                return Some(line);
            }
        }
        None
    }

    /// Returns when no call is under way; what was counted is on its way to the node then.
    pub(crate) async fn idle(&self) {
        let Some(desk) = self.0.get() else { return };
        loop {
            let ended = desk.news.ended.notified();
            if desk.counters.borrow().iter().all(|counters| counters.is_idle()) {
                return desk.tally();
            }
            ended.await;
        }
    }
}

impl Callee {
    pub(crate) fn zero_rtt(&self) -> ZeroRtt {
        self.zero_rtt
    }

    /// Counts a call that begins.
    pub(crate) fn count(&self) -> Counted {
        self.counters.begin()
    }

    /// Returns whether all its instances run on this instance's machine.
    pub(crate) fn is_on_same_node(&self) -> bool {
        self.peers.iter().all(|peer| peer.locality == Locality::SameNode)
    }

    fn was_used_lately(&self) -> bool {
        self.used.get().is_some_and(|used| used.elapsed() < LATELY)
    }
}

impl Desk {
    fn tell(self: &Rc<Self>, all: Vec<frames::Callee>) {
        let old = self.callees.take();
        let known: HashMap<Rc<str>, Rc<Peer>> = peers_of(&old).map(|peer| (Rc::clone(&peer.name), peer)).collect();
        let mut new: HashMap<FunctionId, Rc<Callee>> = HashMap::new();
        for told in all {
            let callee = Rc::new(self.callee(&told, old.get(&told.function), &known));
            let names = told.aliases.into_iter().chain([told.function]);
            names.for_each(|name| drop(new.insert(name, Rc::clone(&callee))));
        }
        let gone = known.into_values().filter(|peer| peers_of(&new).all(|other| other.name != peer.name));
        let sessions = self.sessions.borrow();
        gone.for_each(|peer| {
            sessions.forget(&peer.name);
            peer.end();
        });
        *self.callees.borrow_mut() = new;
        self.meet();
    }

    fn callee(&self, told: &frames::Callee, before: Option<&Rc<Callee>>, known: &HashMap<Rc<str>, Rc<Peer>>) -> Callee {
        let same = |told: &frames::Peer, peer: &Rc<Peer>| peer.addr == told.addr;
        let peer = |told: &frames::Peer| {
            let kept = known.get(&*told.name).filter(|peer| same(told, peer)).cloned();
            kept.unwrap_or_else(|| Rc::new(Peer::of(told)))
        };
        let of = |leaving| told.peers.iter().filter(move |told| told.leaving == leaving).map(peer).collect();
        Callee {
            zero_rtt: told.zero_rtt,
            peers: of(false),
            leaving: of(true),
            counters: before.map_or_else(|| self.counters(&told.function), |before| Arc::clone(&before.counters)),
            used: Cell::new(before.and_then(|before| before.used.get())),
        }
    }

    fn counters(&self, function: &FunctionId) -> Arc<Counters> {
        let counters = Arc::new(Counters::new(function.clone(), Arc::clone(&self.news)));
        self.counters.borrow_mut().push(Arc::clone(&counters));
        counters
    }

    /// Makes sessions with those of whom there is none, and connections to those that were called lately; beside everything else.
    fn meet(self: &Rc<Self>) {
        let sessions = self.sessions.borrow();
        let strange = |peer: &Rc<Peer>| sessions.left(&peer.name) == 0 && !peer.has_line();
        let callees = self.callees.borrow();
        let mut peers: Vec<_> =
            callees.values().flat_map(|callee| &callee.peers).filter(|peer| strange(peer)).cloned().collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        peers.dedup_by(|a, b| a.name == b.name); // a function may have several names
        for peer in peers {
            let desk = Rc::clone(self);
            spawn_local(async move {
                desk.mint(&peer).await;
                if desk.is_wanted(&peer) {
                    let _ = peer.line(&desk.dialer).await; // who calls it learns why
                }
            });
        }
    }

    /// Makes a session with this one, as who this instance is at the end of it.
    async fn mint(&self, peer: &Peer) {
        loop {
            let (me, sessions) = (self.me.borrow().clone(), Arc::clone(&self.sessions.borrow()));
            self.minting.mint(&me, &sessions, &peer.name, peer.addr).await;
            if self.peers().all(|one| one.name != peer.name) {
                return sessions.forget(&peer.name); // it has gone meanwhile
            }
            if self.me.borrow().is_same(&me) {
                return;
            }
        }
    }

    fn is_wanted(&self, peer: &Rc<Peer>) -> bool {
        let callees = self.callees.borrow();
        let mut theirs = callees.values().filter(|callee| callee.peers.iter().any(|one| Rc::ptr_eq(one, peer)));
        theirs.any(|callee| callee.was_used_lately())
    }

    fn peers(&self) -> impl Iterator<Item = Rc<Peer>> {
        peers_of(&self.callees.borrow()).collect::<Vec<_>>().into_iter()
    }

    /// Tells the node what is counted: at once, and then at most once a while.
    async fn report(self: Rc<Self>) {
        loop {
            self.news.changed.notified().await;
            self.tally();
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn tally(&self) {
        let mut counters = self.counters.borrow_mut();
        let tallies: Vec<Tally> = counters.iter().map(|counters| counters.take()).collect();
        counters.retain(|counters| Arc::strong_count(counters) > 1 || !counters.is_settled());
        let _ = self.to_node.send(frames::tallies(&tallies)); // a node that is gone counts nothing
    }
}

fn peers_of(callees: &HashMap<FunctionId, Rc<Callee>>) -> impl Iterator<Item = Rc<Peer>> {
    callees.values().flat_map(|callee| callee.peers.iter().chain(&callee.leaving).cloned())
}
