//! Outstanding replies of one client, as far as they are tracked.

use std::collections::VecDeque;

use super::cache::PendingRead;
use super::command_effect::CommandEffect;

/// A command whose reply matters beyond being forwarded.
pub(super) struct PendingReply {
    pub(super) effect: CommandEffect,
    /// The command's database, if it is known.
    pub(super) db: Option<u32>,
    /// Set if the reply may be cached.
    pub(super) read: Option<PendingRead>,
    /// The client already has its reply.
    pub(super) is_answered: bool,
}

/// Outstanding replies, and the commands that some of them belong to.
#[derive(Default)]
pub(super) struct PendingReplies {
    /// Counters of commands sent and replies received.
    sent_count: u64,
    received_count: u64,
    /// Outstanding replies that the client does not wait for.
    early_count: u64,
    tracked: VecDeque<(u64, PendingReply)>,
}

impl PendingReplies {
    /// Returns whether the client waits for no reply.
    pub(super) fn is_client_idle(&self) -> bool {
        self.sent_count - self.received_count == self.early_count
    }

    /// Returns the number of outstanding replies that the client does not wait for.
    pub(super) fn early_count(&self) -> u64 {
        self.early_count
    }

    /// Records a command that is sent to the backend.
    pub(super) fn record_sent(&mut self, tracked: Option<PendingReply>) {
        // Most commands need no tracking. Their number alone keeps the queue aligned with the
        // replies.
        if let Some(tracked) = tracked {
            self.early_count += u64::from(tracked.is_answered);
            self.tracked.push_back((self.sent_count, tracked));
        }
        self.sent_count += 1;
    }

    fn next_reply(&self) -> Option<&PendingReply> {
        self.tracked
            .front()
            .filter(|(at, _)| *at == self.received_count)
            .map(|(_, tracked)| tracked)
    }

    /// Returns whether the next reply is not for the client.
    pub(super) fn next_is_early(&self) -> bool {
        self.next_reply().is_some_and(|tracked| tracked.is_answered)
    }

    /// Returns whether the next reply may be cached.
    pub(super) fn next_is_read(&self) -> bool {
        self.next_reply()
            .is_some_and(|tracked| tracked.read.is_some())
    }

    /// Records a reply, and takes the command that it belongs to.
    pub(super) fn take_next(&mut self) -> Option<PendingReply> {
        let is_tracked = self.next_reply().is_some();
        self.received_count += 1;
        let tracked = if is_tracked {
            self.tracked.pop_front().map(|(_, tracked)| tracked)
        } else {
            None
        };
        self.early_count -= u64::from(tracked.as_ref().is_some_and(|tracked| tracked.is_answered));
        tracked
    }

    /// Drops all counters and returns the commands that have no reply.
    pub(super) fn drain_all(&mut self) -> Vec<PendingReply> {
        (self.early_count, self.sent_count, self.received_count) = (0, 0, 0);
        self.tracked.drain(..).map(|(_, tracked)| tracked).collect()
    }
}
