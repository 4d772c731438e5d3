//! How long to wait before a line is opened anew.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Grows with each try, up to ten seconds. Each pause is drawn from its upper three quarters: a rendezvous that starts
/// anew is not met by all of its workers at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The next pause. `draw`: from 0 to 1.
    pub(super) fn pause(&mut self, draw: f64) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST);
        self.tries += 1;
        whole.mul_f64(0.25 + 0.75 * draw.clamp(0.0, 1.0))
    }

    /// The line was there for a while.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..50).map(|_| backoff.pause(1.0)).collect();
        assert_eq!(pauses[..3], [100, 200, 400].map(Duration::from_millis));
        assert!(pauses.is_sorted() && pauses[49] == LONGEST);
        backoff.reset();
        assert_eq!(backoff.pause(0.0), FIRST / 4);
    }
}
