//! Search for a direct connection, as the relay sees it: its state, and when to start it.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::timers::RelayTimer;
use super::{RelayDial, RelayState, ResumableRelay};

/// Search for a direct connection.
pub(in crate::control) struct SearchWatch {
    /// State of the search.
    pub(in crate::control) direct_status: BoxStream<'static, DirectStatus>,
    /// Trigger of the search, and the age at which a link is no longer short; `None`: it has
    /// started.
    pub(in crate::control) trigger: Option<(Arc<Notify>, Duration)>,
}

/// State of the direct connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum DirectStatus {
    /// Search is running.
    Searching,
    /// Connection exists: both sides are about to move.
    Found,
    /// No direct connection.
    Unavailable,
}

impl<D: RelayDial> ResumableRelay<D> {
    /// Handles changes of the direct connection's state.
    pub(super) fn poll_direct_status(&mut self, cx: &mut Context<'_>) {
        while let Some(statuses) = &mut self.direct_status
            && let Poll::Ready(prospect) = statuses.poll_next_unpin(cx)
        {
            match prospect {
                Some(DirectStatus::Searching) => self.on_search_started(),
                Some(DirectStatus::Found) => self.on_direct_found(),
                Some(DirectStatus::Unavailable) => self.request_relay(),
                None => self.direct_status = None,
            }
        }
    }

    /// Starts the head start: this side or the peer searches.
    fn on_search_started(&mut self) {
        self.timers.clear(RelayTimer::ShortLink);
        if self.may_need_relay() {
            let head_start = self.timeouts.head_start;
            // `set_once`: a search that is reported twice does not prolong the head start.
            self.timers
                .set_once(RelayTimer::HeadStart, || Instant::now() + head_start);
        }
    }

    /// Waits for the switch messages on the control connection; after the timeout lost ones go over
    /// the relay.
    fn on_direct_found(&mut self) {
        self.timers.clear(RelayTimer::ShortLink);
        if self.may_need_relay() {
            // Acknowledgements are due within this time, so a later silence means a loss.
            self.timers.set(
                RelayTimer::HeadStart,
                Instant::now() + self.timeouts.ack_timeout,
            );
        }
    }

    fn may_need_relay(&self) -> bool {
        matches!(self.state, RelayState::Unneeded) && !self.closing
    }

    /// Starts the search: the link is not short.
    pub(super) fn start_search(&mut self) {
        self.timers.clear(RelayTimer::ShortLink);
        if let Some(trigger) = self.search_trigger.take() {
            trigger.notify_one();
        }
    }
}
