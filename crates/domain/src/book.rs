//! What one party knows: its peers by function and instance, and its open calls. Pure: no memory, socket or clock.
//!
//! An open call has two ends. The *waiter* wants an outcome: an answer, the peer's death or the deadline, whichever comes
//! first. The *answer* is owed by the peer also when nobody waits any more: until it has come, the call counts against the
//! peer's credits. An entry is forgotten when both have come to their end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::task::{Poll, Waker};

use nearpath_types::{FunctionId, InstanceId, topic};
use slab::Slab;

use crate::clock::Nanos;
use crate::protocol::{Lack, Terms};

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

#[derive(Debug)]
struct Open<T> {
    life: u32,
    channel: Channel,
    began: Nanos,
    owed: bool,
    waiter: Waiter<T>,
}

#[derive(Debug)]
enum Waiter<T> {
    Waits(Option<Waker>),
    Has(T),
    Left,
}

/// A call to which the answer has come, or never will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// When it was made.
    pub began: Nanos,
    /// Whether somebody still wanted the answer.
    pub wanted: bool,
}

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

    /// A call is being made on this channel. `deadline` 0: none.
    pub fn open(&mut self, channel: Channel, now: Nanos, deadline: Nanos) -> Call {
        self.life = self.life.wrapping_add(1);
        let open = Open { life: self.life, channel, began: now, owed: true, waiter: Waiter::Waits(None) };
        let call = number(self.calls.insert(open), self.life);
        if let Some(peer) = self.peers.get_mut(&channel) {
            peer.in_flight += 1;
        }
        if deadline > 0 {
            self.remember(deadline, call);
        }
        call
    }

    fn remember(&mut self, deadline: Nanos, call: Call) {
        if self.deadlines.len() > 64 + 2 * self.calls.len() {
            let mut kept = std::mem::take(&mut self.deadlines).into_vec();
            kept.retain(|Reverse((_, call))| self.waits(*call));
            self.deadlines = kept.into();
        }
        self.deadlines.push(Reverse((deadline, call)));
    }

    /// The call was not sent after all: nobody owes anything.
    pub fn unopen(&mut self, call: Call) {
        self.settle_with(call, None);
        self.leave(call);
    }

    /// Whether an answer to this call is owed on this channel.
    pub fn owed(&self, call: Call, channel: Channel) -> bool {
        self.find(call).is_some_and(|open| open.owed && open.channel == channel)
    }

    /// Whether somebody waits for an outcome that has not come.
    pub fn waits(&self, call: Call) -> bool {
        self.find(call).is_some_and(|open| matches!(open.waiter, Waiter::Waits(_)))
    }

    /// The answer has come, or never will. Nothing when it was not owed.
    pub fn settle(&mut self, call: Call, outcome: T) -> Option<Settled> {
        self.settle_with(call, Some(outcome))
    }

    fn settle_with(&mut self, call: Call, outcome: Option<T>) -> Option<Settled> {
        let open = self.find_mut(call).filter(|open| open.owed)?;
        open.owed = false;
        let (channel, began, wanted) = (open.channel, open.began, matches!(open.waiter, Waiter::Waits(_)));
        if let Some(peer) = self.peers.get_mut(&channel) {
            peer.in_flight = peer.in_flight.saturating_sub(1);
        }
        match outcome {
            Some(outcome) if wanted => self.give(call, outcome),
            _ => self.tidy(call),
        }
        Some(Settled { began, wanted })
    }

    /// Gives the waiter an outcome before the answer: the deadline has passed. The channel, if somebody waited.
    pub fn expire(&mut self, call: Call, outcome: T) -> Option<Channel> {
        let channel = self.find(call).filter(|open| matches!(open.waiter, Waiter::Waits(_)))?.channel;
        self.give(call, outcome);
        Some(channel)
    }

    /// Gives the waiter the beginning of an answer: it is owed until its end has come. False: nobody waits.
    pub fn begin(&mut self, call: Call, beginning: T) -> bool {
        self.expire(call, beginning).is_some()
    }

    fn give(&mut self, call: Call, outcome: T) {
        if let Some(open) = self.find_mut(call)
            && let Waiter::Waits(Some(waker)) = std::mem::replace(&mut open.waiter, Waiter::Has(outcome))
        {
            waker.wake();
        }
    }

    /// The outcome, if it has come; else `waker` is told when it does.
    pub fn poll(&mut self, call: Call, waker: Option<&Waker>) -> Poll<Option<T>> {
        let Some(open) = self.find_mut(call) else { return Poll::Ready(None) };
        if let Waiter::Waits(waits) = &mut open.waiter {
            *waits = waker.cloned();
            return Poll::Pending;
        }
        let waiter = std::mem::replace(&mut open.waiter, Waiter::Left);
        self.tidy(call);
        Poll::Ready(if let Waiter::Has(outcome) = waiter { Some(outcome) } else { None })
    }

    /// Nobody waits any more. The channel, if the answer is owed and had not been given up before: tell the peer.
    pub fn leave(&mut self, call: Call) -> Option<Channel> {
        let open = self.find_mut(call)?;
        let waited = matches!(std::mem::replace(&mut open.waiter, Waiter::Left), Waiter::Waits(_));
        let tell = (open.owed && waited).then_some(open.channel);
        self.tidy(call);
        tell
    }

    /// The next call whose deadline is not after `now`.
    pub fn due(&mut self, now: Nanos) -> Option<Call> {
        while let Some(&Reverse((deadline, call))) = self.deadlines.peek() {
            let waits = self.waits(call);
            if waits && deadline > now {
                return None;
            }
            self.deadlines.pop();
            if waits {
                return Some(call);
            }
        }
        None
    }

    /// When [`Book::due`] has something to say, if nothing happens before.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        while let Some(&Reverse((deadline, call))) = self.deadlines.peek() {
            if self.waits(call) {
                return Some(deadline);
            }
            self.deadlines.pop();
        }
        None
    }

    /// The channel that a call was made on.
    pub fn channel(&self, call: Call) -> Option<Channel> {
        self.find(call).map(|open| open.channel)
    }

    /// Calls that are not forgotten.
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    fn find(&self, call: Call) -> Option<&Open<T>> {
        self.calls.get(index(call)).filter(|open| open.life == life(call))
    }

    fn find_mut(&mut self, call: Call) -> Option<&mut Open<T>> {
        self.calls.get_mut(index(call)).filter(|open| open.life == life(call))
    }

    fn tidy(&mut self, call: Call) {
        if self.find(call).is_some_and(|open| !open.owed && matches!(open.waiter, Waiter::Left)) {
            self.calls.remove(index(call));
        }
    }
}

fn number(index: usize, life: u32) -> Call {
    u64::from(life) << 32 | index as u64
}

fn index(call: Call) -> usize {
    (call & u64::from(u32::MAX)) as usize
}

fn life(call: Call) -> u32 {
    (call >> 32) as u32
}

fn remove<K: std::hash::Hash + Eq + Clone>(lists: &mut HashMap<K, Vec<Channel>>, key: &K, channel: Channel) {
    if let Some(list) = lists.get_mut(key) {
        list.retain(|&other| other != channel);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn function(n: u8) -> FunctionId {
        format!("f{n}").parse().unwrap()
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Open(u8, u64),
        Settle(usize),
        Leave(usize),
        Take(usize),
        Due(u64),
        Bury(u8),
    }

    fn event() -> impl Strategy<Value = Event> {
        let any = any::<usize>;
        prop_oneof![
            4 => (0..4u8, 0..200u64).prop_map(|(channel, deadline)| Event::Open(channel, deadline)),
            3 => any().prop_map(Event::Settle),
            1 => any().prop_map(Event::Leave),
            2 => any().prop_map(Event::Take),
            1 => (0..200u64).prop_map(Event::Due),
            1 => (0..4u8).prop_map(Event::Bury),
        ]
    }

    /// One call in the model.
    #[derive(Debug, Clone, Copy)]
    struct Known {
        call: Call,
        channel: u32,
        deadline: u64,
        owed: bool,
        /// Nothing: somebody waits. Something: the outcome, or that nobody is there.
        outcome: Option<Option<u32>>,
    }

    proptest! {
        #[test]
        fn every_call_has_one_outcome(events in proptest::collection::vec(event(), 0..200)) {
            let mut book: Book<u32> = Book::new(1);
            (0..4u8).for_each(|n| book.meet(u32::from(n), function(n), InstanceId(u64::from(n))));
            let mut known: Vec<Known> = Vec::new();
            for event in events {
                match event {
                    Event::Open(channel, deadline) => {
                        let channel = u32::from(channel);
                        let call = book.open(channel, 0, deadline);
                        prop_assert!(known.iter().all(|k| k.call != call), "no number comes twice");
                        known.push(Known { call, channel, deadline, owed: true, outcome: None });
                    }
                    Event::Settle(n) if !known.is_empty() => {
                        let at = n % known.len();
                        let k = &mut known[at];
                        let settled = book.settle(k.call, 7);
                        prop_assert_eq!(settled.is_some(), k.owed);
                        prop_assert_eq!(settled.is_some_and(|s| s.wanted), k.owed && k.outcome.is_none());
                        if k.owed && k.outcome.is_none() { k.outcome = Some(Some(7)); }
                        k.owed = false;
                    }
                    Event::Leave(n) if !known.is_empty() => {
                        let at = n % known.len();
                        let k = &mut known[at];
                        let tell = k.owed && k.outcome.is_none();
                        prop_assert_eq!(book.leave(k.call), tell.then_some(k.channel));
                        k.outcome = Some(None);
                    }
                    Event::Take(n) if !known.is_empty() => {
                        let at = n % known.len();
                        let k = &mut known[at];
                        match (book.poll(k.call, None), k.outcome) {
                            (Poll::Pending, outcome) => prop_assert!(outcome.is_none()),
                            (Poll::Ready(got), outcome) => prop_assert_eq!(Some(got), outcome),
                        }
                        if k.outcome.is_some() { k.outcome = Some(None); }
                    }
                    Event::Due(now) => {
                        while let Some(call) = book.due(now) {
                            let k = known.iter_mut().find(|k| k.call == call).unwrap();
                            prop_assert!(k.outcome.is_none() && k.deadline > 0 && k.deadline <= now);
                            prop_assert_eq!(book.expire(call, 9), Some(k.channel));
                            k.outcome = Some(Some(9));
                        }
                        let late = |k: &Known| k.outcome.is_none() && k.deadline > 0 && k.deadline <= now;
                        prop_assert!(!known.iter().any(late), "a deadline was missed");
                    }
                    Event::Bury(channel) => {
                        let channel = u32::from(channel);
                        for call in book.bury(channel) {
                            let k = known.iter_mut().find(|k| k.call == call).unwrap();
                            prop_assert!(k.owed && k.channel == channel);
                            book.settle(call, 8);
                            k.owed = false;
                            if k.outcome.is_none() { k.outcome = Some(Some(8)); }
                        }
                        prop_assert!(known.iter().all(|k| k.channel != channel || !k.owed));
                    }
                    _ => {}
                }
                for channel in 0..4 {
                    let owed = known.iter().filter(|k| k.channel == channel && k.owed).count();
                    prop_assert_eq!(book.in_flight(channel) as usize, owed);
                }
                let open = known.iter().filter(|k| k.owed || !matches!(k.outcome, Some(None))).count();
                prop_assert_eq!(book.open_calls(), open, "nothing is kept for ever");
            }
        }

        #[test]
        fn only_those_with_credit_are_chosen(credits in proptest::collection::vec(any::<bool>(), 0..6), seed: u64) {
            let mut book: Book<()> = Book::new(seed);
            let id = function(0);
            (0..credits.len() as u32).for_each(|c| book.meet(c, id.clone(), InstanceId(u64::from(c))));
            let chosen = book.choose(To::Function(&id), |c| credits[c as usize]);
            match chosen {
                Ok(channel) => prop_assert!(credits[channel as usize]),
                Err(Nobody::Unknown | Nobody::NoChannel(_)) => prop_assert!(credits.is_empty()),
                Err(Nobody::Busy) => prop_assert!(!credits.is_empty() && !credits.contains(&true)),
            }
        }
    }

    #[test]
    fn load_is_spread() {
        let mut book: Book<()> = Book::new(3);
        let id = function(0);
        (0..4).for_each(|c| book.meet(c, id.clone(), InstanceId(u64::from(c))));
        for _ in 0..400 {
            let channel = book.choose(To::Function(&id), |_| true).unwrap();
            book.open(channel, 0, 0);
        }
        assert!((0..4).all(|c| (80..120).contains(&book.in_flight(c))), "two choices keep all near 100");
        book.retire(2);
        assert!((0..50).all(|_| book.choose(To::Function(&id), |_| true) != Ok(2)));
    }
}
