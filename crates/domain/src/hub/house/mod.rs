//! The task of a domain: it owns pool, desks and channels, and does what the registrar decides.

mod channels;
mod guests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::time::Duration;

use nearpath_shm::channel::State;
use nearpath_shm::{Channel, Party};
use nearpath_types::InstanceId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::connection::{Key, Letter, News};
use super::ledger::Writer;
use super::pools::Pools;
use super::seat::Seat;
use super::{Delivery, Door, Exchange, Fault, Order, Settings, Usage};
use crate::clock;
use crate::packet;
use crate::protocol::{FromNode, Terms};
use crate::registrar::{Edge, Registrar, Who};

/// A socket, and the party that speaks on it.
#[derive(Debug)]
struct Guest {
    who: Who,
    party: Option<Party>,
    letters: mpsc::Sender<Letter>,
    /// Every channel that it has been an end of.
    channels: BTreeSet<u32>,
}

/// A door at which an instance's parties come in.
#[derive(Debug)]
struct Entrance {
    who: Who,
    task: AbortHandle,
}

/// A channel that is mapped.
#[derive(Debug)]
struct Line {
    channel: Channel,
    caller: Party,
    callee: Party,
}

/// See the module.
#[derive(Debug)]
pub(super) struct House {
    settings: Settings,
    pools: Pools,
    ledger: Writer,
    registrar: Registrar,
    guests: HashMap<Key, Guest>,
    entrances: HashMap<Key, Entrance>,
    seats: HashMap<Party, Seat>,
    lines: BTreeMap<u32, Line>,
    /// The declared edges.
    terms: HashMap<Edge, Terms>,
    quiet: HashMap<InstanceId, Vec<oneshot::Sender<()>>>,
    faults: mpsc::UnboundedSender<Fault>,
    news: mpsc::Sender<News>,
    inbox: Option<mpsc::Receiver<News>>,
    last_key: Key,
    /// Those whose letters pile up.
    deaf: Vec<Key>,
}

impl House {
    pub(super) fn new(settings: Settings, pools: Pools, ledger: Writer, faults: mpsc::UnboundedSender<Fault>) -> Self {
        let (news, inbox) = mpsc::channel(256);
        Self {
            settings,
            pools,
            ledger,
            registrar: Registrar::new(),
            guests: HashMap::new(),
            entrances: HashMap::new(),
            seats: HashMap::new(),
            lines: BTreeMap::new(),
            terms: HashMap::new(),
            quiet: HashMap::new(),
            faults,
            news,
            inbox: Some(inbox),
            last_key: 0,
            deaf: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let Some(mut news) = self.inbox.take() else { return };
        loop {
            while let Some(key) = self.deaf.pop() {
                self.expel(key, "it does not read what the node tells it".into());
            }
            let now = clock::now();
            let tick = self.registrar.next_tick(now).map(|at| Duration::from_nanos(at.saturating_sub(now)));
            tokio::select! {
                biased;
                Some(heard) = news.recv() => self.heed(heard),
                order = orders.recv() => match order {
                    Some(Order::Stop(done)) => {
                        self.close();
                        drop(self);
                        let _ = done.send(());
                        return;
                    }
                    Some(order) => self.obey(order),
                    None => return self.close(),
                },
                () = tokio::time::sleep(tick.unwrap_or_default()), if tick.is_some() => {
                    let actions = self.registrar.tick(clock::now());
                    self.act(actions);
                }
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Declare(edges) => self.declare(edges.into_iter().collect()),
            Order::Admit(who, Door::Connected(socket)) => self.welcome_in(who, socket),
            Order::Admit(who, Door::Listening(socket)) => self.open_door(who, socket),
            Order::Withdraw(instance, done) => {
                self.quiet.entry(instance).or_default().push(done);
                let actions = self.registrar.withdraw(instance);
                self.act(actions);
                self.quiet_if_empty(instance);
            }
            Order::Gone(instance) => self.gone(instance),
            Order::Edges(give) => drop(give.send(self.count())),
            Order::Usage(give) => drop(give.send(self.usage())),
            Order::Stop(_) => {} // seen to by `run`
        }
    }

    /// An edge whose terms have changed ends and begins anew: a party hears of them when it meets a peer.
    fn declare(&mut self, terms: HashMap<Edge, Terms>) {
        let changed = |edge: &Edge| self.terms.get(edge).is_some_and(|known| *known != terms[edge]);
        if terms.keys().any(changed) {
            let kept: Vec<Edge> = terms.keys().filter(|edge| !changed(edge)).cloned().collect();
            let actions = self.registrar.declare(kept);
            self.act(actions);
        }
        let edges: Vec<Edge> = terms.keys().cloned().collect();
        self.terms = terms;
        let actions = self.registrar.declare(edges);
        self.act(actions);
    }

    fn key(&mut self) -> Key {
        self.last_key += 1;
        self.last_key
    }

    fn exchange(&self) -> Option<&dyn Exchange> {
        match &self.settings.delivery {
            Delivery::Sockmap(exchange) => Some(&**exchange),
            Delivery::Ring | Delivery::Poll => None,
        }
    }

    /// Sends a letter and says so at the desk. A party that does not read is given up.
    fn write(&mut self, key: Key, message: &FromNode, descriptors: Vec<OwnedFd>) {
        let Some(guest) = self.guests.get(&key) else { return };
        let Ok(bytes) = packet::encode(message) else { return };
        let bell = guest.party.and_then(|party| self.seats.get(&party)).map(Seat::doorbell);
        if guest.letters.try_send(Letter { bytes, descriptors, bell }).is_err() {
            self.deaf.push(key);
        }
    }

    fn write_to(&mut self, party: Party, message: &FromNode, descriptors: Vec<OwnedFd>) {
        if let Some(key) = self.seats.get(&party).map(|seat| seat.key) {
            self.write(key, message, descriptors);
        }
    }

    fn is_quiet(&mut self, instance: InstanceId) {
        self.quiet.remove(&instance).into_iter().flatten().for_each(|done| {
            let _ = done.send(());
        });
    }

    fn count(&self) -> Vec<super::EdgeCounters> {
        self.ledger.edges()
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage { parties: self.seats.len(), channels: self.lines.len(), ..Usage::default() };
        self.pools.add_to(&mut usage);
        usage
    }

    /// Everything is over: whoever calls is told so by the channels.
    fn close(&mut self) {
        self.entrances.drain().for_each(|(_, entrance)| entrance.task.abort());
        for line in self.lines.values() {
            line.channel.close(State::Broken);
        }
        self.guests.clear();
        self.quiet.clear();
    }
}
