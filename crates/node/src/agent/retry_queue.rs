//! Times at which functions are planned again without another cause. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nearpath_types::FunctionId;

/// At most one time per function.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    by_time: BTreeSet<(Instant, FunctionId)>,
    by_function: BTreeMap<FunctionId, Instant>,
}

impl RetryQueue {
    /// Replaces the time of a function; `None` removes it.
    pub(super) fn set(&mut self, id: &FunctionId, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.by_function.insert(id.clone(), at),
            None => self.by_function.remove(id),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, id.clone()));
        }
        if let Some(at) = at {
            self.by_time.insert((at, id.clone()));
        }
    }

    /// Returns the first time.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns the functions whose time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<FunctionId> {
        let mut due = Vec::new();
        while self.next_time().is_some_and(|at| at <= now) {
            let Some((_, id)) = self.by_time.pop_first() else {
                break;
            };
            self.by_function.remove(&id);
            due.push(id);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    proptest! {
        #[test]
        fn each_function_is_due_once_at_its_last_time(
            steps in prop::collection::vec((0u8..4, prop::option::of(0u64..20), any::<bool>()), 0..40)
        ) {
            let start = Instant::now();
            let at = |seconds| start + Duration::from_secs(seconds);
            let (mut queue, mut times, mut now) = (RetryQueue::default(), BTreeMap::<_, u64>::new(), 0);
            for (number, time, passes) in steps {
                let id: FunctionId = format!("f{number}").parse().unwrap();
                queue.set(&id, time.map(at));
                match time {
                    Some(time) => drop(times.insert(id, time)),
                    None => drop(times.remove(&id)),
                }
                now += u64::from(passes);
                let due: BTreeSet<_> = queue.take_due(at(now)).into_iter().collect();
                let (expected, later): (BTreeMap<_, _>, _) = times.into_iter().partition(|(_, time)| *time <= now);
                times = later;
                let expected: BTreeSet<_> = expected.into_keys().collect();
                prop_assert_eq!(due, expected);
                prop_assert_eq!(queue.next_time(), times.values().min().copied().map(at));
            }
        }
    }
}
