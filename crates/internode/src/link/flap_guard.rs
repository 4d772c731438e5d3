//! Hold-down of peers that go up and down again and again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::LinkTimings;

/// Times that a peer may go down within the window before it is held down.
const MAX_DOWNS: usize = 3;

/// Last times that a peer went down, and the next hold-down.
#[derive(Debug)]
pub(super) struct FlapGuard {
    downs: VecDeque<Instant>,
    next_hold_down: Duration,
}

impl FlapGuard {
    pub(super) fn new(timings: &LinkTimings) -> Self {
        Self {
            downs: VecDeque::new(),
            next_hold_down: timings.min_hold_down,
        }
    }

    /// Notes that the peer went down; `used_since`: when its endpoints began to be used.
    pub(super) fn note_down(
        &mut self,
        used_since: Option<Instant>,
        now: Instant,
        timings: &LinkTimings,
    ) {
        let is_stable = |since| now.saturating_duration_since(since) >= timings.flap_window;
        if used_since.is_some_and(is_stable) {
            self.next_hold_down = timings.min_hold_down;
        }
        if self.downs.len() == MAX_DOWNS {
            self.downs.pop_front();
        }
        self.downs.push_back(now);
    }

    /// Returns how long a peer that is ready now must stay so before it is used.
    pub(super) fn take_hold_down(
        &mut self,
        now: Instant,
        timings: &LinkTimings,
    ) -> Option<Duration> {
        let is_recent =
            |down: &&Instant| now.saturating_duration_since(**down) < timings.flap_window;
        if self.downs.iter().filter(is_recent).count() < MAX_DOWNS {
            return None;
        }
        let hold_down = self.next_hold_down;
        self.next_hold_down = (hold_down * 2).min(timings.max_hold_down);
        Some(hold_down)
    }
}
