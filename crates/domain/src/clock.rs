//! The clock of deadlines: CLOCK_MONOTONIC, the same for every process of the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub type Nanos = u64;

/// The time now.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The moment `after` from now; what a deadline is made of.
pub fn within(after: Duration) -> Nanos {
    now().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
}

/// How long until `moment`; zero when it has passed.
pub fn until(moment: Nanos) -> Duration {
    Duration::from_nanos(moment.saturating_sub(now()))
}
