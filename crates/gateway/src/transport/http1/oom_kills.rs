//! Kills for lack of memory, as causes of lost calls. Without a clock.

use std::time::Instant;

/// Counter of an instance's kills, as it was last read.
#[derive(Debug, Default)]
pub(super) struct OomKills {
    /// `None` where the kernel does not count.
    count: Option<u64>,
    /// Time at which it was found to have grown.
    grown_at: Option<Instant>,
}

impl OomKills {
    /// Notes the counter as read at `now`.
    pub(super) fn note_count(&mut self, count: Option<u64>, now: Instant) {
        if self.count.is_some() && count > self.count {
            self.grown_at = Some(now);
        }
        self.count = count.or(self.count); // an instance that has ended counts no more
    }

    /// Returns whether a kill may have ended a call that began then. A kill ends all calls in
    /// progress, and no later one.
    pub(super) fn may_have_ended(&self, call_began: Instant) -> bool {
        self.grown_at.is_some_and(|grown| call_began <= grown)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_kill_explains_the_calls_in_progress_only() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut kills = OomKills::default();
        kills.note_count(Some(3), at(0));
        assert!(!kills.may_have_ended(at(0)), "earlier kills");
        kills.note_count(Some(4), at(20));
        for (began, is_explained) in [(10, true), (15, true), (25, false)] {
            assert_eq!(kills.may_have_ended(at(began)), is_explained, "{began}");
        }
        kills.note_count(Some(4), at(30));
        assert!(!kills.may_have_ended(at(25)));
    }

    #[test]
    fn a_kernel_that_does_not_count_explains_nothing() {
        let now = Instant::now();
        let mut kills = OomKills::default();
        kills.note_count(None, now);
        kills.note_count(Some(1), now);
        assert!(!kills.may_have_ended(now));
    }
}
