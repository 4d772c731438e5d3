//! Pauses after a failed accept: without file descriptors, the next try fails as well.

use std::time::Duration;

const FIRST_ACCEPT_DELAY: Duration = Duration::from_millis(5);
const MAX_ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// Back-off that doubles from 5 ms to 1 s and restarts after a success.
#[derive(Debug, Default)]
pub(super) struct AcceptBackoff(Option<Duration>);

impl AcceptBackoff {
    /// Resets the delay after a success.
    pub(super) fn reset(&mut self) {
        self.0 = None;
    }

    /// Returns the delay after a failure.
    pub(super) fn next_delay(&mut self) -> Duration {
        let pause = self
            .0
            .map_or(FIRST_ACCEPT_DELAY, |last| (last * 2).min(MAX_ACCEPT_DELAY));
        self.0 = Some(pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_a_second() {
        let mut backoff = AcceptBackoff::default();
        let pauses: Vec<_> = (0..10).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), FIRST_ACCEPT_DELAY);
    }
}
