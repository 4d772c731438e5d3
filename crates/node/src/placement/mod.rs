//! Placement of a chain's instances on a shared processor: a pure decision over measurements.
//!
//! A wake-up on the same processor costs a fifth of one across processors, so a small chain is
//! faster on one. A chain that burns CPU must not stay there while others idle.
//! [`ChainCpu::decide_cpu`] is called periodically with the load of the chain and the processors.
//! It assigns a processor to a small chain. When that gets full, short calls are tried for one round
//! on all processors, and the placement with more calls stays. Chains of longer calls leave at once.
//! After each leave the next trial comes later.
//!
//! A function without a chain is a chain of its own. It gets a processor only by a trial in which its
//! calls cost less, and keeps it while they are short (decision 98). The gateway's thread for the calls
//! of a chain follows it ([`ThreadCpu`], decision 97). [`placer`] measures and moves.

mod gateway_cpus;
pub(crate) mod group;
mod pause;
pub(crate) mod placer;
#[cfg(test)]
mod simulation;
mod thread_cpu;

use std::collections::BTreeMap;

use nearpath_types::FunctionId;
use nearpath_types::policy::ChainPlacement;

use pause::Pause;
pub use thread_cpu::{ThreadCpu, ThreadLoad};

/// Maximum load at which a chain may get a processor, as a share of one.
pub const MAX_SMALL_SHARE: f64 = 0.5;
/// Load of a chain at which its processor is too small.
pub const MAX_SHARED_SHARE: f64 = 0.8;
/// Maximum load of a processor that accepts a chain.
pub const MAX_BUSY_TO_JOIN: f64 = 0.6;
/// Load of a processor at which chains leave it.
pub const MIN_BUSY_TO_LEAVE: f64 = 0.9;
/// Consecutive rounds in which a chain must be small before it gets a processor.
pub const CALM_ROUNDS: u32 = 2;
/// Rounds that a chain stays away after leaving: the first time, and at most.
pub const AWAY_ROUNDS: (u32, u32) = (2, 256);
/// Rounds on one processor after which a leave counts as the first again.
pub const SETTLED_ROUNDS: u32 = 64;

/// Load of other programs on a processor at which chains leave it.
pub const MIN_FOREIGN_TO_LEAVE: f64 = 0.3;
/// CPU time of a function for one call, in seconds, above which its wake-ups cost little, and a trial
/// of its chain could gain nothing.
pub const MAX_SHORT_CALL_SECONDS: f64 = 500e-6;
/// The same for a function without a chain. Between others, only its own threads wake each other.
pub const MAX_LONE_CALL_SECONDS: f64 = 200e-6;
/// Part of the CPU time of its calls that a function without a chain may need on one processor. Some
/// runtimes gain nothing there, and all of them see only one processor.
pub const MAX_LONE_CALL_COST: f64 = 0.9;
/// CPU time of a function without a chain, in processors, above which one cannot be enough.
pub const MAX_LONE_TRIAL_SHARE: f64 = 1.2;
/// CPU time of a chain, in processors, above which one processor cannot be enough, although its calls
/// would cost less there.
pub const MAX_TRIAL_SHARE: f64 = 2.0;
/// Growth of a function's calls on all processors for which its chain gives up its own.
pub const MIN_SPREAD_GAIN: f64 = 1.1;
/// Part of its calls that each function must keep on one processor: it needs less CPU time for them.
pub const MIN_SHARED_CALLS: f64 = 0.95;
/// Calls of a function, a second, below which their number says nothing about a placement.
pub const MIN_COMPARED_CALLS: f64 = 10.0;
/// CPU time of a function, in processors, below which it has no part in a chain's load.
pub const MIN_COMPARED_SHARE: f64 = 0.02;
/// Consecutive full rounds before a trial of all processors: its base must not be the beginning of a
/// load.
pub const FULL_ROUNDS: u32 = 2;
/// Consecutive rounds without short calls after which a function without a chain may use all processors
/// again.
pub const MAX_IDLE_ROUNDS: u32 = 8;
/// Rounds from a trial of all processors to the next one. It costs little: the chain wakes itself
/// across processors for one round.
pub const TRIAL_PAUSE_ROUNDS: u32 = 16;

/// Load of a function since the last round.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FunctionLoad {
    /// CPU time of its instances, in processors.
    pub used: f64,
    /// Answered calls, a second; 0 where they are not counted.
    pub calls: f64,
}

impl FunctionLoad {
    /// Returns whether a call costs so little that its wake-ups matter.
    fn has_calls_up_to(self, seconds: f64) -> bool {
        self.calls > 0.0 && self.used / self.calls <= seconds
    }
}

/// Load of a chain since the last round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChainLoad {
    /// Its functions with running instances.
    pub functions: BTreeMap<FunctionId, FunctionLoad>,
    /// It is a function without a chain.
    pub is_alone: bool,
}

impl ChainLoad {
    /// Returns the CPU time of all functions, in processors.
    pub fn used(&self) -> f64 {
        self.functions.values().map(|one| one.used).sum()
    }

    /// Returns whether all calls that matter are short.
    fn has_short_calls(&self) -> bool {
        let mut loaded = self
            .functions
            .values()
            .filter(|one| one.used >= MIN_COMPARED_SHARE);
        let most = match self.is_alone {
            true => MAX_LONE_CALL_SECONDS,
            false => MAX_SHORT_CALL_SECONDS,
        };
        loaded.all(|one| one.has_calls_up_to(most)) && self.used() >= MIN_COMPARED_SHARE
    }

    /// Returns the CPU time of a call of all functions, in seconds. Infinite without calls.
    fn call_seconds(&self) -> f64 {
        let calls: f64 = self.functions.values().map(|one| one.calls).sum();
        self.used() / calls
    }

    /// Returns, for each function with enough calls in an earlier round, by which factor its calls
    /// have changed since.
    fn changes_since(&self, before: &Self) -> impl Iterator<Item = f64> {
        let compared = before
            .functions
            .iter()
            .filter(|(_, one)| one.calls >= MIN_COMPARED_CALLS);
        compared.map(|(id, one)| {
            self.functions
                .get(id)
                .map_or(0.0, |now| now.calls / one.calls)
        })
    }
}

/// Load of a processor since the last round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuLoad {
    /// Number of the processor.
    pub cpu: usize,
    /// Busy share of the time: 0 to 1.
    pub busy: f64,
    /// CPU time of the platform's own process on it, as a share. It serves all chains.
    pub platform: f64,
    /// Other chains on this processor.
    pub chains: u32,
}

/// Processor of a chain, and its history.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChainCpu {
    cpu: Option<usize>,
    /// Consecutive small rounds, or rounds on this processor.
    calm_rounds: u32,
    /// Consecutive rounds in which its processor was full.
    full_rounds: u32,
    /// Consecutive rounds on this processor without short calls.
    idle_rounds: u32,
    /// Rounds without a move or trial.
    pause: Pause,
    /// The other placement, which this round tries.
    trial: Option<Trial>,
}

/// Trial of a placement for one round.
#[derive(Debug, Clone, PartialEq)]
struct Trial {
    /// Processor that the chain had before; `None`: all, and the trial is for one.
    home: Option<usize>,
    /// Load before.
    before: ChainLoad,
}

impl ChainCpu {
    /// Returns the chain's processor; `None` for all.
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }

    /// Applies the part of the policy that needs no measurement: `core` gets a processor at once.
    /// `cores` are those that the node may use.
    pub fn apply_policy(&mut self, placement: ChainPlacement, cores: &[CpuLoad]) -> Option<usize> {
        let exists = |number| cores.iter().any(|core| core.cpu == number);
        // A single processor needs no placement, and one outside of the set must not stay chosen.
        self.cpu = self.cpu.filter(|&number| exists(number) && cores.len() > 1);
        match placement {
            ChainPlacement::Spread => *self = Self::default(),
            ChainPlacement::Core if cores.len() > 1 => {
                self.cpu = self.cpu.or_else(|| least_loaded(cores, f64::INFINITY));
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
        load: &ChainLoad,
        cores: &[CpuLoad],
    ) -> Option<usize> {
        self.apply_policy(placement, cores);
        if placement == ChainPlacement::Auto && cores.len() > 1 {
            self.pause.tick();
            let is_full = self.cpu.is_some_and(|number| is_full(number, load, cores));
            self.full_rounds = if is_full {
                self.full_rounds.saturating_add(1)
            } else {
                0
            };
            match (self.cpu, self.trial.take()) {
                (Some(number), _) if has_foreign_load(number, load, cores) => self.make_way(load),
                (_, Some(trial)) => self.end_trial(&trial, load),
                (Some(number), None) if is_full => self.outgrow_cpu(number, load),
                (Some(_), None) => self.stay_on_cpu(load),
                (None, None) => self.wait_for_cpu(load, cores),
            }
        }
        self.cpu
    }

    /// Leaves a processor that others load. An idle chain may come back as soon as it is free again:
    /// its moves cost nothing.
    fn make_way(&mut self, load: &ChainLoad) {
        if load.used() >= MIN_COMPARED_SHARE {
            return self.leave_cpu();
        }
        (self.cpu, self.calm_rounds) = (None, 0);
    }

    fn leave_cpu(&mut self) {
        (self.cpu, self.calm_rounds) = (None, 0);
        self.pause.begin_doubled();
    }

    fn stay_on_cpu(&mut self, load: &ChainLoad) {
        self.calm_rounds = self.calm_rounds.saturating_add(1);
        if self.calm_rounds >= SETTLED_ROUNDS {
            self.pause.reset_length();
        }
        self.idle_rounds = match load.is_alone && !load.has_short_calls() {
            true => self.idle_rounds.saturating_add(1),
            false => 0,
        };
        // Its next call may be a long one, with many threads.
        if self.idle_rounds >= MAX_IDLE_ROUNDS {
            (self.cpu, self.calm_rounds) = (None, 0);
        }
    }

    /// Leaves a full processor: for a trial where the calls are short, else for long.
    fn outgrow_cpu(&mut self, home: usize, load: &ChainLoad) {
        if !load.has_short_calls() {
            self.leave_cpu();
        } else if self.pause.is_over() && self.full_rounds >= FULL_ROUNDS {
            self.begin_trial(Some(home), None, load);
        }
    }

    fn begin_trial(&mut self, home: Option<usize>, cpu: Option<usize>, load: &ChainLoad) {
        let before = load.clone();
        (self.cpu, self.trial) = (cpu, Some(Trial { home, before }));
    }

    fn end_trial(&mut self, trial: &Trial, load: &ChainLoad) {
        let mut changes = load.changes_since(&trial.before);
        let is_kept = match trial.home {
            // It has other work than short calls, for more than one processor, or answers more calls.
            Some(_) => {
                let has_other_work = load.used() > 1.0 && !load.has_short_calls();
                has_other_work || changes.any(|factor| factor >= MIN_SPREAD_GAIN)
            }
            None => changes.all(|factor| factor >= MIN_SHARED_CALLS),
        };
        drop(changes);
        let costs_less = load.call_seconds() <= MAX_LONE_CALL_COST * trial.before.call_seconds();
        let is_kept = is_kept && (trial.home.is_some() || !load.is_alone || costs_less);
        let cpu = if is_kept { self.cpu } else { trial.home };
        (self.cpu, self.calm_rounds) = (cpu, 0);
        match cpu {
            Some(_) => self.pause.begin(TRIAL_PAUSE_ROUNDS),
            None => self.pause.begin_doubled(),
        }
    }

    fn wait_for_cpu(&mut self, load: &ChainLoad, cores: &[CpuLoad]) {
        self.idle_rounds = 0;
        // A function without a chain gets a processor only by a trial: nothing tells how long the next
        // call of an idle one is.
        let may_join = load.used() <= MAX_SMALL_SHARE && !load.is_alone;
        let (most, rounds) = match load.is_alone {
            true => (MAX_LONE_TRIAL_SHARE, 1),
            false => (MAX_TRIAL_SHARE, CALM_ROUNDS),
        };
        // A large chain of short calls may be large because it is spread.
        let may_try = load.used() <= most
            && load.has_short_calls()
            && foreign_share(load, cores) < MIN_FOREIGN_TO_LEAVE;
        self.calm_rounds = match may_join || may_try {
            true => self.calm_rounds.saturating_add(1),
            false => 0,
        };
        if !self.pause.is_over() || self.calm_rounds < rounds {
            return;
        }
        self.calm_rounds = 0;
        match least_loaded(cores, MAX_BUSY_TO_JOIN).filter(|_| may_join) {
            None if may_try => {
                self.begin_trial(None, least_loaded(cores, f64::INFINITY), load);
            }
            free_cpu => self.cpu = free_cpu,
        }
    }
}

/// Returns whether a chain or its processor has no CPU time left. The platform's thread leaves a full
/// processor by itself, before the chain does.
fn is_full(number: usize, load: &ChainLoad, cores: &[CpuLoad]) -> bool {
    let core = cores.iter().find(|core| core.cpu == number);
    let beside_platform = core.map_or(0.0, |core| core.busy - core.platform);
    load.used() >= MAX_SHARED_SHARE || beside_platform >= MIN_BUSY_TO_LEAVE
}

/// Returns whether other programs keep a chain's processor busy.
///
/// Applies even if no processor is better: together the chain waits behind others as a batch, while
/// spread it preempts them.
fn has_foreign_load(number: usize, load: &ChainLoad, cores: &[CpuLoad]) -> bool {
    let core = cores.iter().find(|core| core.cpu == number);
    core.is_some_and(|core| {
        core.busy >= MIN_BUSY_TO_LEAVE
            && core.busy - load.used() - core.platform >= MIN_FOREIGN_TO_LEAVE
    })
}

fn busy_share(number: usize, cores: &[CpuLoad]) -> f64 {
    let core = cores.iter().find(|core| core.cpu == number);
    core.map_or(0.0, |core| core.busy)
}

/// Returns the load of other programs on all processors, as a share of one.
fn foreign_share(load: &ChainLoad, cores: &[CpuLoad]) -> f64 {
    let beside: f64 = cores.iter().map(|core| core.busy - core.platform).sum();
    (beside - load.used()) / cores.len() as f64
}

/// Returns the processor with the fewest chains and the most idle time, of those up to `max_busy`.
fn least_loaded(cores: &[CpuLoad], max_busy: f64) -> Option<usize> {
    // A tenth per chain separates equally idle processors.
    let load = |core: &CpuLoad| core.busy + 0.1 * f64::from(core.chains);
    let candidates = cores.iter().filter(|core| core.busy <= max_busy);
    candidates
        .min_by(|a, b| load(a).total_cmp(&load(b)))
        .map(|core| core.cpu)
}
