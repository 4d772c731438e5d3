//! Processor of a group: decided each round, from loads and the group's history.

use nearpath_types::policy::ChainPlacement;

use super::limits::{
    FULL_ROUNDS, MAX_BUSY_TO_JOIN, MAX_LONE_CALL_COST, MAX_LONE_TRIAL_SHARE,
    MAX_ROUNDS_WITHOUT_SHORT_CALLS, MAX_SMALL_SHARE, MAX_TRIAL_SHARE, MIN_COMPARED_SHARE,
    MIN_FOREIGN_TO_LEAVE, MIN_SHARED_CALLS, MIN_SPREAD_GAIN, SETTLED_ROUNDS, SMALL_ROUNDS,
    TRIAL_PAUSE_ROUNDS,
};
use super::load::{CpuLoad, GroupLoad, foreign_share, has_foreign_load, is_full, least_loaded};
use super::pause::Pause;

/// Processor of a group, and its history.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupCpu {
    cpu: Option<usize>,
    /// Consecutive rounds on all processors in which one could have been enough.
    small_rounds: u32,
    /// Rounds on this processor since the group got it; full ones do not count.
    placed_rounds: u32,
    /// Consecutive rounds in which its processor was full.
    full_rounds: u32,
    /// Rounds on this processor without short calls since the last one with them; full ones do not
    /// count. Counted for lone functions only.
    rounds_without_short_calls: u32,
    /// Rounds without a move or trial.
    pub(super) pause: Pause,
    /// The other placement, which this round tries.
    pub(super) trial: Option<Trial>,
}

/// Trial of a placement for one round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trial {
    /// Processor that the group had before; `None`: all, and the trial is for one.
    previous_cpu: Option<usize>,
    /// Load before.
    before: GroupLoad,
}

impl Trial {
    /// Returns whether a trial of all processors has shown that one is not enough.
    fn keeps_all_cpus(&self, load: &GroupLoad) -> bool {
        let has_other_work = load.used() > 1.0 && !load.has_short_calls();
        if has_other_work {
            return true;
        }
        let mut changes = load.changes_since(&self.before);
        changes.any(|factor| factor >= MIN_SPREAD_GAIN)
    }

    /// Returns whether a trial of one processor has shown that it is enough.
    fn keeps_one_cpu(&self, load: &GroupLoad) -> bool {
        let mut changes = load.changes_since(&self.before);
        if !changes.all(|factor| factor >= MIN_SHARED_CALLS) {
            return false;
        }
        if !load.is_lone_function {
            return true;
        }
        load.call_seconds() <= MAX_LONE_CALL_COST * self.before.call_seconds()
    }
}

impl GroupCpu {
    /// Returns the group's processor; `None` for all.
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }

    /// Applies the part of the policy that needs no measurement: `core` gets a processor at once.
    /// `cpus` are those that the node may use.
    pub fn apply_policy(&mut self, placement: ChainPlacement, cpus: &[CpuLoad]) -> Option<usize> {
        let exists = |cpu| cpus.iter().any(|one| one.cpu == cpu);
        // A single processor needs no placement, and one outside of the set must not stay chosen.
        self.cpu = self.cpu.filter(|&cpu| exists(cpu) && cpus.len() > 1);
        match placement {
            ChainPlacement::Spread => *self = Self::default(),
            ChainPlacement::Core if cpus.len() > 1 => {
                self.cpu = self.cpu.or_else(|| least_loaded(cpus, f64::INFINITY));
                self.trial = None;
            }
            ChainPlacement::Core | ChainPlacement::Auto => {}
        }
        self.cpu
    }

    /// Decides on the processor, from the loads since the last round.
    pub fn decide_cpu(
        &mut self,
        placement: ChainPlacement,
        load: &GroupLoad,
        cpus: &[CpuLoad],
    ) -> Option<usize> {
        self.apply_policy(placement, cpus);
        if placement == ChainPlacement::Auto && cpus.len() > 1 {
            self.pause.tick();
            let is_full = self.cpu.is_some_and(|cpu| is_full(cpu, load, cpus));
            self.full_rounds = match is_full {
                true => self.full_rounds.saturating_add(1),
                false => 0,
            };
            match (self.cpu, self.trial.take()) {
                (Some(cpu), _) if has_foreign_load(cpu, load, cpus) => self.make_way(load),
                (_, Some(trial)) => self.end_trial(&trial, load),
                (Some(cpu), None) if is_full => self.outgrow_cpu(cpu, load),
                (Some(_), None) => self.stay_on_cpu(load),
                (None, None) => self.wait_for_cpu(load, cpus),
            }
        }
        self.cpu
    }

    /// Leaves a processor that others load. An idle group may come back as soon as it is free
    /// again: its moves cost nothing.
    fn make_way(&mut self, load: &GroupLoad) {
        if load.used() >= MIN_COMPARED_SHARE {
            return self.leave_cpu();
        }
        self.move_to(None);
    }

    fn leave_cpu(&mut self) {
        self.move_to(None);
        self.pause.begin_doubled();
    }

    fn move_to(&mut self, cpu: Option<usize>) {
        self.cpu = cpu;
        (self.small_rounds, self.placed_rounds) = (0, 0);
    }

    fn stay_on_cpu(&mut self, load: &GroupLoad) {
        self.placed_rounds = self.placed_rounds.saturating_add(1);
        if self.placed_rounds >= SETTLED_ROUNDS {
            self.pause.reset_length();
        }
        self.rounds_without_short_calls = match load.is_lone_function && !load.has_short_calls() {
            true => self.rounds_without_short_calls.saturating_add(1),
            false => 0,
        };
        // Its next call may be a long one, with many threads.
        if self.rounds_without_short_calls >= MAX_ROUNDS_WITHOUT_SHORT_CALLS {
            self.move_to(None);
        }
    }

    /// Leaves a full processor: for a trial where the calls are short, else for long.
    fn outgrow_cpu(&mut self, previous_cpu: usize, load: &GroupLoad) {
        if !load.has_short_calls() {
            self.leave_cpu();
        } else if self.pause.is_over() && self.full_rounds >= FULL_ROUNDS {
            self.begin_trial(Some(previous_cpu), None, load);
        }
    }

    fn begin_trial(&mut self, previous_cpu: Option<usize>, cpu: Option<usize>, load: &GroupLoad) {
        self.cpu = cpu;
        self.trial = Some(Trial {
            previous_cpu,
            before: load.clone(),
        });
    }

    fn end_trial(&mut self, trial: &Trial, load: &GroupLoad) {
        let is_kept = match trial.previous_cpu {
            Some(_) => trial.keeps_all_cpus(load),
            None => trial.keeps_one_cpu(load),
        };
        let cpu = if is_kept {
            self.cpu
        } else {
            trial.previous_cpu
        };
        self.move_to(cpu);
        match cpu {
            Some(_) => self.pause.begin(TRIAL_PAUSE_ROUNDS),
            None => self.pause.begin_doubled(),
        }
    }

    fn wait_for_cpu(&mut self, load: &GroupLoad, cpus: &[CpuLoad]) {
        self.rounds_without_short_calls = 0;
        // A lone function gets a processor only by a trial: nothing tells how long the next call of
        // an idle one is.
        let may_join = load.used() <= MAX_SMALL_SHARE && !load.is_lone_function;
        let (max_share, rounds) = match load.is_lone_function {
            true => (MAX_LONE_TRIAL_SHARE, 1),
            false => (MAX_TRIAL_SHARE, SMALL_ROUNDS),
        };
        // A large group of short calls may be large because it is spread.
        let may_try = load.used() <= max_share
            && load.has_short_calls()
            && foreign_share(load, cpus) < MIN_FOREIGN_TO_LEAVE;
        self.small_rounds = match may_join || may_try {
            true => self.small_rounds.saturating_add(1),
            false => 0,
        };
        if !self.pause.is_over() || self.small_rounds < rounds {
            return;
        }
        match least_loaded(cpus, MAX_BUSY_TO_JOIN).filter(|_| may_join) {
            None if may_try => {
                self.small_rounds = 0;
                self.begin_trial(None, least_loaded(cpus, f64::INFINITY), load);
            }
            free_cpu => self.move_to(free_cpu),
        }
    }
}
