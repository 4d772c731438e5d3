//! Waiting longer and longer for the next channel.

use crate::clock::Nanos;

use super::PATIENCE;

/// Two parties whose channel broke, or could not be made. They get another one, each time later: who breaks every channel
/// costs the node one a minute.
#[derive(Debug, Default)]
pub(super) struct Setback {
    pub(super) times: u32,
    pub(super) until: Nanos,
    pub(super) waits: bool,
}

impl Setback {
    /// The next try comes after [`PATIENCE`], then twice as long each time, at most 64 times.
    pub(super) fn again(&mut self, now: Nanos) {
        self.until = now + (PATIENCE << self.times.min(6));
        self.times += 1;
        self.waits = true;
    }
}
