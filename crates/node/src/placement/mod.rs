//! Placement of a chain's instances on a shared processor: a pure decision over measurements.
//!
//! A wake-up on the same processor costs a fifth of one across processors, so a small chain is
//! faster on one. A chain that burns CPU must not stay there while others idle.
//! [`ChainCpu::decide_cpu`] is called periodically with the load of the chain and the processors.
//! It assigns a processor to a small chain and revokes it when that gets full. After each
//! revocation the next attempt comes later. [`placer`] measures and moves.

pub(crate) mod placer;
#[cfg(test)]
mod simulation;

use nearpath_types::policy::ChainPlacement;

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
pub const AWAY_ROUNDS: (u32, u32) = (8, 256);
/// Rounds on one processor after which a leave counts as the first again.
pub const SETTLED_ROUNDS: u32 = 64;

/// Load of a processor since the last round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuLoad {
    /// Number of the processor.
    pub cpu: usize,
    /// Busy share of the time: 0 to 1.
    pub busy: f64,
    /// Other chains on this processor.
    pub chains: u32,
}

/// Processor of a chain, and its history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainCpu {
    cpu: Option<usize>,
    /// Consecutive small rounds, or rounds on this processor.
    calm_rounds: u32,
    /// Remaining rounds to stay away.
    away_rounds: u32,
    /// Rounds of the last stay away.
    last_penalty: u32,
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
                self.cpu = self.cpu.or_else(|| least_loaded(cores, f64::INFINITY))
            }
            ChainPlacement::Core | ChainPlacement::Auto => {}
        }
        self.cpu
    }

    /// Decides on the processor. `used` is the chain's CPU time since the last round, in
    /// processors.
    pub fn decide_cpu(
        &mut self,
        placement: ChainPlacement,
        used: f64,
        cores: &[CpuLoad],
    ) -> Option<usize> {
        self.apply_policy(placement, cores);
        if placement == ChainPlacement::Auto && cores.len() > 1 {
            match self.cpu {
                Some(number) if is_overloaded(number, used, cores) => self.leave_cpu(),
                Some(_) => self.stay_on_cpu(),
                None => self.wait_for_cpu(used, cores),
            }
        }
        self.cpu
    }

    fn leave_cpu(&mut self) {
        let (initial, max_rounds) = AWAY_ROUNDS;
        // Doubling bounds the number of moves whatever the load does.
        self.last_penalty = if self.last_penalty == 0 {
            initial
        } else {
            (2 * self.last_penalty).min(max_rounds)
        };
        (self.cpu, self.calm_rounds, self.away_rounds) = (None, 0, self.last_penalty);
    }

    fn stay_on_cpu(&mut self) {
        self.calm_rounds = self.calm_rounds.saturating_add(1);
        if self.calm_rounds >= SETTLED_ROUNDS {
            self.last_penalty = 0;
        }
    }

    fn wait_for_cpu(&mut self, used: f64, cores: &[CpuLoad]) {
        self.away_rounds = self.away_rounds.saturating_sub(1);
        self.calm_rounds = if used <= MAX_SMALL_SHARE {
            self.calm_rounds.saturating_add(1)
        } else {
            0
        };
        if self.away_rounds == 0 && self.calm_rounds >= CALM_ROUNDS {
            self.cpu = least_loaded(cores, MAX_BUSY_TO_JOIN);
            self.calm_rounds = 0;
        }
    }
}

/// Returns whether the chain lacks CPU time, because of its own load or others'.
///
/// Applies even if no processor is better: together the chain waits behind others as a batch, while
/// spread it preempts them.
fn is_overloaded(number: usize, used: f64, cores: &[CpuLoad]) -> bool {
    let busy = |core: &CpuLoad| core.cpu == number && core.busy >= MIN_BUSY_TO_LEAVE;
    used >= MAX_SHARED_SHARE || cores.iter().any(busy)
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
