//! Who may talk to whom in a domain, decided by the node. Pure: events in, actions out.
//!
//! A channel stands for each declared edge between a live party of the caller's function and a ready party of the callee's;
//! the gateway may call every function. When one side dies the other is told and let go of the channel, at most for
//! [`PATIENCE`]; what the dead held is swept at once and again at the end. A party's number rests until every peer has let go
//! and no slot bears it. A party that stands in for its instance is called only while no other party of it takes calls.

mod endings;
mod setback;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use nearpath_shm::Party;
use nearpath_types::{FunctionId, InstanceId};

use crate::clock::Nanos;

pub use words::{Action, Closing, NotAsked, Who};

use setback::Setback;

/// How long peers have to let go of a dead party's channels.
pub const PATIENCE: Nanos = 1_000_000_000;

/// A channel's number.
pub type Channel = u32;
/// Caller and callee.
pub type Edge = (FunctionId, FunctionId);

#[derive(Debug)]
struct Member {
    who: Who,
    serves: bool,
    stands_in: bool,
    ready: bool,
    /// It has all that its peers have to be given.
    furnished: bool,
}

#[derive(Debug)]
struct Line {
    caller: Party,
    callee: Party,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The caller finishes its calls.
    Finishing,
    /// One side is gone or done; `holder` has still to let go. `overdue`: it has been forgotten in memory already.
    Ending {
        holder: Party,
        until: Nanos,
        overdue: bool,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub struct Registrar {
    members: BTreeMap<Party, Member>,
    edges: BTreeSet<Edge>,
    lines: BTreeMap<Channel, Line>,
    withdrawn: BTreeSet<InstanceId>,
    resting: BTreeSet<Party>,
    /// By caller and callee, as long as both live.
    setbacks: BTreeMap<(Party, Party), Setback>,
    last_party: u16,
    last_channel: Channel,
}

impl Registrar {
    /// Nobody is there, and nothing is declared.
    pub fn new() -> Self {
        Self::default()
    }

    /// A party has come: its number, unless all are taken.
    pub fn arrive(&mut self, who: Who, serves: bool) -> Option<(Party, Vec<Action>)> {
        let party = self.expect(who, serves)?;
        Some((party, self.furnished(party)))
    }

    /// A party has come that owes its peers something: it has a number, and no channels before [`Registrar::furnished`].
    pub fn expect(&mut self, who: Who, serves: bool) -> Option<Party> {
        let party = self.number()?;
        let serves = serves && who != Who::Gateway;
        self.members.insert(party, Member { who, serves, stands_in: false, ready: false, furnished: false });
        Some(party)
    }

    /// A party has given what it owed.
    pub fn furnished(&mut self, party: Party) -> Vec<Action> {
        match self.members.get_mut(&party) {
            Some(member) => member.furnished = true,
            None => return Vec::new(),
        }
        self.connect()
    }

    /// A party that has just come takes calls only while no other party of its instance does.
    pub fn stand_in(&mut self, party: Party) {
        if let Some(member) = self.members.get_mut(&party) {
            member.stands_in = true;
        }
    }

    fn number(&mut self) -> Option<Party> {
        let taken = |party: &Party| self.members.contains_key(party) || self.resting.contains(party);
        let after = (1..=u16::MAX).map(|step| self.last_party.wrapping_add(step)).filter_map(Party::new);
        let free = after.into_iter().find(|party| !taken(party))?;
        self.last_party = free.get();
        Some(free)
    }

    /// It takes calls from now on.
    pub fn ready(&mut self, party: Party) -> Vec<Action> {
        match self.members.get_mut(&party) {
            Some(member) => member.ready = true,
            None => return Vec::new(),
        }
        let mut actions = self.connect(); // first, so that callers who lose the one that stood in have the other already
        actions.extend(self.withdraw_unwanted());
        actions
    }

    /// The edges as they are from now on, all of them.
    pub fn declare(&mut self, edges: impl IntoIterator<Item = Edge>) -> Vec<Action> {
        self.edges = edges.into_iter().collect();
        let mut actions = self.withdraw_unwanted();
        actions.extend(self.connect());
        actions
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Nanos) -> Vec<Action> {
        let mut actions = Vec::new();
        for (&channel, line) in &mut self.lines {
            if let Phase::Ending { until, overdue, .. } = &mut line.phase
                && *until <= now
                && !*overdue
            {
                *overdue = true;
                actions.push(Action::Forget { channel });
            }
        }
        if !actions.is_empty() || !self.resting.is_empty() {
            actions.push(Action::Sweep);
        }
        let mut due = self.setbacks.values_mut().filter(|setback| setback.waits && setback.until <= now).peekable();
        if due.peek().is_some() {
            due.for_each(|setback| setback.waits = false);
            actions.extend(self.connect());
        }
        actions
    }

    /// When [`Registrar::tick`] is wanted.
    pub fn next_tick(&self, now: Nanos) -> Option<Nanos> {
        let ending = self.lines.values().filter_map(|line| match line.phase {
            Phase::Ending { until, overdue: false, .. } => Some(until),
            _ => None,
        });
        let resting = (!self.resting.is_empty()).then_some(now + PATIENCE);
        let setbacks = self.setbacks.values().filter(|setback| setback.waits).map(|setback| setback.until);
        ending.chain(resting).chain(setbacks).min()
    }

    /// Numbers of the dead that may still be borne by a slot.
    pub fn resting(&self) -> impl Iterator<Item = Party> + '_ {
        self.resting.iter().copied()
    }

    /// No slot bears this number; it may be given again once every peer has let go.
    pub fn rested(&mut self, party: Party) {
        if self.lines_of(party).is_empty() {
            self.resting.remove(&party);
        }
    }

    /// Whether a party with this number lives.
    pub fn lives(&self, party: Party) -> bool {
        self.members.contains_key(&party)
    }

    /// Who a living party is.
    pub fn who(&self, party: Party) -> Option<&Who> {
        self.members.get(&party).map(|member| &member.who)
    }

    /// The living parties of an instance.
    pub fn parties(&self, instance: InstanceId) -> Vec<Party> {
        self.members.keys().copied().filter(|&party| self.is_of(party, instance)).collect()
    }

    /// Nothing of the instance is left: its number may be forgotten.
    pub fn dismiss(&mut self, instance: InstanceId) {
        self.withdrawn.remove(&instance);
    }

    /// Channels that can be used for new calls: number, caller, callee.
    pub fn open_channels(&self) -> impl Iterator<Item = (Channel, Party, Party)> + '_ {
        let open = self.lines.iter().filter(|(_, line)| line.phase == Phase::Open);
        open.map(|(&channel, line)| (channel, line.caller, line.callee))
    }

    /// Opens every channel that is wanted and not there. One that is being wound up is waited for.
    fn connect(&mut self) -> Vec<Action> {
        let there: BTreeSet<(Party, Party)> = self.lines.values().map(|line| (line.caller, line.callee)).collect();
        let all = || self.members.keys().copied();
        let pairs = all().flat_map(|caller| all().map(move |callee| (caller, callee)));
        let missing: Vec<_> = pairs.filter(|&(p, q)| !there.contains(&(p, q)) && self.wanted(p, q)).collect();
        missing.into_iter().map(|(caller, callee)| self.open(caller, callee)).collect()
    }

    fn open(&mut self, caller: Party, callee: Party) -> Action {
        self.last_channel += 1;
        let channel = self.last_channel;
        self.lines.insert(channel, Line { caller, callee, phase: Phase::Open });
        Action::Open { channel, caller, callee }
    }

    fn wanted(&self, caller: Party, callee: Party) -> bool {
        let (Some(p), Some(q)) = (self.members.get(&caller), self.members.get(&callee)) else { return false };
        let Who::Instance(instance, function) = &q.who else { return false };
        let ready = p.furnished && q.furnished && q.serves && q.ready;
        let waits = self.setbacks.get(&(caller, callee)).is_some_and(|setback| setback.waits);
        let called = ready && caller != callee && !waits && !self.withdrawn.contains(instance);
        let edge = || p.who.function().is_none_or(|by| self.edges.contains(&(by.clone(), function.clone())));
        called && edge() && !(q.stands_in && self.is_served(*instance))
    }

    /// Whether the instance has a party of its own that takes calls.
    fn is_served(&self, instance: InstanceId) -> bool {
        let mut own = self.members.values().filter(|member| member.who.instance() == Some(instance));
        own.any(|member| member.serves && member.ready && member.furnished && !member.stands_in)
    }

    fn lines_of(&self, party: Party) -> Vec<Channel> {
        let of = |line: &Line| line.caller == party || line.callee == party;
        self.lines.iter().filter(|(_, line)| of(line)).map(|(&channel, _)| channel).collect()
    }

    fn is_of(&self, party: Party, instance: InstanceId) -> bool {
        self.who(party).and_then(Who::instance) == Some(instance)
    }
}
