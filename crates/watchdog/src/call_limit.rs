//! Number of calls in progress, and the limit on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counter of calls with a limit; 0: none.
#[derive(Debug, Clone)]
pub(crate) struct CallLimiter {
    in_progress: Arc<AtomicUsize>,
    limit: usize,
}

/// Permit of one call; returned when dropped.
#[derive(Debug)]
pub(crate) struct CallPermit(Arc<AtomicUsize>);

impl CallLimiter {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            in_progress: Arc::default(),
            limit,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes a permit, if one is free.
    pub(crate) fn try_acquire(&self) -> Option<CallPermit> {
        let limit = if self.limit == 0 {
            usize::MAX
        } else {
            self.limit
        };
        let more = |now| (now < limit).then_some(now + 1);
        // Relaxed: the counter guards no other data, so only its own value matters.
        self.in_progress
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(CallPermit(Arc::clone(&self.in_progress)))
    }

    /// Returns whether another call would be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.limit != 0 && self.in_progress.load(Ordering::Relaxed) >= self.limit
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_limit_of_zero_accepts_any_number_of_calls() {
        let limiter = CallLimiter::new(0);
        let all: Vec<_> = (0..1000).map(|_| limiter.try_acquire().unwrap()).collect();
        assert!(!limiter.is_full());
        drop(all);
    }

    proptest! {
        #[test]
        fn exactly_the_limit_is_inside(limit in 1usize..8, steps in prop::collection::vec(any::<bool>(), 0..100)) {
            let inflight = CallLimiter::new(limit);
            let mut inside = Vec::new();
            for enter in steps {
                if enter {
                    let permit = inflight.try_acquire();
                    prop_assert_eq!(permit.is_some(), inside.len() < limit);
                    inside.extend(permit);
                } else {
                    inside.pop();
                }
                prop_assert_eq!(inflight.is_full(), inside.len() == limit);
            }
        }
    }
}
