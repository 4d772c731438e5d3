//! Number of calls on an h2c connection, and the limit of its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Limit before the server has sent one: no stream may be opened.
pub(super) const LIMIT_UNKNOWN: usize = 0;

/// Load of a connection: its open streams, and how many it may have.
#[derive(Debug, Default)]
pub(crate) struct StreamLoad {
    open_streams: AtomicUsize,
    max_streams: AtomicUsize,
    changed: Notify,
}

/// Permit of a stream; returned when dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit(Arc<StreamLoad>);

impl StreamLoad {
    /// Records the server's limit.
    pub(super) fn set_limit(&self, streams: usize) {
        // Relaxed, as all accesses here: the numbers guard no other data.
        if self.max_streams.swap(streams, Ordering::Relaxed) != streams {
            self.changed.notify_waiters();
        }
    }

    /// Records that the connection has ended, which releases its waiters.
    pub(super) fn close(&self) {
        // Any known limit wakes them, and the closed connection refuses their requests.
        self.set_limit(1);
    }

    /// Returns when the server's limit is known.
    pub(super) async fn wait_limit_known(&self) {
        // Created before the check, because `notify_waiters` wakes only futures that exist.
        let changed = self.changed.notified();
        if self.max_streams.load(Ordering::Relaxed) == LIMIT_UNKNOWN {
            changed.await;
        }
    }

    /// Opens a stream, if the limit allows. Called only under the pool's lock; permits are returned
    /// without it.
    pub(super) fn try_open_stream(self: &Arc<Self>) -> Option<StreamPermit> {
        // At least one: the call that the connection was opened for.
        let max_streams = self.max_streams.load(Ordering::Relaxed).max(1);
        if self.open_streams.load(Ordering::Relaxed) >= max_streams {
            return None;
        }
        // Additions happen under the pool's lock and returns only lower the count, so no
        // compare-and-swap is needed.
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
