//! The shelf itself: which used connection is taken, which are too old. Time is an argument.

use std::time::{Duration, Instant};

/// A used connection, with the time of its birth.
#[derive(Debug)]
pub struct Kept<T> {
    /// The connection.
    pub item: T,
    born: Instant,
}

impl<T> Kept<T> {
    /// One that was opened at `born`.
    pub fn new(item: T, born: Instant) -> Self {
        Self { item, born }
    }

    /// The connection, and when it was opened.
    pub fn apart(self) -> (T, Instant) {
        (self.item, self.born)
    }
}

/// How long connections stay.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Unused for so long, one is closed.
    pub idle: Duration,
    /// Older than this, one is not used again.
    pub age: Duration,
}

struct Row<F, T> {
    fingerprint: F,
    kept: Kept<T>,
    since: Instant,
}

/// Used connections that wait for their next client, the one that waits longest first.
pub(super) struct Shelf<F, T> {
    limits: Limits,
    rows: Vec<Row<F, T>>,
}

impl<F: PartialEq, T> Shelf<F, T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, rows: Vec::new() }
    }

    /// # Errors
    /// With the connection, when it is too old to be kept.
    pub(super) fn put(&mut self, fingerprint: F, kept: Kept<T>, now: Instant) -> Result<(), T> {
        if now.saturating_duration_since(kept.born) >= self.limits.age || self.limits.idle.is_zero() {
            return Err(kept.item);
        }
        self.rows.push(Row { fingerprint, kept, since: now });
        Ok(())
    }

    /// The one that was used last, so that those which are not needed grow old.
    pub(super) fn take(&mut self, fingerprint: &F, now: Instant) -> Option<Kept<T>> {
        let limits = self.limits;
        let at = self.rows.iter().rposition(|row| &row.fingerprint == fingerprint && row.end(limits) > now)?;
        Some(self.rows.remove(at).kept)
    }

    /// Since when the first one waits.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.rows.first().map(|row| row.since)
    }

    /// The one that waits longest.
    pub(super) fn take_oldest(&mut self) -> Option<T> {
        (!self.rows.is_empty()).then(|| self.rows.remove(0).kept.item)
    }

    /// All whose time is over, and all that `dead` finds dead.
    pub(super) fn sweep(&mut self, now: Instant, mut dead: impl FnMut(&T) -> bool) -> Vec<T> {
        let limits = self.limits;
        let over = self.rows.extract_if(.., |row| row.end(limits) <= now || dead(&row.kept.item));
        over.map(|row| row.kept.item).collect()
    }

    /// When the next one's time is over.
    pub(super) fn due(&self) -> Option<Instant> {
        self.rows.iter().map(|row| row.end(self.limits)).min()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }
}

impl<F, T> Row<F, T> {
    fn end(&self, limits: Limits) -> Instant {
        (self.since + limits.idle).min(self.kept.born + limits.age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { idle: Duration::from_secs(60), age: Duration::from_secs(100) };

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_one_used_last_is_taken_first_and_only_by_its_like() {
        let (start, mut shelf) = (Instant::now(), Shelf::new(LIMITS));
        for (fingerprint, item) in [("a", 1), ("b", 2), ("a", 3)] {
            shelf.put(fingerprint, Kept::new(item, start), start).unwrap();
        }
        let mut take = |fingerprint| shelf.take(&fingerprint, start).map(|kept| kept.item);
        assert_eq!([take("a"), take("a"), take("a"), take("b")], [Some(3), Some(1), None, Some(2)]);
    }

    #[test]
    fn idle_and_age_end_a_connection() {
        let (start, mut shelf) = (Instant::now(), Shelf::new(LIMITS));
        shelf.put((), Kept::new("idle", start), start).unwrap();
        assert_eq!(shelf.due(), Some(after(start, 60)));
        assert!(shelf.take(&(), after(start, 60)).is_none(), "idle for too long, and not swept yet");
        assert_eq!(shelf.sweep(after(start, 60), |_| false), ["idle"]);
        shelf.put((), Kept::new("old", start), after(start, 90)).unwrap();
        assert_eq!(shelf.due(), Some(after(start, 100)), "its age ends it before its idleness");
        assert_eq!(shelf.sweep(after(start, 91), |_| true), ["old"], "found dead");
        assert_eq!(shelf.put((), Kept::new("older", start), after(start, 100)), Err("older"));
        assert_eq!(shelf.due(), None);
    }
}
