//! Load of an event loop, and the rule by which its thread runs as a batch.
//!
//! A busy thread that preempts others when it is woken finds few events each time, and its writes wake
//! those others again. As a batch (`SCHED_BATCH`, sched(7)) it lets them go on: more events wait for
//! it, and one wake-up serves them all. A thread with little to do answers at once.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Share of a processor above which a thread is busy, in percent. Far above that of light load beside
/// busy functions, where a batch would wait (decision 95).
const BUSY_PERCENT: u128 = 25;
/// Share below which it no longer is.
const IDLE_PERCENT: u128 = 12;
/// Events of a usual round of a busy thread.
const MIN_ROUND_EVENTS: u64 = 4;

/// Rounds of events, and the thread's processor time.
#[derive(Default)]
pub(super) struct RoundCounts {
    rounds: Cell<u64>,
    events: Cell<u64>,
    inline_calls: Cell<u64>,
    cpu_before: Cell<Duration>,
}

impl RoundCounts {
    pub(super) fn note_round(&self, events: usize) {
        self.rounds.set(self.rounds.get() + 1);
        self.events.set(self.events.get() + events as u64);
    }

    pub(super) fn note_inline_call(&self) {
        self.inline_calls.set(self.inline_calls.get() + 1);
    }

    /// Returns the load since the last call.
    pub(super) fn take(&self) -> LoopLoad {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::try_from(cpu).unwrap_or_default();
        LoopLoad {
            rounds: self.rounds.take(),
            events: self.events.take(),
            inline_calls: self.inline_calls.take(),
            cpu: cpu.saturating_sub(self.cpu_before.replace(cpu)),
        }
    }
}

/// Load of an event loop in an interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopLoad {
    rounds: u64,
    events: u64,
    /// Calls that handlers answered.
    pub(crate) inline_calls: u64,
    /// Processor time of its thread.
    cpu: Duration,
}

impl LoopLoad {
    fn has_long_rounds(self) -> bool {
        self.rounds > 0 && self.events >= self.rounds * MIN_ROUND_EVENTS
    }
}

/// Decides whether a thread runs as a batch. Without a clock.
#[derive(Debug, Default)]
pub(crate) struct BatchRule {
    is_batch: bool,
}

impl BatchRule {
    /// Notes the load of an interval. Returns the thread's policy, if it changes.
    pub(crate) fn note_load(&mut self, load: LoopLoad, interval: Duration) -> Option<bool> {
        let percent = load.cpu.as_nanos() * 100 / interval.as_nanos().max(1);
        let is_batch = match self.is_batch {
            true => percent >= IDLE_PERCENT,
            // With one event a round, a caller waits for each round. A batch would delay it.
            false => percent >= BUSY_PERCENT && load.has_long_rounds(),
        };
        let has_changed = is_batch != std::mem::replace(&mut self.is_batch, is_batch);
        has_changed.then_some(is_batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(250);

    fn load(percent: u32, rounds: u64, events: u64) -> LoopLoad {
        let cpu = INTERVAL * percent / 100;
        LoopLoad {
            rounds,
            events,
            inline_calls: 0,
            cpu,
        }
    }

    #[test]
    fn a_busy_thread_with_many_events_a_round_runs_as_a_batch_until_it_is_idle() {
        let mut rule = BatchRule::default();
        let mut note = |load| rule.note_load(load, INTERVAL);
        assert_eq!(note(load(40, 1_000, 8_000)), Some(true));
        assert_eq!(
            note(load(40, 1_000, 1_000)),
            None,
            "the rounds of a batch vary"
        );
        assert_eq!(note(load(13, 100, 100)), None);
        assert_eq!(note(load(5, 100, 900)), Some(false));
    }

    #[test]
    fn a_thread_with_little_to_do_answers_at_once() {
        let mut rule = BatchRule::default();
        for quiet in [
            load(60, 4_000, 4_000), // one caller, in a closed loop
            load(3, 10, 80),        // held up by others
            load(0, 0, 0),
            load(60, 0, 0), // with other protocols
        ] {
            assert_eq!(rule.note_load(quiet, INTERVAL), None, "{quiet:?}");
        }
    }
}
