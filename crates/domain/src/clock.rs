//! Clock of deadlines: CLOCK_MONOTONIC, shared by all processes of the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub type MonotonicNanos = u64;

/// Returns the current time.
pub fn monotonic_now() -> MonotonicNanos {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the deadline that lies `after` from now.
pub fn deadline_after(after: Duration) -> MonotonicNanos {
    monotonic_now().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the time until `moment`; zero when it has passed.
pub fn time_until(moment: MonotonicNanos) -> Duration {
    Duration::from_nanos(moment.saturating_sub(monotonic_now()))
}
