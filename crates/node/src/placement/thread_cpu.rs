//! Processor of a gateway thread: that of its chains, unless they answer more calls without it.
//!
//! A call between unmodified functions passes the gateway. On the processor of both functions its
//! wake-ups cost a fifth. Once that processor is full, the thread is tried on all of them for a round,
//! as [`ChainCpu`](super::ChainCpu) is.

use super::pause::Pause;
use super::{
    CALM_ROUNDS, ChainLoad, CpuLoad, FULL_ROUNDS, MIN_BUSY_TO_LEAVE, MIN_SHARED_CALLS,
    MIN_SPREAD_GAIN, SETTLED_ROUNDS, busy_share,
};

/// Processor of a gateway thread, and its history.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThreadCpu {
    /// Runs on all processors, because its chains answered more calls so.
    is_apart: bool,
    /// Consecutive rounds in which the chains' processor was full, or was not.
    full_rounds: u32,
    calm_rounds: u32,
    pause: Pause,
    /// Load before the round that tries the other placement.
    trial: Option<ChainLoad>,
}

impl ThreadCpu {
    /// Decides on the processor; `None` for all. `shared` is the processor of all its chains, and
    /// `load` theirs since the last round.
    pub fn decide_cpu(
        &mut self,
        shared: Option<usize>,
        load: &ChainLoad,
        cores: &[CpuLoad],
    ) -> Option<usize> {
        self.pause.tick();
        let Some(cpu) = shared else {
            // The chains are tried elsewhere, or spread.
            (self.trial, self.full_rounds, self.calm_rounds) = (None, 0, 0);
            return None;
        };
        self.count_round(busy_share(cpu, cores) >= MIN_BUSY_TO_LEAVE);
        match self.trial.take() {
            Some(before) => self.end_trial(&before, load),
            None if self.is_apart && self.calm_rounds >= CALM_ROUNDS => self.is_apart = false,
            None if self.full_rounds >= FULL_ROUNDS && self.pause.is_over() => {
                self.trial = Some(load.clone());
            }
            None => {}
        }
        let is_apart = self.is_apart != self.trial.is_some();
        (!is_apart).then_some(cpu)
    }

    fn count_round(&mut self, is_full: bool) {
        (self.full_rounds, self.calm_rounds) = match is_full {
            true => (self.full_rounds.saturating_add(1), 0),
            false => (0, self.calm_rounds.saturating_add(1)),
        };
        if self.calm_rounds >= SETTLED_ROUNDS {
            self.pause.reset_length();
        }
    }

    fn end_trial(&mut self, before: &ChainLoad, load: &ChainLoad) {
        let mut changes = load.changes_since(before);
        let is_kept = match self.is_apart {
            false => changes.any(|factor| factor >= MIN_SPREAD_GAIN),
            true => changes.all(|factor| factor >= MIN_SHARED_CALLS),
        };
        self.is_apart ^= is_kept;
        self.pause.begin_doubled();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{AWAY_ROUNDS, FunctionLoad};
    use super::*;

    const CHAIN_CPU: usize = 1;

    /// Calls a second that a chain answers with the thread on its processor, and on all.
    #[derive(Debug, Clone, Copy)]
    struct AnsweredCalls {
        near: f64,
        apart: f64,
        busy: f64,
    }

    impl AnsweredCalls {
        /// Runs several rounds; returns the processor after each.
        fn run_rounds(self, thread: &mut ThreadCpu, rounds: usize) -> Vec<Option<usize>> {
            let cores = [0.1, self.busy].into_iter().enumerate();
            let cores: Vec<_> = cores.map(|(cpu, busy)| core(cpu, busy)).collect();
            let (mut cpus, mut last) = (Vec::new(), None);
            for _ in 0..rounds {
                let calls = if last.is_some() {
                    self.near
                } else {
                    self.apart
                };
                last = thread.decide_cpu(Some(CHAIN_CPU), &load(calls), &cores);
                cpus.push(last);
            }
            cpus
        }
    }

    fn core(cpu: usize, busy: f64) -> CpuLoad {
        CpuLoad {
            cpu,
            busy,
            platform: 0.0,
            chains: 1,
        }
    }

    fn load(calls: f64) -> ChainLoad {
        let one = FunctionLoad { used: 0.5, calls };
        ChainLoad {
            functions: [("one".parse().unwrap(), one)].into(),
        }
    }

    fn near_rounds(cpus: &[Option<usize>]) -> usize {
        cpus.iter().filter(|cpu| **cpu == Some(CHAIN_CPU)).count()
    }

    #[test]
    fn a_thread_follows_its_chains_while_their_processor_has_room() {
        let calm = AnsweredCalls {
            near: 5_000.0,
            apart: 5_000.0,
            busy: 0.7,
        };
        let mut thread = ThreadCpu::default();
        assert_eq!(near_rounds(&calm.run_rounds(&mut thread, 1_000)), 1_000);
        assert_eq!(thread.decide_cpu(None, &load(1.0), &[]), None);
        assert_eq!(thread.decide_cpu(Some(0), &load(1.0), &[]), Some(0));
    }

    #[test]
    fn a_full_processor_is_left_only_for_more_calls() {
        let full = AnsweredCalls {
            near: 5_000.0,
            apart: 3_800.0,
            busy: 0.95,
        };
        let mut thread = ThreadCpu::default();
        assert!(near_rounds(&full.run_rounds(&mut thread, 1_000)) >= 990);
        let gains = AnsweredCalls {
            near: 16_000.0,
            apart: 20_000.0,
            busy: 1.0,
        };
        let mut thread = ThreadCpu::default();
        assert!(near_rounds(&gains.run_rounds(&mut thread, 1_000)) <= 10);
        let later = AnsweredCalls { busy: 0.5, ..gains };
        let cpus = later.run_rounds(&mut thread, 10);
        assert_eq!(near_rounds(&cpus), 10 + 1 - CALM_ROUNDS as usize);
    }

    #[test]
    fn a_wrong_trial_is_corrected_under_the_same_load() {
        let full = AnsweredCalls {
            near: 5_000.0,
            apart: 3_800.0,
            busy: 0.95,
        };
        let mut thread = ThreadCpu {
            is_apart: true,
            ..ThreadCpu::default()
        };
        assert!(near_rounds(&full.run_rounds(&mut thread, 100)) >= 95);
    }

    proptest! {
        /// Whatever the load does, trials become rare, and only the chains' processor is chosen.
        #[test]
        fn a_thread_moves_rarely_under_steady_load(near in 10.0f64..1e5, apart in 10.0f64..1e5, busy in 0.9f64..=1.0) {
            let calls = AnsweredCalls { near, apart, busy };
            let cpus = calls.run_rounds(&mut ThreadCpu::default(), 2_000);
            let moves = cpus.windows(2).filter(|pair| pair[0] != pair[1]).count();
            let trials = (AWAY_ROUNDS.1 / AWAY_ROUNDS.0).ilog2() as usize + 2 + 2_000 / AWAY_ROUNDS.1 as usize;
            prop_assert!(moves <= 2 * trials);
            prop_assert!(cpus.iter().flatten().all(|cpu| *cpu == CHAIN_CPU));
        }
    }
}
