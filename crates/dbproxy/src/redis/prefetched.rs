//! Learned reads and prefetched values of one destination.

use std::cell::{Cell, RefCell};

use tokio::task::JoinHandle;

use super::command_effect::CommandEffect;
use super::settings::RedisIdentity;
use crate::prefetch::PrefetchCache;

/// Learned and prefetched reads of one destination.
#[derive(Debug, Default)]
pub(super) struct RedisPrefetch {
    pub(super) answers: RefCell<PrefetchCache<RedisIdentity, PrefetchedReply>>,
    /// Discarded answers that are not counted yet: the counters are not at hand where a write is
    /// seen.
    pub(super) uncounted_discards: Cell<u64>,
}

/// A read that is in flight or done.
#[derive(Debug)]
pub(super) struct PrefetchedReply {
    pub(super) identity: RedisIdentity,
    pub(super) reply: JoinHandle<Option<Vec<u8>>>,
}

impl RedisPrefetch {
    /// Discards the values that a command may change. Called when it is sent, and again when its
    /// reply arrives.
    pub(super) fn invalidate(&self, effect: &CommandEffect) {
        let ended = match effect {
            CommandEffect::Nothing | CommandEffect::Reads(_) => 0,
            CommandEffect::Writes(keys) => {
                let is_about = |read: &str| keys.iter().any(|key| key == read.as_bytes());
                self.answers.borrow_mut().invalidate(is_about)
            }
            CommandEffect::Anything => self.answers.borrow_mut().invalidate(|_| true),
        };
        self.uncounted_discards
            .set(self.uncounted_discards.get() + ended);
    }
}
