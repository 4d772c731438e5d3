//! Times at which the flows of functions are checked. Pure: time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Times of the checks after an edge was removed.
///
/// The kernel permits a connect, and lists its socket some microseconds later. So the first check may miss a
/// connect that was permitted just before: 2 of 300 times, with six threads that always connect. No other
/// connect can be missed, because the rows deny it. The last check misses one only if its thread stood still
/// between both steps until then. Nothing there waits but for a processor, or for the lock of a UDP socket.
const CHECK_TIMES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(50),
    Duration::from_millis(500),
    Duration::from_secs(5),
];

/// Functions whose flows are to be checked, by their addresses.
#[derive(Debug, Default)]
pub(super) struct CutSchedule {
    pending: BTreeMap<Ipv4Addr, PendingChecks>,
}

#[derive(Debug)]
struct PendingChecks {
    requested: Instant,
    done: usize,
}

impl PendingChecks {
    fn next_time(&self) -> Option<Instant> {
        let after = CHECK_TIMES.get(self.done)?;
        Some(self.requested + *after)
    }
}

impl CutSchedule {
    /// Schedules all checks of functions, of which an edge was removed. A check covers all removals
    /// before it, so those of earlier requests are replaced.
    pub(super) fn request_checks(&mut self, functions: BTreeSet<Ipv4Addr>, now: Instant) {
        let checks = |function| {
            let checks = PendingChecks {
                requested: now,
                done: 0,
            };
            (function, checks)
        };
        self.pending.extend(functions.into_iter().map(checks));
    }

    /// Takes the functions to check now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Ipv4Addr> {
        let mut due = Vec::new();
        for (function, checks) in &mut self.pending {
            if checks.next_time().is_some_and(|time| time <= now) {
                due.push(*function);
                // After a late check, those that it has replaced are left out.
                while checks.next_time().is_some_and(|time| time <= now) {
                    checks.done += 1;
                }
            }
        }
        self.pending
            .retain(|_, checks| checks.next_time().is_some());
        due
    }

    /// Returns the time of the next check; `None` if there is none.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let times = self.pending.values();
        times.filter_map(PendingChecks::next_time).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CART: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 2);
    const STORE: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 3);

    #[test]
    fn flows_are_checked_at_once_and_again() {
        let (mut schedule, start) = (CutSchedule::default(), Instant::now());
        assert_eq!(schedule.next_time(), None);
        schedule.request_checks([CART, STORE].into(), start);
        for after in CHECK_TIMES {
            let time = start + after;
            assert_eq!(schedule.next_time(), Some(time));
            assert_eq!(schedule.take_due(time), [CART, STORE]);
            assert!(schedule.take_due(time).is_empty(), "once");
        }
        assert_eq!(schedule.next_time(), None);
    }

    #[test]
    fn a_late_check_replaces_earlier_ones() {
        let (mut schedule, start) = (CutSchedule::default(), Instant::now());
        schedule.request_checks([CART].into(), start);
        let late = start + CHECK_TIMES[1];
        assert_eq!(schedule.take_due(late), [CART]);
        assert_eq!(schedule.next_time(), Some(start + CHECK_TIMES[2]));
    }

    #[test]
    fn a_new_removal_is_checked_at_once() {
        let (mut schedule, start) = (CutSchedule::default(), Instant::now());
        schedule.request_checks([CART].into(), start);
        assert_eq!(schedule.take_due(start), [CART]);
        let later = start + Duration::from_millis(1);
        schedule.request_checks([CART].into(), later);
        assert_eq!(schedule.take_due(later), [CART]);
        assert_eq!(schedule.next_time(), Some(later + CHECK_TIMES[1]));
    }
}
