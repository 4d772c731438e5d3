//! Bounds of a lingering close. Pure: time is an argument.

use std::time::{Duration, Instant};

/// Bytes that a peer may send after the last response. A client that reads only after its whole
/// request gets the response up to this size.
pub const MAX_LINGER_BYTES: u64 = 256 * 1024 * 1024;
/// Time from one read to the next; `lingering_timeout` of nginx has this default.
pub const LINGER_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Time of the whole close; `lingering_time` of nginx has this default.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes and time that a peer may still use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LingerBudget {
    remaining_bytes: u64,
    began_at: Instant,
    last_read_at: Instant,
}

impl LingerBudget {
    /// Begins at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            remaining_bytes: MAX_LINGER_BYTES,
            began_at: now,
            last_read_at: now,
        }
    }

    /// Notes bytes that were dropped at `now`. Returns whether the peer may send more.
    pub fn note_read(&mut self, bytes: usize, now: Instant) -> bool {
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes as u64);
        self.last_read_at = now;
        // Checked here too: a peer that sends without a pause never reaches the timer.
        self.remaining_bytes > 0 && now < self.deadline()
    }

    /// Returns when to close unless more arrives.
    pub fn deadline(&self) -> Instant {
        (self.last_read_at + LINGER_READ_TIMEOUT).min(self.began_at + LINGER_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded() {
        let now = Instant::now();
        let mut budget = LingerBudget::new(now);
        assert!(budget.note_read(MAX_LINGER_BYTES as usize - 1, now));
        assert!(!budget.note_read(1, now));
        assert!(!budget.note_read(usize::MAX, now));
    }

    #[test]
    fn reads_extend_the_deadline_up_to_the_whole_time() {
        let began = Instant::now();
        let mut budget = LingerBudget::new(began);
        assert_eq!(budget.deadline(), began + LINGER_READ_TIMEOUT);
        let mut now = began;
        while now + LINGER_READ_TIMEOUT < began + LINGER_TIMEOUT {
            now += LINGER_READ_TIMEOUT / 2;
            assert!(budget.note_read(1, now));
        }
        assert_eq!(budget.deadline(), began + LINGER_TIMEOUT);
        assert!(!budget.note_read(1, began + LINGER_TIMEOUT));
    }
}
