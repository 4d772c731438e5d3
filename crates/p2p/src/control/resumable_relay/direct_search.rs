//! The search for a direct way, as the relay sees it: what becomes of it, and when it is worth beginning.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::timers::Timer;
use super::{Dial, Lasting, State};

/// The search for a direct way.
pub(in crate::control) struct Search {
    /// What becomes of it.
    pub(in crate::control) prospects: BoxStream<'static, Prospect>,
    /// It is begun once the link turns out not to be short, and after so long; none: it has begun.
    pub(in crate::control) begin: Option<(Arc<Notify>, Duration)>,
}

/// What is known of the direct way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum Prospect {
    /// It is being looked for.
    Looking,
    /// It is there: both sides are about to move.
    Direct,
    /// There is none.
    Hopeless,
}

impl<D: Dial> Lasting<D> {
    /// What has become of the direct way.
    pub(super) fn look(&mut self, cx: &mut Context<'_>) {
        while let Some(prospects) = &mut self.prospects
            && let Poll::Ready(prospect) = prospects.poll_next_unpin(cx)
        {
            match prospect {
                Some(Prospect::Looking) => self.searched(),
                Some(Prospect::Direct) => self.found(),
                Some(Prospect::Hopeless) => self.need(),
                None => self.prospects = None,
            }
        }
    }

    /// A direct way is looked for: the peer began, or this side.
    fn searched(&mut self) {
        self.timers.clear(Timer::Short);
        if self.may_need() {
            let head_start = self.times.head_start;
            self.timers.set_once(Timer::HeadStart, || Instant::now() + head_start);
        }
    }

    /// The two say on the line that they move; or what it has lost goes over the relay.
    fn found(&mut self) {
        self.timers.clear(Timer::Short);
        if self.may_need() {
            self.timers.set(Timer::HeadStart, Instant::now() + self.times.heard);
        }
    }

    fn may_need(&self) -> bool {
        matches!(self.relay, State::Unneeded) && !self.closing
    }

    /// The link is not short: a direct way is worth looking for.
    pub(super) fn search(&mut self) {
        self.timers.clear(Timer::Short);
        if let Some(begin) = self.begin.take() {
            begin.notify_one();
        }
    }
}
