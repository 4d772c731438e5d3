//! Cleanup by the node after a death: reclaims slots, and counts slots per endpoint.
//!
//! Order: close the channels of the dead endpoint, wake its peers, sweep. A peer may offer a slot
//! to the dead endpoint meanwhile. It sees the closed channel after its fence and takes the slot
//! back. Sweep again when the peers have released the channels: an id is reused only when no lease
//! word contains it.

use std::collections::BTreeMap;

use crate::descriptor::SlotId;
use crate::lease_word::{EndpointId, LeaseTransition, LeaseWord};
use crate::pool::SlotPool;

/// Result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Slots that were freed.
    pub freed: u32,
    /// Slots in flight from a dead endpoint to a live one.
    pub in_flight: u32,
    /// Missing hints of free slots that were restored.
    pub restored_hints: u32,
}

/// Frees all slots that no live endpoint holds or will receive. Ids that `alive` rejects count as
/// dead. `in_ring` tells if a slot with this generation lies in the ring from the first endpoint to
/// the second.
pub fn sweep_pool(
    pool: &SlotPool,
    alive: impl Fn(EndpointId) -> bool,
    in_ring: impl Fn(EndpointId, EndpointId, SlotId, u32) -> bool,
) -> SweepResult {
    let mut swept = SweepResult::default();
    for (class, (_, leases)) in pool.lease_tables().enumerate() {
        for index in 0..leases.slot_count() {
            let Some(word) = leases.lease_word(index) else {
                continue;
            };
            match decide_reclaim(word, &alive, |from, to| {
                in_ring(from, to, SlotId::new(class, index), word.generation())
            }) {
                ReclaimDecision::Keep => {}
                ReclaimDecision::InFlight => swept.in_flight += 1,
                ReclaimDecision::Free => {
                    // Fails when an endpoint was faster, for example a sender that took its offer
                    // back.
                    swept.freed += u32::from(
                        leases
                            .apply_transition(index, word, LeaseTransition::Reclaim)
                            .is_some(),
                    )
                }
            }
        }
        swept.restored_hints += leases.restore_hints();
    }
    swept
}

/// Decision about one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReclaimDecision {
    /// Free, or held by a live endpoint.
    Keep,
    /// In flight from a dead endpoint to a live one, which will accept it.
    InFlight,
    /// Unreachable: to be freed.
    Free,
}

/// Decides about one word. Pure.
pub fn decide_reclaim(
    word: LeaseWord,
    alive: impl Fn(EndpointId) -> bool,
    in_ring: impl Fn(EndpointId, EndpointId) -> bool,
) -> ReclaimDecision {
    match (word.offered_by(), word.held_by()) {
        (None, None) => ReclaimDecision::Keep,
        // Violates the protocol: no transition leads there or away
        (Some(_), None) => ReclaimDecision::Free,
        (_, Some(holder)) if !alive(holder) => ReclaimDecision::Free,
        (Some(from), Some(holder)) if !alive(from) => {
            // In the ring: the receiver still gets a dead sender's messages. Not in the ring: never
            // pushed, since a receiver accepts a slot before it frees the entry.
            if in_ring(from, holder) {
                ReclaimDecision::InFlight
            } else {
                ReclaimDecision::Free
            }
        }
        _ => ReclaimDecision::Keep,
    }
}

/// Slots of one endpoint, counted from the lease words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotUsage {
    /// Slots that it holds or offers.
    pub slots: u32,
    /// Bytes of these slots.
    pub bytes: u64,
}

/// Counts the slots of every endpoint. A slot in flight counts for the sender until it is accepted.
pub fn slot_usage(pool: &SlotPool) -> BTreeMap<EndpointId, SlotUsage> {
    let mut usage: BTreeMap<EndpointId, SlotUsage> = BTreeMap::new();
    for (size, leases) in pool.lease_tables() {
        let words = (0..leases.slot_count()).filter_map(|index| leases.lease_word(index));
        for endpoint in words.filter_map(|word| word.offered_by().or(word.held_by())) {
            let usage = usage.entry(endpoint).or_default();
            usage.slots += 1;
            usage.bytes += u64::from(size);
        }
    }
    usage
}

/// Returns true if any lease word contains the id.
pub fn is_id_in_use(pool: &SlotPool, endpoint: EndpointId) -> bool {
    let names_endpoint =
        |word: LeaseWord| word.offered_by() == Some(endpoint) || word.held_by() == Some(endpoint);
    pool.lease_tables().any(|(_, leases)| {
        (0..leases.slot_count())
            .filter_map(|index| leases.lease_word(index))
            .any(names_endpoint)
    })
}
