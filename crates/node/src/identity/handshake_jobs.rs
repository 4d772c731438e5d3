//! Handshakes in memory for one instance, and their limits.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::HandshakeHalf;

/// Maximum number of open handshakes per instance.
const MAX_OPEN_HANDSHAKES: usize = 4;
/// Maximum number of steps per handshake; a correct one needs two.
const MAX_STEPS: u32 = 10;
/// Handshakes that an instance may start at once, and the interval at which it gains one more.
const START_BUDGET: (u32, Duration) = (512, Duration::from_secs(1));

/// Open handshakes of one instance. Requests above the limits get no response; the caller's first
/// connection then needs another round trip.
pub(super) struct HandshakeJobs {
    open: HashMap<String, (Box<dyn HandshakeHalf>, u32)>,
    starts_left: u32,
    refilled_at: Instant,
}

impl HandshakeJobs {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            open: HashMap::new(),
            starts_left: START_BUDGET.0,
            refilled_at: now,
        }
    }

    /// Returns the open half of a handshake with `callee`, or begins one. Return it with
    /// [`put_back`](Self::put_back).
    pub(super) fn take_or_begin(
        &mut self,
        callee: &str,
        now: Instant,
        begin: impl FnOnce() -> Option<Box<dyn HandshakeHalf>>,
    ) -> Option<(Box<dyn HandshakeHalf>, u32)> {
        if let Some(half) = self.open.remove(callee) {
            return Some(half);
        }
        // Only a new handshake costs budget: a running one must not stop in the middle.
        self.refill_budget(now);
        self.starts_left = self.starts_left.checked_sub(1)?;
        begin().map(|half| (half, 0))
    }

    /// Puts back a half that is not finished.
    pub(super) fn put_back(
        &mut self,
        callee: String,
        (half, steps): (Box<dyn HandshakeHalf>, u32),
    ) {
        // A handshake needs few steps; more of them is a caller that wastes CPU time.
        if steps + 1 >= MAX_STEPS {
            return;
        }
        if self.open.len() >= MAX_OPEN_HANDSHAKES {
            // Such a caller starts more than it finishes; dropped halves free their memory.
            self.open.clear();
        }
        self.open.insert(callee, (half, steps + 1));
    }

    fn refill_budget(&mut self, now: Instant) {
        let (max_starts, interval) = START_BUDGET;
        let more = (now.saturating_duration_since(self.refilled_at).as_nanos()
            / interval.as_nanos()) as u32;
        // By whole intervals, so that the remainder counts towards the next start.
        self.refilled_at += interval * more;
        self.starts_left = self.starts_left.saturating_add(more).min(max_starts);
    }
}

#[cfg(test)]
mod tests {
    use super::super::HandshakeStep;
    use super::*;

    struct IdleHalf;

    impl HandshakeHalf for IdleHalf {
        fn step(&mut self, _: &[Vec<u8>]) -> HandshakeStep {
            HandshakeStep {
                datagrams: Vec::new(),
                done: false,
            }
        }
    }

    fn new_half() -> Option<Box<dyn HandshakeHalf>> {
        Some(Box::new(IdleHalf))
    }

    #[test]
    fn a_handshake_ends_after_its_step_limit() {
        let now = Instant::now();
        let mut jobs = HandshakeJobs::new(now);
        let mut job = jobs.take_or_begin("i1", now, new_half).unwrap();
        for step in 1..MAX_STEPS {
            jobs.put_back("i1".into(), job);
            job = jobs
                .take_or_begin("i1", now, || panic!("it has begun"))
                .unwrap();
            assert_eq!(job.1, step);
        }
        jobs.put_back("i1".into(), job);
        assert!(
            jobs.take_or_begin("i1", now, || None).is_none(),
            "it has ended"
        );
    }

    #[test]
    fn starts_are_limited_by_a_budget() {
        let now = Instant::now();
        let mut jobs = HandshakeJobs::new(now);
        for number in 0..START_BUDGET.0 {
            let job = jobs
                .take_or_begin(&number.to_string(), now, new_half)
                .unwrap();
            jobs.put_back(number.to_string(), job);
            assert!(jobs.open.len() <= MAX_OPEN_HANDSHAKES);
        }
        assert!(jobs.take_or_begin("more", now, new_half).is_none());
        let later = now + 3 * START_BUDGET.1;
        let begun = (0..5).filter(|number| {
            jobs.take_or_begin(&format!("later {number}"), later, new_half)
                .is_some()
        });
        assert_eq!(begun.count(), 3);
    }
}
