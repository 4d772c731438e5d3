//! The shelf itself: which used connection is taken, which are too old. Time is an argument.

use std::time::{Duration, Instant};

/// A used connection, with the time of its birth.
#[derive(Debug)]
pub struct UsedConnection<T> {
    /// The connection.
    pub connection: T,
    opened_at: Instant,
}

impl<T> UsedConnection<T> {
    /// One that was opened at `born`.
    pub fn new(connection: T, opened_at: Instant) -> Self {
        Self {
            connection,
            opened_at,
        }
    }

    /// The connection, and when it was opened.
    pub fn into_parts(self) -> (T, Instant) {
        (self.connection, self.opened_at)
    }
}

/// How long connections stay.
#[derive(Debug, Clone, Copy)]
pub struct IdleLimits {
    /// Unused for so long, one is closed.
    pub max_idle: Duration,
    /// Older than this, one is not used again.
    pub max_age: Duration,
}

struct IdleEntry<F, T> {
    fingerprint: F,
    used: UsedConnection<T>,
    idle_since: Instant,
}

/// Used connections that wait for their next client, the one that waits longest first.
pub(super) struct IdleList<F, T> {
    limits: IdleLimits,
    entries: Vec<IdleEntry<F, T>>,
}

impl<F: PartialEq, T> IdleList<F, T> {
    pub(super) fn new(limits: IdleLimits) -> Self {
        Self {
            limits,
            entries: Vec::new(),
        }
    }

    /// # Errors
    /// With the connection, when it is too old to be kept.
    pub(super) fn put(
        &mut self,
        fingerprint: F,
        kept: UsedConnection<T>,
        now: Instant,
    ) -> Result<(), T> {
        if now.saturating_duration_since(kept.opened_at) >= self.limits.max_age
            || self.limits.max_idle.is_zero()
        {
            return Err(kept.connection);
        }
        self.entries.push(IdleEntry {
            fingerprint,
            used: kept,
            idle_since: now,
        });
        Ok(())
    }

    /// The one that was used last, so that those which are not needed grow old.
    pub(super) fn take(&mut self, fingerprint: &F, now: Instant) -> Option<UsedConnection<T>> {
        let limits = self.limits;
        let at = self
            .entries
            .iter()
            .rposition(|row| &row.fingerprint == fingerprint && row.expires_at(limits) > now)?;
        Some(self.entries.remove(at).used)
    }

    /// Since when the first one waits.
    pub(super) fn oldest_since(&self) -> Option<Instant> {
        self.entries.first().map(|row| row.idle_since)
    }

    /// The one that waits longest.
    pub(super) fn take_oldest(&mut self) -> Option<T> {
        (!self.entries.is_empty()).then(|| self.entries.remove(0).used.connection)
    }

    /// All whose time is over, and all that `dead` finds dead.
    pub(super) fn take_expired(
        &mut self,
        now: Instant,
        mut dead: impl FnMut(&T) -> bool,
    ) -> Vec<T> {
        let limits = self.limits;
        let over = self.entries.extract_if(.., |row| {
            row.expires_at(limits) <= now || dead(&row.used.connection)
        });
        over.map(|row| row.used.connection).collect()
    }

    /// When the next one's time is over.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.entries
            .iter()
            .map(|row| row.expires_at(self.limits))
            .min()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl<F, T> IdleEntry<F, T> {
    fn expires_at(&self, limits: IdleLimits) -> Instant {
        (self.idle_since + limits.max_idle).min(self.used.opened_at + limits.max_age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: IdleLimits = IdleLimits {
        max_idle: Duration::from_secs(60),
        max_age: Duration::from_secs(100),
    };

    fn after_seconds(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_one_used_last_is_taken_first_and_only_by_its_like() {
        let (start, mut shelf) = (Instant::now(), IdleList::new(LIMITS));
        for (fingerprint, item) in [("a", 1), ("b", 2), ("a", 3)] {
            shelf
                .put(fingerprint, UsedConnection::new(item, start), start)
                .unwrap();
        }
        let mut take = |fingerprint| shelf.take(&fingerprint, start).map(|kept| kept.connection);
        assert_eq!(
            [take("a"), take("a"), take("a"), take("b")],
            [Some(3), Some(1), None, Some(2)]
        );
    }

    #[test]
    fn idle_and_age_end_a_connection() {
        let (start, mut shelf) = (Instant::now(), IdleList::new(LIMITS));
        shelf
            .put((), UsedConnection::new("idle", start), start)
            .unwrap();
        assert_eq!(shelf.next_expiry(), Some(after_seconds(start, 60)));
        assert!(
            shelf.take(&(), after_seconds(start, 60)).is_none(),
            "idle for too long, and not swept yet"
        );
        assert_eq!(
            shelf.take_expired(after_seconds(start, 60), |_| false),
            ["idle"]
        );
        shelf
            .put(
                (),
                UsedConnection::new("old", start),
                after_seconds(start, 90),
            )
            .unwrap();
        assert_eq!(
            shelf.next_expiry(),
            Some(after_seconds(start, 100)),
            "its age ends it before its idleness"
        );
        assert_eq!(
            shelf.take_expired(after_seconds(start, 91), |_| true),
            ["old"],
            "found dead"
        );
        assert_eq!(
            shelf.put(
                (),
                UsedConnection::new("older", start),
                after_seconds(start, 100)
            ),
            Err("older")
        );
        assert_eq!(shelf.next_expiry(), None);
    }
}
