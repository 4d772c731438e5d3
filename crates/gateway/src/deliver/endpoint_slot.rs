//! Which instance gets a request: of two drawn at random the one with fewer requests at it.

use std::sync::Arc;

use crate::function::{ActiveRoute, AdmissionPermit, FunctionEntry, InstanceEndpoint};

/// A request's place at one instance. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct EndpointSlot {
    permit: Option<AdmissionPermit>,
    /// The instance.
    pub endpoint: Arc<InstanceEndpoint>,
}

impl EndpointSlot {
    /// Gives the place up, but keeps the permit. `NoConnection`: the instance was withdrawn and the permit with it.
    pub(crate) fn give_up(mut self) -> Option<AdmissionPermit> {
        let permit = self.permit.take();
        self.release_endpoint(permit)
    }

    fn release_endpoint(&self, permit: Option<AdmissionPermit>) -> Option<AdmissionPermit> {
        match self.endpoint.release() {
            true => permit,
            false => {
                drop(permit.and_then(AdmissionPermit::disarm));
                None
            }
        }
    }
}

impl Drop for EndpointSlot {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            drop(self.release_endpoint(Some(permit)));
        }
    }
}

/// Takes a place at an instance that is not in `tried`. `random` is any number.
///
/// # Errors
/// The permit back, when no instance has room.
pub(crate) fn pick_slot(
    route: &ActiveRoute,
    permit: AdmissionPermit,
    tried: &[u64],
    random: u64,
) -> Result<EndpointSlot, AdmissionPermit> {
    let limit = route.policy.max_inflight.unwrap_or(u32::MAX >> 1);
    let ready = &route.ready;
    let is_untried = |endpoint: &&Arc<InstanceEndpoint>| !tried.contains(&endpoint.serial);
    let drawn = draw_pair(ready.len(), random).map(|(a, b)| less_loaded(&ready[a], &ready[b]));
    let first_untried = || {
        ready
            .iter()
            .filter(is_untried)
            .find(|endpoint| endpoint.try_acquire(limit))
    };
    match drawn
        .filter(is_untried)
        .filter(|endpoint| endpoint.try_acquire(limit))
        .or_else(first_untried)
    {
        Some(endpoint) => Ok(EndpointSlot {
            permit: Some(permit),
            endpoint: endpoint.clone(),
        }),
        None => Err(permit),
    }
}

/// Whether `pick` could find an instance that was not tried.
pub(super) fn all_ready_tried(function: &FunctionEntry, tried: &[u64]) -> bool {
    let route = function.route();
    !route.ready.is_empty()
        && route
            .ready
            .iter()
            .all(|endpoint| tried.contains(&endpoint.serial))
}

/// Two different numbers below `n`, or twice 0 when there is only one.
fn draw_pair(n: usize, random: u64) -> Option<(usize, usize)> {
    if n < 2 {
        return (n == 1).then_some((0, 0));
    }
    let a = (random >> 32) as usize % n;
    let b = random as u32 as usize % (n - 1);
    Some((a, if b >= a { b + 1 } else { b }))
}

fn less_loaded<'a>(
    a: &'a Arc<InstanceEndpoint>,
    b: &'a Arc<InstanceEndpoint>,
) -> &'a Arc<InstanceEndpoint> {
    let load = |endpoint: &InstanceEndpoint| endpoint.request_count().unwrap_or(u32::MAX);
    if load(b) < load(a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn two_different_ones_are_drawn(n in 2usize..1_000, random in any::<u64>()) {
            let (a, b) = draw_pair(n, random).unwrap();
            prop_assert!(a != b && a < n && b < n);
        }
    }

    #[test]
    fn every_pair_can_be_drawn() {
        let pairs: std::collections::HashSet<_> = (0..3u64)
            .flat_map(|a| (0..2u64).map(move |b| draw_pair(3, a << 32 | b).unwrap()))
            .collect();
        assert_eq!(pairs.len(), 6);
        assert_eq!((draw_pair(0, 7), draw_pair(1, 7)), (None, Some((0, 0))));
    }
}
