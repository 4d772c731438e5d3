//! The search for a direct way, as the relay sees it: what becomes of it, and when it is worth beginning.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::timers::RelayTimer;
use super::{RelayDial, RelayState, ResumableRelay};

/// The search for a direct way.
pub(in crate::control) struct SearchWatch {
    /// What becomes of it.
    pub(in crate::control) direct_status: BoxStream<'static, DirectStatus>,
    /// It is begun once the link turns out not to be short, and after so long; none: it has begun.
    pub(in crate::control) trigger: Option<(Arc<Notify>, Duration)>,
}

/// What is known of the direct way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum DirectStatus {
    /// It is being looked for.
    Searching,
    /// It is there: both sides are about to move.
    Found,
    /// There is none.
    Unavailable,
}

impl<D: RelayDial> ResumableRelay<D> {
    /// What has become of the direct way.
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

    /// A direct way is looked for: the peer began, or this side.
    fn on_search_started(&mut self) {
        self.timers.clear(RelayTimer::ShortLink);
        if self.may_need_relay() {
            let head_start = self.timeouts.head_start;
            self.timers
                .set_once(RelayTimer::HeadStart, || Instant::now() + head_start);
        }
    }

    /// The two say on the line that they move; or what it has lost goes over the relay.
    fn on_direct_found(&mut self) {
        self.timers.clear(RelayTimer::ShortLink);
        if self.may_need_relay() {
            self.timers.set(
                RelayTimer::HeadStart,
                Instant::now() + self.timeouts.ack_timeout,
            );
        }
    }

    fn may_need_relay(&self) -> bool {
        matches!(self.state, RelayState::Unneeded) && !self.closing
    }

    /// The link is not short: a direct way is worth looking for.
    pub(super) fn start_search(&mut self) {
        self.timers.clear(RelayTimer::ShortLink);
        if let Some(trigger) = self.search_trigger.take() {
            trigger.notify_one();
        }
    }
}
