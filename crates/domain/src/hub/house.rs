//! The task of a domain: it owns pool, desks and channels, and does what the registrar decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nearpath_shm::channel::State;
use nearpath_shm::wire::RECORD;
use nearpath_shm::{Channel, Party, Record, Side, reclaim};
use nearpath_types::InstanceId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::connection::{self, Key, LETTERS, Letter, News};
use super::edges;
use super::ledger::Writer;
use super::pools::Pools;
use super::seat::{self, Seat};
use super::{Delivery, Door, Exchange, Fault, Order, Settings, Usage};
use crate::clock;
use crate::packet;
use crate::protocol::{
    Failed, FromNode, FromParty, Gone, Hello, Isolation, Lack, Peer, Refused, Role, Terms, VERSION, Welcome,
};
use crate::registrar::{Action, Closing, Edge, Registrar, Who};

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

    fn open_door(&mut self, who: Who, socket: OwnedFd) {
        let key = self.key();
        let task = tokio::spawn(connection::accept(key, socket, self.news.clone())).abort_handle();
        self.entrances.insert(key, Entrance { who, task });
    }

    fn welcome_in(&mut self, who: Who, socket: OwnedFd) {
        let key = self.key();
        let (letters, outbox) = mpsc::channel(LETTERS);
        tokio::spawn(connection::serve(key, socket, outbox, self.news.clone()));
        self.guests.insert(key, Guest { who, party: None, letters, channels: BTreeSet::new() });
    }

    fn heed(&mut self, news: News) {
        match news {
            News::Came(door, socket) => {
                let Some(who) = self.entrances.get(&door).map(|entrance| entrance.who.clone()) else { return };
                let there = self.guests.values().filter(|guest| guest.who == who).count();
                if there < self.settings.parties {
                    self.welcome_in(who, socket);
                }
            }
            News::Said(key, said, descriptors) => {
                if let Err(what) = self.said(key, said, descriptors) {
                    self.expel(key, what);
                }
            }
            News::Tried(key, what) => self.judge(key, &what),
            News::Left(key, None) => self.bury(key),
            News::Left(key, Some(what)) => self.expel(key, what),
        }
    }

    fn said(&mut self, key: Key, said: FromParty, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let Some(guest) = self.guests.get(&key) else { return Ok(()) };
        let actions = match (said, guest.party) {
            (FromParty::Hello(hello), None) => return self.hello(key, &hello),
            (FromParty::Hello(_), Some(_)) => return Err("a second hello".into()),
            (_, None) => return Err("it spoke before its hello".into()),
            (FromParty::Ready {}, Some(party)) => self.registrar.ready(party),
            (FromParty::Pool(own), Some(party)) => {
                self.pools.take(party, own, descriptors)?;
                self.registrar.furnished(party)
            }
            (FromParty::Broken(broken), Some(party)) => {
                self.tell_of_break(broken.channel, party);
                self.registrar.broken(party, broken.channel, clock::now()).map_err(|fault| fault.to_string())?
            }
            (FromParty::Drained(drained), Some(party)) => {
                self.registrar.drained(party, drained.channel, clock::now()).map_err(|fault| fault.to_string())?
            }
        };
        self.act(actions);
        Ok(())
    }

    fn hello(&mut self, key: Key, hello: &Hello) -> Result<(), String> {
        let unfit = match hello.version {
            VERSION => seat::unfit(&self.settings, hello),
            _ => Some(format!("this node speaks version {VERSION} of the dispatch protocol")),
        };
        if let Some(why) = unfit {
            self.write(key, &FromNode::Refused(Refused { why: why.clone() }), Vec::new());
            return Err(why);
        }
        let Some(who) = self.guests.get(&key).map(|guest| guest.who.clone()) else { return Ok(()) };
        // A strict party has no channels before its peers can be given its pool.
        let arrived = match self.settings.isolation {
            Isolation::Strict => self.registrar.expect(who.clone(), hello.serves).map(|party| (party, Vec::new())),
            _ => self.registrar.arrive(who.clone(), hello.serves),
        };
        let Some((party, actions)) = arrived else {
            return Err("the domain has no number left for another party".into());
        };
        if hello.stands_in {
            self.registrar.stand_in(party);
        }
        if let Some(guest) = self.guests.get_mut(&key) {
            guest.party = Some(party);
        }
        self.enter(key, party, &who, hello).map_err(|error| format!("its desk cannot be made: {error}"))?;
        self.act(actions);
        Ok(())
    }

    fn enter(&mut self, key: Key, party: Party, who: &Who, hello: &Hello) -> io::Result<()> {
        let (seat, seated) = Seat::make(&self.settings.delivery, (key, party), hello, &self.news)?;
        let (pool, classes) = self.pools.for_newcomer()?;
        let descriptors = pool.into_iter().chain(seated).collect();
        let welcome = Welcome {
            domain: self.settings.name.clone(),
            party: party.get(),
            function: who.function().cloned(),
            instance: who.instance(),
            pool: self.pools.bytes(),
            bound: self.settings.bound,
            capacity: self.settings.capacity,
            delivery: self.settings.delivery.mode(),
            isolation: self.settings.isolation,
            classes,
        };
        self.ledger.came(party, who.clone());
        self.seats.insert(party, seat);
        self.write(key, &FromNode::Welcome(welcome), descriptors);
        Ok(())
    }

    /// A party that sends on a channel that it never had forges it. One that it had has ended in the meantime.
    fn judge(&mut self, key: Key, tried: &[u8]) {
        let Some(guest) = self.guests.get(&key) else { return };
        let (records, rest) = tried.as_chunks::<RECORD>();
        let forged = |channel: &u32| !guest.channels.contains(channel);
        let what = match records.iter().map(|record| Record::from_bytes(record).channel).find(forged) {
            Some(channel) => format!("it sent a descriptor on channel {channel}, which is none of its own"),
            None if !rest.is_empty() => "it sent less than a descriptor".into(),
            None => return,
        };
        self.expel(key, what);
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

    /// Disconnects who broke the protocol.
    fn expel(&mut self, key: Key, what: String) {
        if let Some(guest) = self.guests.get(&key) {
            tracing::warn!(who = ?guest.who, %what, "a party is disconnected");
            let _ = self.faults.send(Fault { instance: guest.who.instance(), what });
        }
        self.bury(key);
    }

    /// The party on this socket is no more.
    fn bury(&mut self, key: Key) {
        let Some(guest) = self.guests.remove(&key) else { return };
        if let Some(party) = guest.party {
            if let Some(exchange) = self.exchange() {
                exchange.unseat(party);
                exchange.revoke(party, 0);
            }
            self.seats.remove(&party);
            self.pools.left(party);
            self.ledger.left(party);
            let actions = self.registrar.left(party, clock::now());
            self.act(actions);
        }
        if let Some(instance) = guest.who.instance() {
            self.quiet_if_empty(instance);
        }
    }

    fn gone(&mut self, instance: InstanceId) {
        let of = |who: &Who| who.instance() == Some(instance);
        self.entrances.retain(|_, entrance| {
            let goes = of(&entrance.who);
            if goes {
                entrance.task.abort();
            }
            !goes
        });
        let keys: Vec<Key> = self.guests.iter().filter(|(_, guest)| of(&guest.who)).map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| self.bury(key));
        self.registrar.dismiss(instance);
        self.quiet_if_empty(instance);
    }

    fn quiet_if_empty(&mut self, instance: InstanceId) {
        if self.registrar.parties(instance).is_empty() {
            self.is_quiet(instance);
        }
    }

    fn is_quiet(&mut self, instance: InstanceId) {
        self.quiet.remove(&instance).into_iter().flatten().for_each(|done| {
            let _ = done.send(());
        });
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { channel, caller, callee } => {
                    if let Err((error, told)) = self.open(channel, caller, callee) {
                        self.unopened(channel, caller, callee, &error, told);
                    }
                }
                Action::Close { channel, how } => self.close_line(channel, how),
                Action::Tell { party, channel, state } => {
                    self.write_to(party, &FromNode::Gone(Gone { channel, state }), Vec::new());
                }
                Action::Forget { channel } => self.forget(channel),
                Action::Sweep => self.sweep(),
                Action::Quiet { instance } => self.is_quiet(instance),
            }
        }
    }

    /// The error, and who has been told of the channel nevertheless.
    fn open(&mut self, number: u32, caller: Party, callee: Party) -> Result<(), (io::Error, Option<Party>)> {
        let nobody = |error| (error, None);
        let channel = Channel::create(self.settings.capacity).map_err(nobody)?;
        if let Some(exchange) = self.exchange() {
            exchange.permit(caller, number, callee).map_err(nobody)?;
            exchange.permit(callee, number, caller).map_err(nobody)?;
        }
        let function = |party| self.registrar.who(party).and_then(Who::function).cloned();
        let edge: edges::Key = (function(caller), function(callee));
        self.ledger.opened(number, edge, channel.clone(), caller, callee);
        self.lines.insert(number, Line { channel: channel.clone(), caller, callee });
        // The callee first: when the caller's first call rings, it may look for the channel on its socket.
        self.introduce(number, &channel, callee, caller, Role::Callee).map_err(nobody)?;
        self.introduce(number, &channel, caller, callee, Role::Caller).map_err(|error| (error, Some(callee)))
    }

    /// The caller hears what is lacking, so that its calls end with the cause; the next try comes by itself.
    fn unopened(&mut self, number: u32, caller: Party, callee: Party, error: &io::Error, told: Option<Party>) {
        let who = |party| self.registrar.who(party).cloned();
        tracing::error!(%error, caller = ?who(caller), callee = ?who(callee), "a channel cannot be made; it is tried again");
        let function = self.registrar.who(callee).and_then(Who::function).cloned();
        let aliases = self.terms(caller, callee, Role::Caller).aliases;
        for function in function.into_iter().chain(aliases) {
            self.write_to(caller, &FromNode::Failed(Failed { function, lacks: Lack::of(error) }), Vec::new());
        }
        let actions = self.registrar.failed(number, told, clock::now());
        self.act(actions);
    }

    fn tell_of_break(&self, number: u32, by: Party) {
        let Some(line) = self.lines.get(&number).filter(|line| line.caller == by || line.callee == by) else { return };
        let who = |party| self.registrar.who(party);
        tracing::warn!(caller = ?who(line.caller), callee = ?who(line.callee), told_by = by.get(), "a channel is broken");
    }

    fn introduce(&mut self, number: u32, channel: &Channel, to: Party, peer: Party, side: Role) -> io::Result<()> {
        let (Some(seat), Some(who)) = (self.seats.get(&peer), self.registrar.who(peer)) else { return Ok(()) };
        let pool = self.pools.of(peer)?;
        let told = pool.as_ref().map(|_| self.pools.bytes());
        let mut descriptors = vec![channel.as_fd().try_clone_to_owned()?];
        descriptors.extend(pool);
        descriptors.extend(seat.descriptors()?);
        let message = Peer {
            channel: number,
            side,
            party: peer.get(),
            function: who.function().cloned(),
            instance: who.instance(),
            capacity: channel.capacity(),
            pool: told,
            terms: self.terms(to, peer, side),
        };
        if let Some(guest) = self.seats.get(&to).and_then(|seat| self.guests.get_mut(&seat.key)) {
            guest.channels.insert(number);
        }
        self.write_to(to, &FromNode::Peer(message), descriptors);
        Ok(())
    }

    /// Those of the edge between two parties; `side`: what `one` is.
    fn terms(&self, one: Party, other: Party, side: Role) -> Terms {
        let function = |party| self.registrar.who(party).and_then(Who::function).cloned();
        let (caller, callee) = if side == Role::Caller { (one, other) } else { (other, one) };
        let edge = function(caller).zip(function(callee));
        edge.and_then(|edge| self.terms.get(&edge)).cloned().unwrap_or_default()
    }

    fn close_line(&mut self, number: u32, how: Closing) {
        let Some(line) = self.lines.get(&number) else { return };
        line.channel.close(match how {
            Closing::Withdrawn => State::Withdrawn,
            Closing::Caller => State::CallerDead,
            Closing::Callee => State::CalleeDead,
            Closing::Broken => State::Broken,
        });
        for party in [line.caller, line.callee] {
            self.seats.get(&party).into_iter().for_each(|seat| seat.doorbell().knock());
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(line) = self.lines.remove(&number) {
            if let Some(exchange) = self.exchange() {
                exchange.revoke(line.caller, number);
                exchange.revoke(line.callee, number);
            }
            self.ledger.closed(number);
        }
    }

    fn sweep(&mut self) {
        let lines = &self.lines;
        let in_ring = |from: Party, to: Party, slot, generation| {
            lines.values().any(|line| {
                let held = |by| line.channel.holds(by, slot, generation);
                (line.caller, line.callee) == (from, to) && held(Side::Caller)
                    || (line.callee, line.caller) == (from, to) && held(Side::Callee)
            })
        };
        if let Pools::Shared(pool) = &self.pools {
            let swept = reclaim::sweep(pool, |party| self.registrar.lives(party), in_ring);
            tracing::debug!(?swept, domain = %self.settings.name, "swept");
        }
        let free = |party: &Party| !self.pools.bear(*party);
        let rested: Vec<Party> = self.registrar.resting().filter(free).collect();
        rested.into_iter().for_each(|party| self.registrar.rested(party));
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
