//! Choice of an instance: the less loaded one of two random ones ("power of two choices",
//! Mitzenmacher 2001).

use std::sync::Arc;

use nearpath_wire::hop::balance::draw_pair;

use crate::function::{ActiveRoute, AdmissionPermit, FunctionEntry, InstanceEndpoint};

/// A request's slot at one instance. Dropping it admits the next request.
#[derive(Debug)]
pub(crate) struct EndpointSlot {
    permit: Option<AdmissionPermit>,
    /// The instance.
    pub endpoint: Arc<InstanceEndpoint>,
}

impl EndpointSlot {
    /// Gives up the slot and keeps the permit. `None`: the instance was withdrawn, and the permit
    /// with it.
    pub(crate) fn give_up(mut self) -> Option<AdmissionPermit> {
        let permit = self.permit.take();
        self.release_endpoint(permit)
    }

    fn release_endpoint(&self, permit: Option<AdmissionPermit>) -> Option<AdmissionPermit> {
        match self.endpoint.release() {
            true => permit,
            false => {
                // The withdrawal has returned this permit to the gate already. A normal drop
                // would return it twice.
                if let Some(gate) = permit.and_then(AdmissionPermit::disarm) {
                    gate.void_claim();
                }
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

/// Takes a slot at an instance that is not in `tried`. `random` is any number.
///
/// # Errors
/// Returns the permit if no instance has a free slot.
pub(crate) fn pick_slot(
    route: &ActiveRoute,
    permit: AdmissionPermit,
    tried: &[u64],
    random: u64,
) -> Result<EndpointSlot, AdmissionPermit> {
    // Half of the range: the highest bit of the counter marks a withdrawn instance.
    let limit = route.policy.max_inflight.unwrap_or(u32::MAX >> 1);
    let ready = &route.ready;
    let is_untried = |endpoint: &&Arc<InstanceEndpoint>| !tried.contains(&endpoint.serial);
    let drawn = draw_pair(ready.len(), random).map(|(a, b)| less_loaded(&ready[a], &ready[b]));
    // Two random ones can both be full or tried. A scan finds any other before the request has to
    // wait.
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

/// Returns whether every ready instance was tried, and there is at least one.
pub(super) fn all_ready_tried(function: &FunctionEntry, tried: &[u64]) -> bool {
    let route = function.route();
    !route.ready.is_empty()
        && route
            .ready
            .iter()
            .all(|endpoint| tried.contains(&endpoint.serial))
}

fn less_loaded<'a>(
    a: &'a Arc<InstanceEndpoint>,
    b: &'a Arc<InstanceEndpoint>,
) -> &'a Arc<InstanceEndpoint> {
    // Withdrawn instances count as full, so that the other one wins.
    let load = |endpoint: &InstanceEndpoint| endpoint.request_count().unwrap_or(u32::MAX);
    if load(b) < load(a) { b } else { a }
}
