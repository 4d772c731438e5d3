//! Handshakes in memory that an instance has asked for, and how many it may.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Answerer;

/// Handshakes of one instance at a time.
const AT_A_TIME: usize = 4;
/// Steps of one: two, unless something is wrong.
const STEPS: u32 = 10;
/// Handshakes that an instance may begin at once, and the time after which it may begin one more.
const BUDGET: (u32, Duration) = (512, Duration::from_secs(1));

/// See the module's text. What is asked beyond is not answered: the caller's first connection then takes a round trip more.
pub(super) struct Halves {
    open: HashMap<String, (Box<dyn Answerer>, u32)>,
    left: u32,
    since: Instant,
}

impl Halves {
    pub(super) fn new(now: Instant) -> Self {
        Self { open: HashMap::new(), left: BUDGET.0, since: now }
    }

    /// The half that answers for `callee`: the one that has begun, or a new one. To be given back with [`put`](Self::put).
    pub(super) fn take(
        &mut self,
        callee: &str,
        now: Instant,
        begin: impl FnOnce() -> Option<Box<dyn Answerer>>,
    ) -> Option<(Box<dyn Answerer>, u32)> {
        if let Some(half) = self.open.remove(callee) {
            return Some(half);
        }
        self.refill(now);
        self.left = self.left.checked_sub(1)?;
        begin().map(|half| (half, 0))
    }

    /// One that is not done yet.
    pub(super) fn put(&mut self, callee: String, (half, steps): (Box<dyn Answerer>, u32)) {
        if steps + 1 >= STEPS {
            return;
        }
        if self.open.len() >= AT_A_TIME {
            self.open.clear(); // a caller that begins more than it can end is not served well
        }
        self.open.insert(callee, (half, steps + 1));
    }

    fn refill(&mut self, now: Instant) {
        let (most, pause) = BUDGET;
        let more = (now.saturating_duration_since(self.since).as_nanos() / pause.as_nanos()) as u32;
        self.since += pause * more;
        self.left = self.left.saturating_add(more).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Step;
    use super::*;

    struct Half;

    impl Answerer for Half {
        fn step(&mut self, _: &[Vec<u8>]) -> Step {
            Step { datagrams: Vec::new(), done: false }
        }
    }

    fn half() -> Option<Box<dyn Answerer>> {
        Some(Box::new(Half))
    }

    #[test]
    fn one_that_has_begun_goes_on_for_so_many_steps() {
        let now = Instant::now();
        let mut halves = Halves::new(now);
        let mut taken = halves.take("i1", now, half).unwrap();
        for step in 1..STEPS {
            halves.put("i1".into(), taken);
            taken = halves.take("i1", now, || panic!("it has begun")).unwrap();
            assert_eq!(taken.1, step);
        }
        halves.put("i1".into(), taken);
        assert!(halves.take("i1", now, || None).is_none(), "it has ended");
    }

    #[test]
    fn what_an_instance_may_begin_is_bounded() {
        let now = Instant::now();
        let mut halves = Halves::new(now);
        for number in 0..BUDGET.0 {
            let taken = halves.take(&number.to_string(), now, half).unwrap();
            halves.put(number.to_string(), taken);
            assert!(halves.open.len() <= AT_A_TIME);
        }
        assert!(halves.take("more", now, half).is_none());
        let later = now + 3 * BUDGET.1;
        let begun = (0..5).filter(|number| halves.take(&format!("later {number}"), later, half).is_some());
        assert_eq!(begun.count(), 3);
    }
}
