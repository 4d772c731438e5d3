//! How many calls are in progress, and the limit on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts calls; 0 as limit: any number.
#[derive(Debug, Clone)]
pub(crate) struct Inflight {
    now: Arc<AtomicUsize>,
    limit: usize,
}

/// One call's place; free again when dropped.
#[derive(Debug)]
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Inflight {
    pub(crate) fn new(limit: usize) -> Self {
        Self { now: Arc::default(), limit }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A place, if one is free.
    pub(crate) fn enter(&self) -> Option<Permit> {
        let limit = if self.limit == 0 { usize::MAX } else { self.limit };
        let more = |now| (now < limit).then_some(now + 1);
        self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Permit(Arc::clone(&self.now)))
    }

    /// Whether another call would be refused.
    pub(crate) fn full(&self) -> bool {
        self.limit != 0 && self.now.load(Ordering::Relaxed) >= self.limit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_limit_is_no_limit() {
        let inflight = Inflight::new(0);
        let all: Vec<_> = (0..1000).map(|_| inflight.enter().unwrap()).collect();
        assert!(!inflight.full());
        drop(all);
    }

    proptest! {
        #[test]
        fn exactly_the_limit_is_inside(limit in 1usize..8, steps in prop::collection::vec(any::<bool>(), 0..100)) {
            let inflight = Inflight::new(limit);
            let mut inside = Vec::new();
            for enter in steps {
                if enter {
                    let permit = inflight.enter();
                    prop_assert_eq!(permit.is_some(), inside.len() < limit);
                    inside.extend(permit);
                } else {
                    inside.pop();
                }
                prop_assert_eq!(inflight.full(), inside.len() == limit);
            }
        }
    }
}
