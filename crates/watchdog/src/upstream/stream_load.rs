//! The number of calls on an h2c connection, and what its server allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What a connection takes to be allowed until its server has said it: no stream is opened before.
pub(super) const UNKNOWN: usize = 0;

/// How many calls a connection carries, and how many it may.
#[derive(Debug, Default)]
pub(crate) struct Load {
    streams: AtomicUsize,
    allowed: AtomicUsize,
    changed: Notify,
}

/// A call's place on a connection; free again when dropped.
#[derive(Debug)]
pub(crate) struct Stream(Arc<Load>);

impl Load {
    /// Notes what the server allows now.
    pub(super) fn allow(&self, streams: usize) {
        if self.allowed.swap(streams, Ordering::Relaxed) != streams {
            self.changed.notify_waiters();
        }
    }

    /// Notes that the connection is over; whoever waits has nothing to wait for.
    pub(super) fn end(&self) {
        self.allow(1);
    }

    /// Returns when it is known what the server allows.
    pub(super) async fn settled(&self) {
        let changed = self.changed.notified();
        if self.allowed.load(Ordering::Relaxed) == UNKNOWN {
            changed.await;
        }
    }

    /// A place, if one is free. Only called by who holds the lines' lock; places are given back without it.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Stream> {
        let allowed = self.allowed.load(Ordering::Relaxed).max(1);
        if self.streams.load(Ordering::Relaxed) >= allowed {
            return None;
        }
        self.streams.fetch_add(1, Ordering::Relaxed);
        Some(Stream(Arc::clone(self)))
    }
}

impl Stream {
    pub(super) fn load(&self) -> &Load {
        &self.0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Enter,
        Leave,
        Allow(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![4 => Just(Step::Enter), 3 => Just(Step::Leave), 1 => (0usize..6).prop_map(Step::Allow)]
    }

    proptest! {
        #[test]
        fn as_many_places_as_the_server_allows(steps in prop::collection::vec(step(), 0..100)) {
            let load = Arc::<Load>::default();
            let (mut inside, mut allowed) = (Vec::new(), UNKNOWN);
            for step in steps {
                match step {
                    Step::Enter => {
                        let entered = load.enter();
                        prop_assert_eq!(entered.is_some(), inside.len() < allowed.max(1));
                        inside.extend(entered);
                    }
                    Step::Leave => drop(inside.pop()),
                    Step::Allow(streams) => {
                        load.allow(streams);
                        allowed = streams;
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn who_waits_for_the_limit_is_told_it_or_the_end() {
        for tell in [|load: &Load| load.allow(7), Load::end] {
            let load = Arc::<Load>::default();
            let waiter = tokio::spawn({
                let load = Arc::clone(&load);
                async move { load.settled().await }
            });
            tokio::task::yield_now().await;
            tell(&load);
            nearpath_testkit::within(waiter).await.unwrap();
            nearpath_testkit::within(load.settled()).await;
        }
    }
}
