//! What one party knows: its peers by function and instance, and its open calls. Pure: no memory, socket or clock.
//!
//! An open call has two ends. The *waiter* wants an outcome: an answer, the peer's death or the deadline, whichever comes
//! first. The *answer* is owed by the peer also when nobody waits any more: until it has come, the call counts against the
//! peer's credits. An entry is forgotten when both have come to their end.

mod calls;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use nearpath_types::{FunctionId, InstanceId, topic};
use slab::Slab;

use crate::clock::Nanos;
use crate::protocol::{Lack, Terms};

pub use calls::Settled;

use calls::{Open, number};

/// A channel's number, as the node gave it.
pub type Channel = u32;

/// Whom to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To<'a> {
    /// Any instance of a function.
    Function(&'a FunctionId),
    /// This one.
    Instance(InstanceId),
    /// Any instance of a function that subscribes to something: for events.
    Subscriber(&'a FunctionId),
}

/// Why there is nobody to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nobody {
    /// No peer of that name.
    Unknown,
    /// Peers, but none has credit.
    Busy,
    /// There should be one, and the node could make no channel to it.
    NoChannel(Lack),
}

/// A function that wants events, with the filters that select their topics.
#[derive(Debug, Default)]
struct Subscriber {
    filters: Vec<String>,
    channels: Vec<Channel>,
}

#[derive(Debug)]
struct Peer {
    function: FunctionId,
    /// Other names that it is called by here.
    aliases: Vec<FunctionId>,
    instance: InstanceId,
    in_flight: u32,
}

/// An open call's number: index in the low half, its life in the high half, so that no number comes twice.
pub type Call = u64;

/// See the module. `T` is the outcome of a call.
#[derive(Debug)]
pub struct Book<T> {
    peers: BTreeMap<Channel, Peer>,
    functions: HashMap<FunctionId, Vec<Channel>>,
    instances: HashMap<InstanceId, Vec<Channel>>,
    subscribers: BTreeMap<FunctionId, Subscriber>,
    /// Functions to which there should be a channel, by the names that they are called by, and why there is none.
    lacks: HashMap<FunctionId, Lack>,
    calls: Slab<Open<T>>,
    deadlines: BinaryHeap<Reverse<(Nanos, Call)>>,
    life: u32,
    dice: u64,
}

impl<T> Book<T> {
    /// `seed` makes parties choose differently.
    pub fn new(seed: u64) -> Self {
        Self {
            peers: BTreeMap::new(),
            functions: HashMap::new(),
            instances: HashMap::new(),
            subscribers: BTreeMap::new(),
            lacks: HashMap::new(),
            calls: Slab::new(),
            deadlines: BinaryHeap::new(),
            life: 0,
            dice: seed | 1,
        }
    }

    /// A peer that can be called.
    pub fn meet(&mut self, channel: Channel, function: FunctionId, instance: InstanceId) {
        self.meet_as(channel, function, instance, &Terms::default());
    }

    /// A peer that can be called, or only be sent events, as the edge's terms say.
    pub fn meet_as(&mut self, channel: Channel, function: FunctionId, instance: InstanceId, terms: &Terms) {
        let aliases = if terms.events_only { Vec::new() } else { terms.aliases.clone() };
        if !terms.events_only {
            for name in aliases.iter().chain([&function]) {
                self.functions.entry(name.clone()).or_default().push(channel);
                self.lacks.remove(name);
            }
            self.instances.entry(instance).or_default().push(channel);
        }
        if !terms.topics.is_empty() {
            let subscriber = self.subscribers.entry(function.clone()).or_default();
            subscriber.filters.clone_from(&terms.topics); // those of the newest instance
            subscriber.channels.push(channel);
        }
        self.peers.insert(channel, Peer { function, aliases, instance, in_flight: 0 });
    }

    /// The functions that subscribe to a topic.
    pub fn subscribers(&self, topic: &str) -> Vec<FunctionId> {
        let wants = |subscriber: &Subscriber| subscriber.filters.iter().any(|filter| topic::matches(filter, topic));
        self.subscribers
            .iter()
            .filter(|(_, subscriber)| wants(subscriber))
            .map(|(function, _)| function.clone())
            .collect()
    }

    /// It gets no new calls; those that are open go on.
    pub fn retire(&mut self, channel: Channel) {
        let Some(peer) = self.peers.get(&channel) else { return };
        for name in peer.aliases.iter().chain([&peer.function]) {
            remove(&mut self.functions, name, channel);
        }
        if let Some(subscriber) = self.subscribers.get_mut(&peer.function) {
            subscriber.channels.retain(|&other| other != channel);
            if subscriber.channels.is_empty() {
                self.subscribers.remove(&peer.function);
            }
        }
        remove(&mut self.instances, &peer.instance, channel);
    }

    /// It is no more: its open calls, which no answer will come to. Give each its outcome with [`Book::settle`].
    pub fn bury(&mut self, channel: Channel) -> Vec<Call> {
        self.retire(channel);
        let open = self.calls.iter().filter(|(_, open)| open.channel == channel && open.owed);
        open.map(|(index, open)| number(index, open.life)).collect()
    }

    /// Forgets a buried or drained peer.
    pub fn forget(&mut self, channel: Channel) {
        self.retire(channel);
        self.peers.remove(&channel);
    }

    /// The node could make no channel to a function of this name. Until there is one, who calls it hears why.
    pub fn lacks(&mut self, name: FunctionId, lack: Lack) {
        self.lacks.insert(name, lack);
    }

    /// Whether an instance can be called at this moment, credits aside.
    pub fn reaches(&self, instance: InstanceId) -> bool {
        self.instances.contains_key(&instance)
    }

    /// Whether a function can be called at this moment, credits aside.
    pub fn knows(&self, function: &FunctionId) -> bool {
        self.functions.contains_key(function)
    }

    /// The functions that can be called.
    pub fn functions(&self) -> impl Iterator<Item = &FunctionId> {
        self.functions.keys()
    }

    /// The channels to a function's instances.
    pub fn channels(&self, function: &FunctionId) -> &[Channel] {
        self.functions.get(function).map_or(&[], Vec::as_slice)
    }

    /// Calls on a channel whose answers are owed.
    pub fn in_flight(&self, channel: Channel) -> u32 {
        self.peers.get(&channel).map_or(0, |peer| peer.in_flight)
    }

    /// Of two peers drawn at random, the one with fewer calls in flight; one without credit is no choice.
    pub fn choose(&mut self, to: To<'_>, mut credit: impl FnMut(Channel) -> bool) -> Result<Channel, Nobody> {
        let dice = [self.roll(), self.roll()];
        let candidates = match to {
            To::Function(function) => self.functions.get(function),
            To::Instance(instance) => self.instances.get(&instance),
            To::Subscriber(function) => self.subscribers.get(function).map(|subscriber| &subscriber.channels),
        };
        let candidates = candidates.filter(|list| !list.is_empty()).ok_or_else(|| match to {
            To::Function(function) => self.lacks.get(function).map_or(Nobody::Unknown, |lack| Nobody::NoChannel(*lack)),
            _ => Nobody::Unknown,
        })?;
        let count = candidates.len();
        let first = dice[0] % count;
        let second = if count > 1 { (first + 1 + dice[1] % (count - 1)) % count } else { first };
        let load = |at: usize| self.peers.get(&candidates[at]).map_or(u32::MAX, |peer| peer.in_flight);
        let (better, other) = if load(second) < load(first) { (second, first) } else { (first, second) };
        let rest = (0..count).map(|step| (first + step) % count).filter(|&at| at != first && at != second);
        let mut order = [better, other].into_iter().chain(rest);
        order.find(|&at| credit(candidates[at])).map(|at| candidates[at]).ok_or(Nobody::Busy)
    }

    fn roll(&mut self) -> usize {
        // xorshift64: fair enough to spread load, no more is asked of it.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 16) as usize
    }
}

fn remove<K: std::hash::Hash + Eq + Clone>(lists: &mut HashMap<K, Vec<Channel>>, key: &K, channel: Channel) {
    if let Some(list) = lists.get_mut(key) {
        list.retain(|&other| other != channel);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}
