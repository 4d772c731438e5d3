//! What all keys of one destination have in common: the ceiling, who waits below it, and whether it takes connections at all.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::types::KeyId;
use super::wait_queue::Line;

/// The first pause after a failure; each further one doubles it.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);
/// A connection that dies this young while nobody uses it was not really taken.
pub(super) const YOUNG: Duration = Duration::from_secs(1);

/// One destination.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// What it is called.
    pub(super) name: Box<str>,
    /// Keys that were declared for it.
    pub(super) keys: BTreeSet<KeyId>,
    /// Connections of all its keys, in whatever state.
    pub(super) open: u32,
    /// Of them, being closed to make room.
    pub(super) closing: u32,
    /// Who waits for room.
    pub(super) line: Line,
    /// Keys that would keep more if they could.
    pub(super) hungry: BTreeSet<KeyId>,
    /// Failures since the last success, and when it may be tried again for nobody.
    failures: u32,
    retry: Option<Instant>,
    last_failure: Option<Instant>,
}

impl Place {
    pub(super) fn named(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Whether connections failed lately.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// When it may be tried again for nobody, if that is not now.
    pub(super) fn pause(&self, now: Instant) -> Option<Instant> {
        self.retry.filter(|retry| *retry > now)
    }

    /// It took a connection. A failure is forgiven only after a while: some take connections and drop them.
    pub(super) fn works(&mut self, now: Instant) {
        self.retry = self.last_failure.map(|last| last + YOUNG).filter(|until| *until > now);
        if self.retry.is_none() {
            self.failures = 0;
        }
    }

    /// It did not take a connection. Connections that fail together count as one failure.
    pub(super) fn failed(&mut self, now: Instant) {
        self.last_failure = Some(now);
        if self.pause(now).is_some() {
            return;
        }
        let pause = SHORTEST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.retry = Some(now + pause);
    }

    /// How many of those who wait will not be served by what is being closed already.
    pub(super) fn lacking(&self) -> usize {
        self.line.len().saturating_sub(self.closing as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end_with_success() {
        let mut place = Place::named("db:5432");
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            place.failed(now);
            place.failed(now);
            let until = place.pause(now).unwrap();
            pauses.push(until - now);
            now = until;
        }
        assert_eq!(pauses[..3], [SHORTEST, SHORTEST * 2, SHORTEST * 4], "two at a time are one failure");
        assert_eq!(pauses.last(), Some(&LONGEST));
        assert!(place.is_failing() && place.pause(now).is_none());
        place.failed(now);
        place.works(now + YOUNG / 2);
        assert!(place.is_failing() && place.pause(now) == Some(now + YOUNG), "it is seen whether that lasts");
        place.works(now + YOUNG);
        assert!(!place.is_failing() && place.pause(now).is_none());
    }
}
