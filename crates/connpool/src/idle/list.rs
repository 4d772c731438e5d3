//! List of idle connections: which one is taken, which ones have expired. Pure: time is an
//! argument.

use std::time::{Duration, Instant};

/// A used connection and the time when it was opened.
#[derive(Debug)]
pub struct UsedConnection<T> {
    /// The connection.
    pub connection: T,
    opened_at: Instant,
}

impl<T> UsedConnection<T> {
    /// Wraps a connection that was opened at `opened_at`.
    pub fn new(connection: T, opened_at: Instant) -> Self {
        Self {
            connection,
            opened_at,
        }
    }

    /// Returns the connection and the time when it was opened.
    pub fn into_parts(self) -> (T, Instant) {
        (self.connection, self.opened_at)
    }
}

/// Maximum times of used connections.
#[derive(Debug, Clone, Copy)]
pub struct IdleLimits {
    /// Maximum idle time.
    pub max_idle: Duration,
    /// Maximum age since it was opened.
    pub max_age: Duration,
}

struct IdleEntry<F, T> {
    fingerprint: F,
    used: UsedConnection<T>,
    idle_since: Instant,
}

/// Idle connections, the one that has been idle longest first.
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

    /// Adds a connection.
    ///
    /// # Errors
    /// Returns the connection when it is too old to be kept.
    pub(super) fn put(
        &mut self,
        fingerprint: F,
        used: UsedConnection<T>,
        now: Instant,
    ) -> Result<(), T> {
        // With `idle=0` the function wants no reuse.
        if now.saturating_duration_since(used.opened_at) >= self.limits.max_age
            || self.limits.max_idle.is_zero()
        {
            return Err(used.connection);
        }
        self.entries.push(IdleEntry {
            fingerprint,
            used,
            idle_since: now,
        });
        Ok(())
    }

    /// Takes the most recently used connection, so that surplus ones expire.
    pub(super) fn take(&mut self, fingerprint: &F, now: Instant) -> Option<UsedConnection<T>> {
        let limits = self.limits;
        let index = self.entries.iter().rposition(|entry| {
            &entry.fingerprint == fingerprint && entry.expires_at(limits) > now
        })?;
        Some(self.entries.remove(index).used)
    }

    /// Returns since when the first one has been idle.
    pub(super) fn oldest_since(&self) -> Option<Instant> {
        self.entries.first().map(|entry| entry.idle_since)
    }

    /// Takes the connection that has been idle longest.
    pub(super) fn take_oldest(&mut self) -> Option<T> {
        // A key has at most `max` connections, so the shift is cheap.
        (!self.entries.is_empty()).then(|| self.entries.remove(0).used.connection)
    }

    /// Takes all that have expired, and all that `dead` reports as dead.
    pub(super) fn take_expired(
        &mut self,
        now: Instant,
        mut dead: impl FnMut(&T) -> bool,
    ) -> Vec<T> {
        let limits = self.limits;
        let expired = self.entries.extract_if(.., |entry| {
            entry.expires_at(limits) <= now || dead(&entry.used.connection)
        });
        expired.map(|entry| entry.used.connection).collect()
    }

    /// Returns when the next connection expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.entries
            .iter()
            .map(|entry| entry.expires_at(self.limits))
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
        let (start, mut list) = (Instant::now(), IdleList::new(LIMITS));
        for (fingerprint, item) in [("a", 1), ("b", 2), ("a", 3)] {
            list.put(fingerprint, UsedConnection::new(item, start), start)
                .unwrap();
        }
        let mut take = |fingerprint| list.take(&fingerprint, start).map(|used| used.connection);
        assert_eq!(
            [take("a"), take("a"), take("a"), take("b")],
            [Some(3), Some(1), None, Some(2)]
        );
    }

    #[test]
    fn idle_and_age_end_a_connection() {
        let (start, mut list) = (Instant::now(), IdleList::new(LIMITS));
        list.put((), UsedConnection::new("idle", start), start)
            .unwrap();
        assert_eq!(list.next_expiry(), Some(after_seconds(start, 60)));
        assert!(
            list.take(&(), after_seconds(start, 60)).is_none(),
            "idle for too long, and not swept yet"
        );
        assert_eq!(
            list.take_expired(after_seconds(start, 60), |_| false),
            ["idle"]
        );
        list.put(
            (),
            UsedConnection::new("old", start),
            after_seconds(start, 90),
        )
        .unwrap();
        assert_eq!(
            list.next_expiry(),
            Some(after_seconds(start, 100)),
            "its age ends it before its idleness"
        );
        assert_eq!(
            list.take_expired(after_seconds(start, 91), |_| true),
            ["old"],
            "found dead"
        );
        assert_eq!(
            list.put(
                (),
                UsedConnection::new("older", start),
                after_seconds(start, 100)
            ),
            Err("older")
        );
        assert_eq!(list.next_expiry(), None);
    }
}
