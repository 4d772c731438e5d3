//! Who may talk to whom in a domain, decided by the node. Pure: events in, actions out.
//!
//! A channel stands for each declared edge between a live party of the caller's function and a ready party of the callee's;
//! the gateway may call every function. When one side dies the other is told and let go of the channel, at most for
//! [`PATIENCE`]; what the dead held is swept at once and again at the end. A party's number rests until every peer has let go
//! and no slot bears it. A party that stands in for its instance is called only while no other party of it takes calls.

use std::collections::{BTreeMap, BTreeSet};

use nearpath_shm::Party;
use nearpath_types::{FunctionId, InstanceId};

use crate::clock::Nanos;
use crate::protocol::End;

/// How long peers have to let go of a dead party's channels.
pub const PATIENCE: Nanos = 1_000_000_000;

/// A channel's number.
pub type Channel = u32;
/// Caller and callee.
pub type Edge = (FunctionId, FunctionId);

/// Who a party is; what the node knows from the socket that it came by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// It may call every function.
    Gateway,
    /// An instance of a function.
    Instance(InstanceId, FunctionId),
}

impl Who {
    /// The function, unless it is the gateway.
    pub fn function(&self) -> Option<&FunctionId> {
        match self {
            Self::Gateway => None,
            Self::Instance(_, function) => Some(function),
        }
    }

    /// The instance, unless it is the gateway.
    pub fn instance(&self) -> Option<InstanceId> {
        match self {
            Self::Gateway => None,
            Self::Instance(instance, _) => Some(*instance),
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make a channel and tell both.
    Open {
        /// Its number: never given before.
        channel: Channel,
        /// Who calls.
        caller: Party,
        /// Who is called.
        callee: Party,
    },
    /// Write `closed` and wake both sides.
    Close {
        /// Which.
        channel: Channel,
        /// No new calls, or the caller or callee is gone.
        how: Closing,
    },
    /// Tell a party that a channel comes to its end.
    Tell {
        /// Whom.
        party: Party,
        /// Which.
        channel: Channel,
        /// How.
        state: End,
    },
    /// Nobody living holds the channel: let go of it.
    Forget {
        /// Which.
        channel: Channel,
    },
    /// Give the slots of the dead back; say [`Registrar::rested`] of those numbers that no slot bears.
    Sweep,
    /// All that this instance was asked is answered, and it is asked no more.
    Quiet {
        /// The instance that was withdrawn.
        instance: InstanceId,
    },
}

/// How a channel is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// No new calls.
    Withdrawn,
    /// The caller is gone, or done.
    Caller,
    /// The callee is gone.
    Callee,
    /// It is of no use to either.
    Broken,
}

/// Two parties whose channel broke, or could not be made. They get another one, each time later: who breaks every channel
/// costs the node one a minute.
#[derive(Debug, Default)]
struct Setback {
    times: u32,
    until: Nanos,
    waits: bool,
}

impl Setback {
    /// The next try comes after [`PATIENCE`], then twice as long each time, at most 64 times.
    fn again(&mut self, now: Nanos) {
        self.until = now + (PATIENCE << self.times.min(6));
        self.times += 1;
        self.waits = true;
    }
}

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

    fn withdraw_unwanted(&mut self) -> Vec<Action> {
        let stale = |line: &Line| line.phase == Phase::Open && !self.wanted(line.caller, line.callee);
        let stale: Vec<Channel> = self.lines.iter().filter(|(_, line)| stale(line)).map(|(&c, _)| c).collect();
        stale.into_iter().flat_map(|channel| self.withdraw_line(channel)).collect()
    }

    /// An instance gets no new calls. [`Action::Quiet`] follows when the open ones have ended.
    pub fn withdraw(&mut self, instance: InstanceId) -> Vec<Action> {
        if !self.withdrawn.insert(instance) {
            return Vec::new();
        }
        let lines =
            self.lines.iter().filter(|(_, line)| line.phase == Phase::Open && self.is_of(line.callee, instance));
        let lines: Vec<Channel> = lines.map(|(&channel, _)| channel).collect();
        let mut actions: Vec<Action> = lines.into_iter().flat_map(|channel| self.withdraw_line(channel)).collect();
        actions.extend(self.quiet(instance));
        actions
    }

    fn withdraw_line(&mut self, channel: Channel) -> Vec<Action> {
        let Some(line) = self.lines.get_mut(&channel) else { return Vec::new() };
        line.phase = Phase::Finishing;
        let tell = Action::Tell { party: line.caller, channel, state: End::Withdrawn };
        vec![Action::Close { channel, how: Closing::Withdrawn }, tell]
    }

    /// A party has left or died.
    pub fn left(&mut self, party: Party, now: Nanos) -> Vec<Action> {
        let Some(member) = self.members.remove(&party) else { return Vec::new() };
        self.resting.insert(party);
        self.setbacks.retain(|&(caller, callee), _| caller != party && callee != party);
        let mut actions = Vec::new();
        for channel in self.lines_of(party) {
            actions.extend(self.orphan(channel, party, now));
        }
        actions.push(Action::Sweep);
        if let Some(instance) = member.who.instance() {
            actions.extend(self.connect()); // another party of the instance may stand in
            actions.extend(self.quiet(instance));
        }
        actions
    }

    /// One side of a line is gone: the other is told, and has to let go.
    fn orphan(&mut self, channel: Channel, gone: Party, now: Nanos) -> Vec<Action> {
        let Some(line) = self.lines.get_mut(&channel) else { return Vec::new() };
        let holder = if line.caller == gone { line.callee } else { line.caller };
        let alive = self.members.contains_key(&holder);
        let waits = match line.phase {
            Phase::Ending { holder: last, .. } => last != gone && alive,
            _ => alive,
        };
        if !waits {
            self.lines.remove(&channel);
            return vec![Action::Forget { channel }];
        }
        if matches!(line.phase, Phase::Ending { .. }) {
            return Vec::new(); // the other has been told already
        }
        let how = if line.caller == gone { Closing::Caller } else { Closing::Callee };
        line.phase = Phase::Ending { holder, until: now + PATIENCE, overdue: false };
        vec![Action::Close { channel, how }, Action::Tell { party: holder, channel, state: End::Dead }]
    }

    /// A party says that a channel is broken: it holds nothing of it any more. The other is told, and has to let go; then they
    /// get another one. Nothing happens to a channel that is ending already: its end takes its course.
    pub fn broken(&mut self, party: Party, channel: Channel, now: Nanos) -> Result<Vec<Action>, NotAsked> {
        let Some(line) = self.lines.get(&channel) else { return Ok(Vec::new()) };
        if line.caller != party && line.callee != party {
            return Err(NotAsked);
        }
        let other = if line.caller == party { line.callee } else { line.caller };
        Ok(self.break_line(channel, Some(other), now))
    }

    /// A channel could not be made. `told`: who has heard of it nevertheless, and has to let go.
    pub fn failed(&mut self, channel: Channel, told: Option<Party>, now: Nanos) -> Vec<Action> {
        self.break_line(channel, told, now)
    }

    fn break_line(&mut self, channel: Channel, holder: Option<Party>, now: Nanos) -> Vec<Action> {
        let Some(line) = self.lines.get_mut(&channel).filter(|line| line.phase == Phase::Open) else {
            return Vec::new();
        };
        self.setbacks.entry((line.caller, line.callee)).or_default().again(now);
        let Some(holder) = holder else {
            self.lines.remove(&channel);
            return vec![Action::Forget { channel }];
        };
        line.phase = Phase::Ending { holder, until: now + PATIENCE, overdue: false };
        let mut actions = vec![
            Action::Close { channel, how: Closing::Broken },
            Action::Tell { party: holder, channel, state: End::Dead },
        ];
        if let Some(callee) = self.lines.get(&channel).map(|line| line.callee) {
            actions.extend(self.quiet_party(callee));
        }
        actions
    }

    /// A party holds nothing of a channel any more. An error when it was not asked: the party is at fault.
    pub fn drained(&mut self, party: Party, channel: Channel, now: Nanos) -> Result<Vec<Action>, NotAsked> {
        let Some(line) = self.lines.get_mut(&channel) else { return Err(NotAsked) };
        match line.phase {
            Phase::Finishing if line.caller == party => {
                let callee = line.callee;
                line.phase = Phase::Ending { holder: callee, until: now + PATIENCE, overdue: false };
                let mut actions = vec![
                    Action::Close { channel, how: Closing::Caller },
                    Action::Tell { party: callee, channel, state: End::Dead },
                ];
                actions.extend(self.quiet_party(callee));
                Ok(actions)
            }
            Phase::Ending { holder, .. } if holder == party => {
                self.lines.remove(&channel);
                let mut actions = vec![Action::Forget { channel }, Action::Sweep];
                actions.extend(self.connect()); // declared again meanwhile
                Ok(actions)
            }
            _ if line.caller == party || line.callee == party => Ok(Vec::new()), // said twice, or before it was asked
            _ => Err(NotAsked),
        }
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

    fn quiet_party(&self, party: Party) -> Option<Action> {
        self.quiet(self.who(party)?.instance()?)
    }

    /// Whether a withdrawn instance has nothing more to do.
    fn quiet(&self, instance: InstanceId) -> Option<Action> {
        let asks =
            |line: &Line| matches!(line.phase, Phase::Open | Phase::Finishing) && self.is_of(line.callee, instance);
        let quiet = self.withdrawn.contains(&instance) && !self.lines.values().any(asks);
        quiet.then_some(Action::Quiet { instance })
    }
}

/// A party speaks of a channel that is none of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the party speaks of a channel that is none of its own")]
pub struct NotAsked;
