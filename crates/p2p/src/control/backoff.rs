//! Delay before a control connection or relay is dialled again.

use std::time::Duration;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Exponential delay, up to ten seconds.
///
/// Each delay is random within its upper three quarters, so that a restarted rendezvous is not hit
/// by all its workers at once.
#[derive(Debug, Clone, Default)]
pub(super) struct DialBackoff {
    tries: u32,
}

impl DialBackoff {
    /// Returns the next delay. `random`: from 0 to 1.
    pub(super) fn next_delay(&mut self, random: f64) -> Duration {
        // 2^10 times the first delay is far above the maximum, and the shift cannot overflow.
        let delay = FIRST_DELAY
            .saturating_mul(1 << self.tries.min(10))
            .min(MAX_DELAY);
        self.tries += 1;
        delay.mul_f64(0.25 + 0.75 * random.clamp(0.0, 1.0))
    }

    /// Starts again, after a stable connection.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_start_again() {
        let mut backoff = DialBackoff::default();
        let delays: Vec<_> = (0..50).map(|_| backoff.next_delay(1.0)).collect();
        assert_eq!(delays[..3], [100, 200, 400].map(Duration::from_millis));
        assert!(delays.is_sorted() && delays[49] == MAX_DELAY);
        backoff.reset();
        assert_eq!(backoff.next_delay(0.0), FIRST_DELAY / 4);
    }
}
