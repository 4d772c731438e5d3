//! The number of calls on an h2c connection, and what its server allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What a connection takes to be allowed until its server has said it: no stream is opened before.
pub(super) const LIMIT_UNKNOWN: usize = 0;

/// How many calls a connection carries, and how many it may.
#[derive(Debug, Default)]
pub(crate) struct StreamLoad {
    open_streams: AtomicUsize,
    max_streams: AtomicUsize,
    changed: Notify,
}

/// A call's place on a connection; free again when dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit(Arc<StreamLoad>);

impl StreamLoad {
    /// Notes what the server allows now.
    pub(super) fn set_limit(&self, streams: usize) {
        if self.max_streams.swap(streams, Ordering::Relaxed) != streams {
            self.changed.notify_waiters();
        }
    }

    /// Notes that the connection is over; whoever waits has nothing to wait for.
    pub(super) fn close(&self) {
        self.set_limit(1);
    }

    /// Returns when it is known what the server allows.
    pub(super) async fn wait_limit_known(&self) {
        let changed = self.changed.notified();
        if self.max_streams.load(Ordering::Relaxed) == LIMIT_UNKNOWN {
            changed.await;
        }
    }

    /// A place, if one is free. Only called by who holds the lines' lock; places are given back without it.
    pub(super) fn try_open_stream(self: &Arc<Self>) -> Option<StreamPermit> {
        let max_streams = self.max_streams.load(Ordering::Relaxed).max(1);
        if self.open_streams.load(Ordering::Relaxed) >= max_streams {
            return None;
        }
        self.open_streams.fetch_add(1, Ordering::Relaxed);
        Some(StreamPermit(Arc::clone(self)))
    }
}

impl StreamPermit {
    pub(super) fn load(&self) -> &StreamLoad {
        &self.0
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum LoadStep {
        Enter,
        Leave,
        Allow(usize),
    }

    fn step() -> impl Strategy<Value = LoadStep> {
        prop_oneof![4 => Just(LoadStep::Enter), 3 => Just(LoadStep::Leave), 1 => (0usize..6).prop_map(LoadStep::Allow)]
    }

    proptest! {
        #[test]
        fn as_many_places_as_the_server_allows(steps in prop::collection::vec(step(), 0..100)) {
            let load = Arc::<StreamLoad>::default();
            let (mut inside, mut allowed) = (Vec::new(), LIMIT_UNKNOWN);
            for step in steps {
                match step {
                    LoadStep::Enter => {
                        let entered = load.try_open_stream();
                        prop_assert_eq!(entered.is_some(), inside.len() < allowed.max(1));
                        inside.extend(entered);
                    }
                    LoadStep::Leave => drop(inside.pop()),
                    LoadStep::Allow(streams) => {
                        load.set_limit(streams);
                        allowed = streams;
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn a_waiter_returns_when_the_limit_is_known_or_the_connection_ends() {
        for notify in [|load: &StreamLoad| load.set_limit(7), StreamLoad::close] {
            let load = Arc::<StreamLoad>::default();
            let waiter = tokio::spawn({
                let load = Arc::clone(&load);
                async move { load.wait_limit_known().await }
            });
            tokio::task::yield_now().await;
            notify(&load);
            nearpath_testkit::within(waiter).await.unwrap();
            nearpath_testkit::within(load.wait_limit_known()).await;
        }
    }
}
