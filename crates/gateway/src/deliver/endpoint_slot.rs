//! Choice of an endpoint: the less loaded one of two random ones ("power of two choices",
//! Mitzenmacher 2001).

use std::sync::Arc;

use nearpath_wire::hop::balance::draw_pair;

use super::node_choice::{choose_free_node, choose_node};
use crate::function::{ActiveRoute, AdmissionPermit, FunctionEndpoint, FunctionEntry};

/// A request's slot at one endpoint. Dropping it admits the next request.
#[derive(Debug)]
pub(crate) struct EndpointSlot {
    hold: SlotHold,
    /// The endpoint.
    pub endpoint: Arc<FunctionEndpoint>,
}

/// Hold on an endpoint.
#[derive(Debug)]
enum SlotHold {
    /// With a place at the gate.
    Permit(AdmissionPermit),
    /// At another node, beside the gate.
    Elsewhere,
    Released,
}

impl EndpointSlot {
    /// Gives up the slot and keeps the permit. `None`: there was none, or the instance was withdrawn,
    /// and the permit with it.
    pub(crate) fn give_up(mut self) -> Option<AdmissionPermit> {
        self.release_endpoint()
    }

    /// Returns whether others may wait for the slot at this node's gate.
    pub(crate) fn is_place(&self) -> bool {
        // A withdrawn instance has no place for others.
        !self.endpoint.is_remote() && !self.endpoint.is_withdrawn()
    }

    fn release_endpoint(&mut self) -> Option<AdmissionPermit> {
        let permit = match std::mem::replace(&mut self.hold, SlotHold::Released) {
            SlotHold::Released => return None,
            SlotHold::Permit(permit) => Some(permit),
            SlotHold::Elsewhere => None,
        };
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
        drop(self.release_endpoint());
    }
}

/// Maximum requests at one endpoint. Half of the range: the highest bit of the counter marks a withdrawn
/// endpoint.
const MAX_REQUESTS: u32 = u32::MAX >> 1;

/// Takes a slot at an endpoint that is not in `tried`, among those whose places the gate counts. `random`
/// is any number.
///
/// # Errors
/// Returns the permit if no endpoint has a free slot.
pub(crate) fn pick_slot(
    route: &ActiveRoute,
    permit: AdmissionPermit,
    tried: &[u64],
    random: u64,
) -> Result<EndpointSlot, AdmissionPermit> {
    let picked = match route.runs_here {
        true => pick_instance(route, tried, random),
        false => choose_node(&route.remotes, tried, random)
            .filter(|endpoint| endpoint.try_acquire(MAX_REQUESTS)),
    };
    match picked {
        Some(endpoint) => Ok(EndpointSlot {
            hold: SlotHold::Permit(permit),
            endpoint: endpoint.clone(),
        }),
        None => Err(permit),
    }
}

/// Takes a slot at another node for a request that would wait at this one. `random` is any number.
pub(crate) fn pick_slot_elsewhere(route: &ActiveRoute, random: u64) -> Option<EndpointSlot> {
    choose_free_node(&route.remotes, route.policy.max_inflight, random)
        .filter(|endpoint| endpoint.try_acquire(MAX_REQUESTS))
        .map(|endpoint| EndpointSlot {
            hold: SlotHold::Elsewhere,
            endpoint: endpoint.clone(),
        })
}

fn pick_instance<'a>(
    route: &'a ActiveRoute,
    tried: &[u64],
    random: u64,
) -> Option<&'a Arc<FunctionEndpoint>> {
    let limit = route.policy.max_inflight.unwrap_or(MAX_REQUESTS);
    let ready = &route.ready;
    let is_untried = |endpoint: &&Arc<FunctionEndpoint>| !tried.contains(&endpoint.target.serial);
    let drawn = draw_pair(ready.len(), random).map(|(a, b)| less_loaded(&ready[a], &ready[b]));
    // Two random ones can both be full or tried. A scan finds any other before the request has to
    // wait.
    let first_untried = || {
        ready
            .iter()
            .filter(is_untried)
            .find(|endpoint| endpoint.try_acquire(limit))
    };
    drawn
        .filter(is_untried)
        .filter(|endpoint| endpoint.try_acquire(limit))
        .or_else(first_untried)
}

/// Returns whether every endpoint that [`pick_slot`] chooses from was tried, and there is at least one.
pub(super) fn all_gated_tried(function: &FunctionEntry, tried: &[u64]) -> bool {
    let route = function.route();
    let gated = route.gated();
    let mut untried = gated
        .iter()
        .filter(|endpoint| !tried.contains(&endpoint.target.serial));
    !gated.is_empty() && untried.next().is_none()
}

fn less_loaded<'a>(
    a: &'a Arc<FunctionEndpoint>,
    b: &'a Arc<FunctionEndpoint>,
) -> &'a Arc<FunctionEndpoint> {
    // Withdrawn instances count as full, so that the other one wins.
    let load = |endpoint: &FunctionEndpoint| endpoint.request_count().unwrap_or(u32::MAX);
    if load(b) < load(a) { b } else { a }
}
