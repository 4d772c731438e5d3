//! Processor of a gateway thread: that of the chain whose calls load it most, while it does not
//! wait there.
//!
//! A call between unmodified functions passes the gateway. On the processor of these functions its
//! wake-ups cost a fifth. The thread also serves callers outside, so it leaves a processor that has
//! no time for it, whoever takes that time.

use super::limits::{MAX_BUSY_TO_JOIN, SETTLED_ROUNDS};
use super::load::{CpuLoad, busy_share};
use super::pause::Pause;

/// Share of the time that a thread may wait for its processor. Beyond it, its callers wait, too.
const MAX_WAITED_SHARE: f64 = 0.25;
/// Consecutive rounds with room on the chain's processor after which the thread returns before its
/// pause is over.
const MIN_ROOM_ROUNDS: u32 = 8;

/// Load of a gateway thread since the last round.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadLoad {
    /// CPU time, in processors.
    pub used: f64,
    /// Share of the time in which it could have run, but waited for a processor.
    pub waited: f64,
}

/// Processor of a gateway thread, and its history.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThreadCpu {
    cpu: Option<usize>,
    /// Consecutive rounds on this processor, or with room for it there.
    calm_rounds: u32,
    pause: Pause,
}

impl ThreadCpu {
    /// Decides on the processor; `None` for all. `chain_cpu` is that of the chain that it may
    /// follow.
    pub fn decide_cpu(
        &mut self,
        chain_cpu: Option<usize>,
        load: ThreadLoad,
        cpus: &[CpuLoad],
    ) -> Option<usize> {
        self.pause.tick();
        self.cpu = match (chain_cpu, self.cpu) {
            (Some(chain), Some(cpu)) if cpu == chain => self.stay_or_leave(cpu, load),
            (Some(chain), _) => self.join(chain, load, cpus),
            (None, _) => None,
        };
        self.cpu
    }

    fn stay_or_leave(&mut self, cpu: usize, load: ThreadLoad) -> Option<usize> {
        if load.waited > MAX_WAITED_SHARE {
            self.calm_rounds = 0;
            self.pause.begin_doubled();
            return None;
        }
        self.calm_rounds = self.calm_rounds.saturating_add(1);
        if self.calm_rounds >= SETTLED_ROUNDS {
            self.pause.reset_length();
        }
        Some(cpu)
    }

    /// Follows the chain after the pause, or earlier if its processor has room.
    fn join(&mut self, cpu: usize, load: ThreadLoad, cpus: &[CpuLoad]) -> Option<usize> {
        let has_room = busy_share(cpu, cpus) + load.used <= MAX_BUSY_TO_JOIN;
        self.calm_rounds = match has_room {
            true => self.calm_rounds.saturating_add(1),
            false => 0,
        };
        let joins = self.pause.is_over() || self.calm_rounds >= MIN_ROOM_ROUNDS;
        joins.then(|| {
            self.calm_rounds = 0;
            cpu
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::limits::{FIRST_AWAY_ROUNDS, MAX_AWAY_ROUNDS};
    use super::*;

    const CHAIN_CPU: usize = 1;
    /// A thread with little to do.
    const CALM: ThreadLoad = ThreadLoad {
        used: 0.2,
        waited: 0.02,
    };

    fn cpus(busy: f64) -> [CpuLoad; 2] {
        [(0, 0.1), (CHAIN_CPU, busy)].map(|(cpu, busy)| CpuLoad {
            cpu,
            busy,
            platform: 0.0,
            groups: 1,
        })
    }

    /// A processor whose other load leaves too little time for the thread. Returns the rounds in
    /// which the thread was on it.
    fn rounds_on_full_cpu(thread: &mut ThreadCpu, busy_without: f64, rounds: usize) -> usize {
        let mut on_it = 0;
        for _ in 0..rounds {
            let (busy, waited) = match thread.cpu {
                Some(_) => (1.0, 0.4),
                None => (busy_without, 0.0),
            };
            let load = ThreadLoad { used: 0.4, waited };
            let cpu = thread.decide_cpu(Some(CHAIN_CPU), load, &cpus(busy));
            on_it += usize::from(cpu.is_some());
        }
        on_it
    }

    #[test]
    fn a_thread_follows_a_chain_while_it_does_not_wait() {
        let mut thread = ThreadCpu::default();
        for _ in 0..1_000 {
            // One caller in a closed loop: the processor is full, and no thread waits.
            let cpu = thread.decide_cpu(Some(CHAIN_CPU), CALM, &cpus(0.98));
            assert_eq!(cpu, Some(CHAIN_CPU));
        }
        assert_eq!(thread.decide_cpu(Some(0), CALM, &cpus(0.5)), Some(0));
        assert_eq!(thread.decide_cpu(None, CALM, &cpus(0.5)), None);
    }

    #[test]
    fn a_thread_that_waits_leaves_and_its_returns_become_rare() {
        let mut thread = ThreadCpu::default();
        let on_it = rounds_on_full_cpu(&mut thread, 0.8, 1_000);
        assert!((2..15).contains(&on_it), "{on_it}");
        // It waits although the processor seemed to have room.
        let mut thread = ThreadCpu::default();
        let on_it = rounds_on_full_cpu(&mut thread, 0.1, 1_000);
        assert!((100..150).contains(&on_it), "{on_it}");
    }

    #[test]
    fn a_thread_returns_soon_when_its_chains_processor_has_room() {
        let mut thread = ThreadCpu::default();
        rounds_on_full_cpu(&mut thread, 1.0, 1_000);
        while thread.cpu.is_some() {
            rounds_on_full_cpu(&mut thread, 1.0, 1);
        }
        let returned = (0..MIN_ROOM_ROUNDS)
            .map(|_| thread.decide_cpu(Some(CHAIN_CPU), CALM, &cpus(0.1)))
            .last();
        assert_eq!(returned, Some(Some(CHAIN_CPU)));
    }

    proptest! {
        /// Whatever the loads are, the thread is on its chain's processor or on all. Without room
        /// there, it moves rarely.
        #[test]
        fn a_thread_moves_rarely(
            rounds in prop::collection::vec((0.0f64..1.0, 0.0f64..1.0), 2_000),
        ) {
            let (mut thread, mut places) = (ThreadCpu::default(), Vec::new());
            for (used, waited) in rounds {
                let cpu = thread.decide_cpu(Some(CHAIN_CPU), ThreadLoad { used, waited }, &cpus(0.9));
                prop_assert!(cpu.is_none_or(|cpu| cpu == CHAIN_CPU));
                places.push(cpu);
            }
            let moves = places.windows(2).filter(|pair| pair[0] != pair[1]).count();
            let doublings = (MAX_AWAY_ROUNDS / FIRST_AWAY_ROUNDS).ilog2() as usize + 1;
            let resets = places.len() / SETTLED_ROUNDS as usize;
            prop_assert!(moves <= 2 * (doublings + places.len() / MAX_AWAY_ROUNDS as usize + resets));
        }
    }
}
