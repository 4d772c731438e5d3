//! How channels end: withdrawn, bereaved, broken, and let go of.

use nearpath_shm::Party;
use nearpath_types::InstanceId;

use crate::clock::Nanos;
use crate::protocol::End;

use super::{Action, Channel, Closing, Line, NotAsked, PATIENCE, Phase, Registrar};

impl Registrar {
    pub(super) fn withdraw_unwanted(&mut self) -> Vec<Action> {
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
        let (mut actions, lines) = (Vec::new(), self.lines_of(party));
        let called: Vec<Party> = lines.iter().filter_map(|channel| Some(self.lines.get(channel)?.callee)).collect();
        for channel in lines {
            actions.extend(self.orphan(channel, party, now));
        }
        actions.extend(called.into_iter().filter_map(|callee| self.quiet_party(callee))); // they waited for its calls
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
