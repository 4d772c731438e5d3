//! Windows and limits that hold for every function.

use std::time::Duration;

/// Time over which the load is averaged, from Knative's defaults.
pub const STABLE_WINDOW: Duration = Duration::from_secs(60);
/// Time over which a sudden load is averaged, a tenth of the stable window as in Knative.
pub const PANIC_WINDOW: Duration = Duration::from_secs(6);
/// Multiple of the ready replicas that the panic window has to want before the autoscaler panics,
/// as in Knative.
pub const PANIC_THRESHOLD: u32 = 2;
/// Time in panic after the panic window has last wanted so many.
pub const PANIC_GRACE: Duration = STABLE_WINDOW;
/// Most replicas that one decision may want per ready replica, or if none is ready. One step from a
/// single replica reaches the default maximum, 20.
pub const MAX_SCALE_UP_FACTOR: u32 = 20;
/// Percentage of the ready replicas that a backlog may start at once. It is below the panic
/// threshold, so that a backlog does not prolong a panic.
pub(super) const MAX_BACKLOG_PERCENT: u32 = 150;
/// Longest time between two samples without a gap. A longer one would hide more than a panic
/// window.
pub const MAX_SAMPLE_INTERVAL: Duration = PANIC_WINDOW;

/// Time whose samples are kept as one average. Shorter ones need more memory, and longer ones would
/// make the panic window uneven.
pub(super) const LOAD_BUCKET: Duration = Duration::from_secs(2);
pub(super) const STABLE_BUCKETS: usize = (STABLE_WINDOW.as_secs() / LOAD_BUCKET.as_secs()) as usize;
pub(super) const PANIC_BUCKETS: usize = (PANIC_WINDOW.as_secs() / LOAD_BUCKET.as_secs()) as usize;
/// Largest accepted load, in thousandths: a billion units. The sum of a bucket cannot overflow.
pub(super) const MAX_LOAD_MILLI: u64 = 1_000_000_000_000;
