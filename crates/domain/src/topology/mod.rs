//! Topology of a domain: decides on all channels. Pure: events in, actions out.
//!
//! A channel exists for each declared edge between a live endpoint of the caller and a ready
//! endpoint of the callee. The gateway may call every function. One endpoint of the gateway takes
//! events for subscribers on other nodes. When one side dies, the other is told to drain, for at
//! most [`DRAIN_TIMEOUT`]. Slots of the dead endpoint are swept at once, and again at the end. An id
//! is reused only when all peers have drained and no slot contains it. A standby endpoint is called
//! only while no other endpoint of its instance serves calls. An endpoint that only serves is no
//! caller.

mod backoff;
mod endings;
mod types;

use std::collections::{BTreeMap, BTreeSet};

use nearpath_shm::EndpointId;
use nearpath_types::{FunctionId, InstanceId};

use crate::clock::MonotonicNanos;

pub use types::{CloseCause, EndpointOwner, TopologyAction, UnexpectedReport};

use backoff::ReconnectBackoff;

/// Time for peers to drain the channels of a dead endpoint.
pub const DRAIN_TIMEOUT: MonotonicNanos = 1_000_000_000;

/// Number of a channel.
pub type ChannelNumber = u32;
/// Caller and callee of an edge; no callee: the gateway, which takes events for subscribers on other
/// nodes.
pub type FunctionEdge = (FunctionId, Option<FunctionId>);

#[derive(Debug)]
struct EndpointEntry {
    owner: EndpointOwner,
    serves: bool,
    serves_only: bool,
    is_standby: bool,
    ready: bool,
    /// True when its peers can be given its pool.
    has_pool: bool,
}

#[derive(Debug)]
struct ChannelEntry {
    caller: EndpointId,
    callee: EndpointId,
    phase: ChannelPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChannelPhase {
    Open,
    /// The caller finishes its open calls.
    Finishing,
    /// A side is gone or done; `holder` must still drain. `overdue`: its memory is forgotten
    /// already.
    Ending {
        holder: EndpointId,
        until: MonotonicNanos,
        overdue: bool,
    },
}

/// Topology of one domain; see the module documentation.
#[derive(Debug, Default)]
pub struct DomainTopology {
    endpoints: BTreeMap<EndpointId, EndpointEntry>,
    edges: BTreeSet<FunctionEdge>,
    channels: BTreeMap<ChannelNumber, ChannelEntry>,
    withdrawn: BTreeSet<InstanceId>,
    resting_ids: BTreeSet<EndpointId>,
    /// Backoff by caller and callee, while both live.
    backoffs: BTreeMap<(EndpointId, EndpointId), ReconnectBackoff>,
    last_id: u16,
    last_channel: ChannelNumber,
}

impl DomainTopology {
    /// Creates an empty topology.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves an id for an endpoint, unless all ids are in use. It gets channels after
    /// [`DomainTopology::complete_endpoint`].
    pub fn reserve_endpoint(&mut self, who: EndpointOwner, serves: bool) -> Option<EndpointId> {
        let endpoint = self.next_id()?;
        self.endpoints.insert(
            endpoint,
            EndpointEntry {
                owner: who,
                serves,
                serves_only: false,
                is_standby: false,
                ready: false,
                has_pool: false,
            },
        );
        Some(endpoint)
    }

    /// Completes an endpoint whose peers can get its pool.
    pub fn complete_endpoint(&mut self, endpoint: EndpointId) -> Vec<TopologyAction> {
        match self.endpoints.get_mut(&endpoint) {
            Some(member) => member.has_pool = true,
            None => return Vec::new(),
        }
        self.open_missing()
    }

    /// Marks a new endpoint as standby: it is called only while no other endpoint of its instance
    /// serves.
    pub fn set_standby(&mut self, endpoint: EndpointId) {
        if let Some(member) = self.endpoints.get_mut(&endpoint) {
            member.is_standby = true;
        }
    }

    /// Marks a new endpoint as one that never calls: it gets no channels to callees.
    pub fn set_serves_only(&mut self, endpoint: EndpointId) {
        if let Some(member) = self.endpoints.get_mut(&endpoint) {
            member.serves_only = true;
        }
    }

    fn next_id(&mut self) -> Option<EndpointId> {
        let taken = |endpoint: &EndpointId| {
            self.endpoints.contains_key(endpoint) || self.resting_ids.contains(endpoint)
        };
        let after = (1..=u16::MAX)
            // Round robin: an id rests as long as possible, so that a late message cannot meet its
            // successor.
            .map(|step| self.last_id.wrapping_add(step))
            .filter_map(EndpointId::new);
        let free = after.into_iter().find(|endpoint| !taken(endpoint))?;
        self.last_id = free.get();
        Some(free)
    }

    /// Marks an endpoint as ready to serve calls.
    pub fn mark_ready(&mut self, endpoint: EndpointId) -> Vec<TopologyAction> {
        match self.endpoints.get_mut(&endpoint) {
            Some(member) => member.ready = true,
            None => return Vec::new(),
        }
        // Open first: callers of the standby endpoint have its replacement before they lose it
        let mut actions = self.open_missing();
        actions.extend(self.withdraw_unwanted());
        actions
    }

    /// Replaces all declared edges.
    pub fn declare_edges(
        &mut self,
        edges: impl IntoIterator<Item = FunctionEdge>,
    ) -> Vec<TopologyAction> {
        self.edges = edges.into_iter().collect();
        // Withdrawn first: such a pair gets a new channel only when the old one has drained.
        let mut actions = self.withdraw_unwanted();
        actions.extend(self.open_missing());
        actions
    }

    /// Advances the time.
    pub fn tick(&mut self, now: MonotonicNanos) -> Vec<TopologyAction> {
        let mut actions = Vec::new();
        for (&channel, line) in &mut self.channels {
            if let ChannelPhase::Ending { until, overdue, .. } = &mut line.phase
                && *until <= now
                && !*overdue
            {
                *overdue = true;
                actions.push(TopologyAction::Forget { channel });
            }
        }
        // Sweeps until every id is free: peers return slots of the dead at their own pace.
        if !actions.is_empty() || !self.resting_ids.is_empty() {
            actions.push(TopologyAction::Sweep);
        }
        let mut due = self
            .backoffs
            .values_mut()
            .filter(|setback| setback.is_waiting && setback.retry_at <= now)
            .peekable();
        if due.peek().is_some() {
            due.for_each(|setback| setback.is_waiting = false);
            actions.extend(self.open_missing());
        }
        actions
    }

    /// Returns the time of the next [`DomainTopology::tick`].
    pub fn next_tick(&self, now: MonotonicNanos) -> Option<MonotonicNanos> {
        let ending = self.channels.values().filter_map(|line| match line.phase {
            ChannelPhase::Ending {
                until,
                overdue: false,
                ..
            } => Some(until),
            _ => None,
        });
        let resting = (!self.resting_ids.is_empty()).then_some(now + DRAIN_TIMEOUT);
        let setbacks = self
            .backoffs
            .values()
            .filter(|setback| setback.is_waiting)
            .map(|setback| setback.retry_at);
        ending.chain(resting).chain(setbacks).min()
    }

    /// Iterates over ids of dead endpoints that slots may still contain.
    pub fn resting_ids(&self) -> impl Iterator<Item = EndpointId> + '_ {
        self.resting_ids.iter().copied()
    }

    /// Releases an id that no slot contains; it is reusable once every peer has drained.
    pub fn release_id(&mut self, endpoint: EndpointId) {
        // A peer that has not drained may still send to, or take from, the id.
        if self.channels_of(endpoint).is_empty() {
            self.resting_ids.remove(&endpoint);
        }
    }

    /// Returns true if the endpoint lives.
    pub fn is_alive(&self, endpoint: EndpointId) -> bool {
        self.endpoints.contains_key(&endpoint)
    }

    /// Returns the owner of a live endpoint.
    pub fn owner_of(&self, endpoint: EndpointId) -> Option<&EndpointOwner> {
        self.endpoints.get(&endpoint).map(|member| &member.owner)
    }

    /// Returns the live endpoints of an instance.
    pub fn instance_endpoints(&self, instance: InstanceId) -> Vec<EndpointId> {
        self.endpoints
            .keys()
            .copied()
            .filter(|&endpoint| self.belongs_to(endpoint, instance))
            .collect()
    }

    /// Forgets an instance that has no endpoints left.
    pub fn forget_instance(&mut self, instance: InstanceId) {
        self.withdrawn.remove(&instance);
    }

    /// Iterates over channels that accept new calls: number, caller, callee.
    pub fn open_channels(
        &self,
    ) -> impl Iterator<Item = (ChannelNumber, EndpointId, EndpointId)> + '_ {
        let open = self
            .channels
            .iter()
            .filter(|(_, line)| line.phase == ChannelPhase::Open);
        open.map(|(&channel, line)| (channel, line.caller, line.callee))
    }

    /// Opens every wanted channel that does not exist. A draining one is waited for.
    pub(super) fn open_missing(&mut self) -> Vec<TopologyAction> {
        // Ending channels count, too: a pair has one channel at a time.
        let there: BTreeSet<(EndpointId, EndpointId)> = self
            .channels
            .values()
            .map(|line| (line.caller, line.callee))
            .collect();
        let all = || self.endpoints.keys().copied();
        let pairs = all().flat_map(|caller| all().map(move |callee| (caller, callee)));
        let missing: Vec<_> = pairs
            .filter(|&(p, q)| !there.contains(&(p, q)) && self.is_wanted(p, q))
            .collect();
        missing
            .into_iter()
            .map(|(caller, callee)| self.open_channel(caller, callee))
            .collect()
    }

    fn open_channel(&mut self, caller: EndpointId, callee: EndpointId) -> TopologyAction {
        // Never reused: a late message about an old channel must not hit a new one.
        self.last_channel += 1;
        let channel = self.last_channel;
        self.channels.insert(
            channel,
            ChannelEntry {
                caller,
                callee,
                phase: ChannelPhase::Open,
            },
        );
        TopologyAction::Open {
            channel,
            caller,
            callee,
        }
    }

    fn is_wanted(&self, caller: EndpointId, callee: EndpointId) -> bool {
        let (Some(p), Some(q)) = (self.endpoints.get(&caller), self.endpoints.get(&callee)) else {
            return false;
        };
        let ready = p.has_pool && q.has_pool && q.serves && q.ready;
        let waits = self
            .backoffs
            .get(&(caller, callee))
            .is_some_and(|setback| setback.is_waiting);
        // No channel to itself: an endpoint cannot answer while it waits for its own call.
        let called = ready && caller != callee && !waits && !p.serves_only;
        called
            && self.has_edge(&p.owner, &q.owner)
            && match q.owner.instance() {
                Some(instance) => {
                    let is_replaced = q.is_standby && self.is_served(instance);
                    !self.withdrawn.contains(&instance) && !is_replaced
                }
                // One of the gateway's endpoints is enough for the few events that leave the node.
                None => self.event_endpoint() == Some(callee),
            }
    }

    fn has_edge(&self, caller: &EndpointOwner, callee: &EndpointOwner) -> bool {
        match caller.function() {
            // The gateway may call every function, but not itself.
            None => callee.function().is_some(),
            Some(by) => {
                let edge = (by.clone(), callee.function().cloned());
                self.edges.contains(&edge)
            }
        }
    }

    /// Returns the gateway's endpoint that takes events: the ready one with the lowest id.
    fn event_endpoint(&self) -> Option<EndpointId> {
        let takes_events = |member: &EndpointEntry| {
            member.owner == EndpointOwner::Gateway
                && member.serves
                && member.ready
                && member.has_pool
        };
        let mut endpoints = self.endpoints.iter();
        endpoints
            .find(|(_, member)| takes_events(member))
            .map(|(&endpoint, _)| endpoint)
    }

    /// Returns true if a non-standby endpoint of the instance serves calls.
    fn is_served(&self, instance: InstanceId) -> bool {
        let mut own = self
            .endpoints
            .values()
            .filter(|member| member.owner.instance() == Some(instance));
        own.any(|member| member.serves && member.ready && member.has_pool && !member.is_standby)
    }

    fn channels_of(&self, endpoint: EndpointId) -> Vec<ChannelNumber> {
        let of = |line: &ChannelEntry| line.caller == endpoint || line.callee == endpoint;
        self.channels
            .iter()
            .filter(|(_, line)| of(line))
            .map(|(&channel, _)| channel)
            .collect()
    }

    fn belongs_to(&self, endpoint: EndpointId, instance: InstanceId) -> bool {
        self.owner_of(endpoint).and_then(EndpointOwner::instance) == Some(instance)
    }
}
