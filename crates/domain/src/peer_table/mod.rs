//! Peers and open calls of one endpoint. Pure: no memory, socket or clock.
//!
//! An open call has two ends. The *waiter* wants an outcome: a response, the peer's death or the
//! deadline, whichever is first. The *response* is owed by the peer even without a waiter; until it
//! arrives, the call counts against the peer's credits. An entry is removed when both ends are
//! done.

mod calls;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use nearpath_types::{FunctionId, InstanceId, topic};
use slab::Slab;

use crate::clock::MonotonicNanos;
use crate::protocol::{ChannelError, EdgeTerms};
use crate::topology::ChannelNumber;

pub use calls::SettledCall;

use calls::{OpenCall, call_number};

/// Destination of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallDestination<'a> {
    /// Any instance of a function.
    Function(&'a FunctionId),
    /// A specific instance.
    Instance(InstanceId),
    /// Any endpoint of a subscriber. For events only.
    Subscriber(&'a EventSubscriber),
}

/// Reason why no peer can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPeer {
    /// No peer has that name.
    Unknown,
    /// No peer has credit.
    Busy,
    /// The node could not create a channel to the declared peer.
    NoChannel(ChannelError),
}

/// Subscriber of events: a function; `None`: the gateway, for functions on other nodes.
pub type EventSubscriber = Option<FunctionId>;

/// Topic filters of a subscriber, and the channels to its endpoints.
#[derive(Debug, Default)]
struct Subscription {
    filters: Vec<String>,
    channels: Vec<ChannelNumber>,
}

#[derive(Debug)]
struct PeerEntry {
    /// The peer's function; `None`: the gateway.
    function: Option<FunctionId>,
    /// Aliases of the function for this caller.
    aliases: Vec<FunctionId>,
    instance: InstanceId,
    in_flight: u32,
}

/// Number of an open call: slab index in the low half, generation in the high half, so that no
/// number repeats.
pub type CallNumber = u64;

/// Peers and open calls; see the module documentation. `T` is the outcome of a call.
#[derive(Debug)]
pub struct PeerTable<T> {
    peers: BTreeMap<ChannelNumber, PeerEntry>,
    functions: HashMap<FunctionId, Vec<ChannelNumber>>,
    instances: HashMap<InstanceId, Vec<ChannelNumber>>,
    subscriptions: BTreeMap<EventSubscriber, Subscription>,
    /// Functions without a channel, by callable name, with the node's error.
    failures: HashMap<FunctionId, ChannelError>,
    calls: Slab<OpenCall<T>>,
    deadlines: BinaryHeap<Reverse<(MonotonicNanos, CallNumber)>>,
    last_generation: u32,
    rng_state: u64,
}

impl<T> PeerTable<T> {
    /// Creates an empty table; `seed` makes endpoints choose differently.
    pub fn new(seed: u64) -> Self {
        Self {
            peers: BTreeMap::new(),
            functions: HashMap::new(),
            instances: HashMap::new(),
            subscriptions: BTreeMap::new(),
            failures: HashMap::new(),
            calls: Slab::new(),
            deadlines: BinaryHeap::new(),
            last_generation: 0,
            // xorshift stays 0 for ever once it is 0.
            rng_state: seed | 1,
        }
    }

    /// Adds a peer that can be called.
    pub fn add_peer(&mut self, channel: ChannelNumber, function: FunctionId, instance: InstanceId) {
        self.add_peer_with(channel, Some(function), instance, &EdgeTerms::default());
    }

    /// Adds a peer for calls, or for events only, as the edge's terms demand. The gateway, which has
    /// no function, takes events only.
    pub fn add_peer_with(
        &mut self,
        channel: ChannelNumber,
        function: Option<FunctionId>,
        instance: InstanceId,
        terms: &EdgeTerms,
    ) {
        let aliases = if terms.events_only {
            Vec::new()
        } else {
            terms.aliases.clone()
        };
        if let Some(function) = function.as_ref().filter(|_| !terms.events_only) {
            for name in aliases.iter().chain([function]) {
                self.functions
                    .entry(name.clone())
                    .or_default()
                    .push(channel);
                // A channel exists now: the node's earlier error no longer applies.
                self.failures.remove(name);
            }
            self.instances.entry(instance).or_default().push(channel);
        }
        if !terms.topics.is_empty() {
            let subscription = self.subscriptions.entry(function.clone()).or_default();
            // The newest instance has the current filters
            subscription.filters.clone_from(&terms.topics);
            subscription.channels.push(channel);
        }
        self.peers.insert(
            channel,
            PeerEntry {
                function,
                aliases,
                instance,
                in_flight: 0,
            },
        );
    }

    /// Returns the subscribers whose filters select a topic, with at most one entry for the gateway.
    pub fn subscribers(&self, topic: &str) -> Vec<EventSubscriber> {
        let wants = |subscription: &Subscription| {
            subscription
                .filters
                .iter()
                .any(|filter| topic::filter_matches(filter, topic))
        };
        self.subscriptions
            .iter()
            .filter(|(_, subscription)| wants(subscription))
            .map(|(subscriber, _)| subscriber.clone())
            .collect()
    }

    /// Stops new calls to a peer; open calls continue.
    pub fn retire_peer(&mut self, channel: ChannelNumber) {
        let Some(peer) = self.peers.get(&channel) else {
            return;
        };
        for name in peer.aliases.iter().chain(&peer.function) {
            remove_channel(&mut self.functions, name, channel);
        }
        if let Some(subscription) = self.subscriptions.get_mut(&peer.function) {
            subscription.channels.retain(|&other| other != channel);
            if subscription.channels.is_empty() {
                self.subscriptions.remove(&peer.function);
            }
        }
        remove_channel(&mut self.instances, &peer.instance, channel);
    }

    /// Retires a dead peer and returns its open calls. Settle each with [`PeerTable::settle_call`].
    pub fn retire_dead(&mut self, channel: ChannelNumber) -> Vec<CallNumber> {
        self.retire_peer(channel);
        let open = self
            .calls
            .iter()
            .filter(|(_, open)| open.channel == channel && open.owed);
        open.map(|(index, open)| call_number(index, open.generation))
            .collect()
    }

    /// Removes a dead or drained peer.
    pub fn remove_peer(&mut self, channel: ChannelNumber) {
        self.retire_peer(channel);
        self.peers.remove(&channel);
    }

    /// Records that the node could not create a channel to a function. Callers get the error until
    /// a channel exists.
    pub fn record_failure(&mut self, name: FunctionId, error: ChannelError) {
        self.failures.insert(name, error);
    }

    /// Returns the channels to an instance.
    pub fn instance_channels(&self, instance: InstanceId) -> &[ChannelNumber] {
        self.instances.get(&instance).map_or(&[], Vec::as_slice)
    }

    /// Returns true if a function can be called, credits aside.
    pub fn has_function(&self, function: &FunctionId) -> bool {
        self.functions.contains_key(function)
    }

    /// Iterates over the callable functions.
    pub fn functions(&self) -> impl Iterator<Item = &FunctionId> {
        self.functions.keys()
    }

    /// Returns the channels to the instances of a function.
    pub fn function_channels(&self, function: &FunctionId) -> &[ChannelNumber] {
        self.functions.get(function).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of owed responses on a channel.
    pub fn in_flight(&self, channel: ChannelNumber) -> u32 {
        self.peers.get(&channel).map_or(0, |peer| peer.in_flight)
    }

    /// Chooses the less loaded of two random peers (power of two choices); peers without credit are
    /// skipped.
    pub fn choose_channel(
        &mut self,
        to: CallDestination<'_>,
        mut credit: impl FnMut(ChannelNumber) -> bool,
    ) -> Result<ChannelNumber, NoPeer> {
        let rng = [self.next_random(), self.next_random()];
        let candidates = match to {
            CallDestination::Function(function) => self.functions.get(function),
            CallDestination::Instance(instance) => self.instances.get(&instance),
            CallDestination::Subscriber(subscriber) => self
                .subscriptions
                .get(subscriber)
                .map(|subscription| &subscription.channels),
        };
        let candidates = candidates
            .filter(|list| !list.is_empty())
            .ok_or_else(|| match to {
                CallDestination::Function(function) => self
                    .failures
                    .get(function)
                    .map_or(NoPeer::Unknown, |error| NoPeer::NoChannel(*error)),
                _ => NoPeer::Unknown,
            })?;
        let count = candidates.len();
        let first = rng[0] % count;
        let second = if count > 1 {
            (first + 1 + rng[1] % (count - 1)) % count
        } else {
            first
        };
        let load = |at: usize| {
            self.peers
                .get(&candidates[at])
                // An unknown peer is never the better choice.
                .map_or(u32::MAX, |peer| peer.in_flight)
        };
        let (better, other) = if load(second) < load(first) {
            (second, first)
        } else {
            (first, second)
        };
        // All others follow: a call fails only when no instance has credit.
        let rest = (0..count)
            .map(|step| (first + step) % count)
            .filter(|&at| at != first && at != second);
        let mut order = [better, other].into_iter().chain(rest);
        order
            .find(|&at| credit(candidates[at]))
            .map(|at| candidates[at])
            .ok_or(NoPeer::Busy)
    }

    fn next_random(&mut self) -> usize {
        // xorshift64: spreads load well enough, and needs no cryptographic quality.
        self.rng_state ^= self.rng_state << 13;
        self.rng_state ^= self.rng_state >> 7;
        self.rng_state ^= self.rng_state << 17;
        (self.rng_state >> 16) as usize
    }
}

fn remove_channel<K: std::hash::Hash + Eq + Clone>(
    lists: &mut HashMap<K, Vec<ChannelNumber>>,
    key: &K,
    channel: ChannelNumber,
) {
    if let Some(list) = lists.get_mut(key) {
        list.retain(|&other| other != channel);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}
