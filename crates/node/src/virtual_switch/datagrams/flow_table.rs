//! Flows of datagrams to functions, and the datagrams that are held until an instance is ready. Pure: time is
//! an argument.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddrV4;
use std::time::Instant;

use nearpath_types::FunctionId;

use super::drop_reason::DropReason;
use super::held_bytes::HeldBytes;
use crate::virtual_switch::connection_shares::{ConnectionShare, ConnectionShares, ShareLimits};

/// Bytes that are held for one callee, [`DATAGRAM_OVERHEAD_BYTES`] of each datagram included.
pub(super) const MAX_HELD_PER_CALLEE: usize = 64 << 10;
/// Bytes that are held for all functions.
pub(super) const MAX_HELD_BYTES: usize = 4 << 20;
/// Cost of a datagram beyond its content: its place in the queue, and the allocator's block.
pub(super) const DATAGRAM_OVERHEAD_BYTES: usize = 128;
/// Flows of calling functions. Each has two sockets.
pub(super) const LIMITS: ShareLimits = ShareLimits {
    max_each: 256,
    max_total: 4_096,
};

/// A caller's socket, and the virtual address and port that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowKey {
    pub(super) source: SocketAddrV4,
    pub(super) destination: SocketAddrV4,
}

/// Functions of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlowParties {
    pub(super) caller: FunctionId,
    pub(super) callee: FunctionId,
}

/// Identity of a flow: a later one may have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowNumber(u64);

/// Datagrams of one flow, or its forwarding `F`.
#[derive(Debug)]
enum FlowState<F> {
    Waiting(VecDeque<HeldDatagram>),
    Open(F),
}

impl<F> FlowState<F> {
    fn forwarding(&self) -> Option<&F> {
        match self {
            Self::Waiting(_) => None,
            Self::Open(forwarding) => Some(forwarding),
        }
    }
}

/// A datagram that waits for an instance.
#[derive(Debug)]
pub(super) struct HeldDatagram {
    pub(super) content: Box<[u8]>,
    deadline: Instant,
}

#[derive(Debug)]
struct Flow<F> {
    number: FlowNumber,
    parties: FlowParties,
    state: FlowState<F>,
    _share: ConnectionShare<FunctionId>,
}

/// All flows of the node, within their bounds.
#[derive(Debug)]
pub(super) struct FlowTable<F> {
    flows: HashMap<FlowKey, Flow<F>>,
    shares: ConnectionShares<FunctionId>,
    held: HeldBytes,
    held_by_callee: HashMap<FunctionId, HeldBytes>,
    next_number: u64,
}

impl<F> Default for FlowTable<F> {
    fn default() -> Self {
        Self {
            flows: HashMap::new(),
            shares: ConnectionShares::new(LIMITS),
            held: HeldBytes::new(MAX_HELD_BYTES),
            held_by_callee: HashMap::new(),
            next_number: 0,
        }
    }
}

impl<F> FlowTable<F> {
    /// Returns the functions and the forwarding of a flow. `None`: there is no such flow; the inner one: it
    /// waits.
    pub(super) fn find(&self, key: &FlowKey) -> Option<(&FlowParties, Option<&F>)> {
        let flow = self.flows.get(key)?;
        Some((&flow.parties, flow.state.forwarding()))
    }

    /// Holds a datagram of a flow that is not open, which may be a new one.
    ///
    /// # Errors
    /// Returns the reason when it is dropped.
    pub(super) fn hold(
        &mut self,
        key: FlowKey,
        parties: &FlowParties,
        content: &[u8],
        deadline: Instant,
    ) -> Result<(), DropReason> {
        let bytes = held_size(content);
        // Before the flow: one that holds nothing would never end.
        if !self.has_space(parties, bytes) {
            return Err(DropReason::NoSpace);
        }
        if !self.flows.contains_key(&key) {
            self.begin(key, parties)?;
        }
        let state = self.flows.get_mut(&key).map(|flow| &mut flow.state);
        let Some(FlowState::Waiting(datagrams)) = state else {
            return Err(DropReason::Unreachable); // callers forward it instead
        };
        let content = content.into();
        datagrams.push_back(HeldDatagram { content, deadline });
        self.count_held(parties, bytes);
        Ok(())
    }

    /// Begins a flow that does not exist. It waits, so that callers hold a datagram, open it or end it.
    ///
    /// # Errors
    /// Returns the reason when its datagram is dropped.
    pub(super) fn begin(&mut self, key: FlowKey, parties: &FlowParties) -> Result<(), DropReason> {
        // Returned when the flow is dropped, however it ends.
        let share = self.shares.take(&parties.caller);
        let flow = Flow {
            number: FlowNumber(self.next_number),
            parties: parties.clone(),
            state: FlowState::Waiting(VecDeque::new()),
            _share: share.ok_or(DropReason::TooManyFlows)?,
        };
        self.next_number += 1;
        self.flows.insert(key, flow);
        Ok(())
    }

    /// Opens a waiting flow. Returns its datagrams in their order, and its number.
    pub(super) fn open(
        &mut self,
        key: &FlowKey,
        forwarding: impl FnOnce(FlowNumber) -> F,
    ) -> Option<VecDeque<HeldDatagram>> {
        let flow = self.flows.get_mut(key)?;
        let FlowState::Waiting(datagrams) = &mut flow.state else {
            return None;
        };
        let datagrams = std::mem::take(datagrams);
        flow.state = FlowState::Open(forwarding(flow.number));
        let parties = flow.parties.clone();
        self.release(&parties, &datagrams);
        Some(datagrams)
    }

    /// Ends a flow, unless a later one has its key. Returns how many datagrams it held.
    pub(super) fn end(&mut self, key: &FlowKey, number: FlowNumber) -> usize {
        match self.flows.get(key) {
            Some(flow) if flow.number == number => self.remove(key),
            _ => 0,
        }
    }

    /// Ends a flow that waits. Returns how many datagrams it held.
    pub(super) fn end_waiting(&mut self, key: &FlowKey) -> usize {
        match self.find(key) {
            Some((_, None)) => self.remove(key),
            _ => 0,
        }
    }

    /// Ends the flows that a function names. Returns how many datagrams they held.
    pub(super) fn end_where(
        &mut self,
        is_over: impl Fn(&FlowKey, &FlowParties, Option<&F>) -> bool,
    ) -> usize {
        let over = self.flows.iter();
        let over = over.filter(|(key, flow)| is_over(key, &flow.parties, flow.state.forwarding()));
        // Collected first: a removal changes the table.
        let over: Vec<_> = over.map(|(key, _)| *key).collect();
        over.iter().map(|key| self.remove(key)).sum()
    }

    /// Drops datagrams whose time is over. Returns how many of which flows.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<(FlowKey, FlowParties, usize)> {
        // Deadlines need not grow: the cold timeout may have changed in between.
        let is_over = |one: &HeldDatagram| one.deadline <= now;
        let due = self
            .waiting()
            .filter(|(_, _, held)| held.iter().any(is_over));
        let due: Vec<_> = due.map(|(key, ..)| *key).collect();
        due.iter().map(|key| self.expire_flow(key, now)).collect()
    }

    /// Returns the time of the next [`Self::expire`]; `None` if nothing is held.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let held = self.waiting().flat_map(|(_, _, held)| held);
        held.map(|one| one.deadline).min()
    }

    /// Returns the callees of waiting flows.
    pub(super) fn waiting_callees(&self) -> BTreeSet<FunctionId> {
        let parties = self.waiting().map(|(_, parties, _)| parties);
        parties.map(|parties| parties.callee.clone()).collect()
    }

    /// Returns the waiting flows of a callee.
    pub(super) fn waiting_flows(&self, callee: &FunctionId) -> Vec<(FlowKey, FlowParties)> {
        let own = self
            .waiting()
            .filter(|(_, parties, _)| parties.callee == *callee);
        own.map(|(key, parties, _)| (*key, parties.clone()))
            .collect()
    }

    /// Returns the flows by callee, waiting ones included.
    pub(super) fn count_by_callee(&self) -> HashMap<FunctionId, u64> {
        let mut counts = HashMap::new();
        for flow in self.flows.values() {
            *counts.entry(flow.parties.callee.clone()).or_default() += 1;
        }
        counts
    }

    /// Returns the number of flows.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    fn waiting(&self) -> impl Iterator<Item = (&FlowKey, &FlowParties, &VecDeque<HeldDatagram>)> {
        self.flows
            .iter()
            .filter_map(|(key, flow)| match &flow.state {
                FlowState::Waiting(held) => Some((key, &flow.parties, held)),
                FlowState::Open(_) => None,
            })
    }

    fn expire_flow(&mut self, key: &FlowKey, now: Instant) -> (FlowKey, FlowParties, usize) {
        let flow = self.flows.get_mut(key).expect("it was listed");
        let FlowState::Waiting(datagrams) = &mut flow.state else {
            unreachable!("it was listed as waiting");
        };
        let (over, kept) = std::mem::take(datagrams)
            .into_iter()
            .partition(|one: &HeldDatagram| one.deadline <= now);
        *datagrams = kept;
        let (parties, is_over) = (flow.parties.clone(), datagrams.is_empty());
        self.release(&parties, &over);
        // The next datagram begins a new flow, and wakes the function again.
        if is_over {
            self.flows.remove(key);
        }
        (*key, parties, over.len())
    }

    fn remove(&mut self, key: &FlowKey) -> usize {
        let Some(flow) = self.flows.remove(key) else {
            return 0;
        };
        match flow.state {
            FlowState::Waiting(datagrams) => {
                self.release(&flow.parties, &datagrams);
                datagrams.len()
            }
            FlowState::Open(_) => 0,
        }
    }

    fn has_space(&self, parties: &FlowParties, bytes: usize) -> bool {
        let of_callee = self.held_by_callee.get(&parties.callee);
        let in_callee = match of_callee {
            Some(held) => held.fits(&parties.caller, bytes),
            // Not stored: a refused caller leaves nothing behind.
            None => HeldBytes::new(MAX_HELD_PER_CALLEE).fits(&parties.caller, bytes),
        };
        in_callee && self.held.fits(&parties.caller, bytes)
    }

    fn count_held(&mut self, parties: &FlowParties, bytes: usize) {
        self.held.add(&parties.caller, bytes);
        let of_callee = self.held_by_callee.entry(parties.callee.clone());
        let of_callee = of_callee.or_insert_with(|| HeldBytes::new(MAX_HELD_PER_CALLEE));
        of_callee.add(&parties.caller, bytes);
    }

    fn release(&mut self, parties: &FlowParties, datagrams: &VecDeque<HeldDatagram>) {
        let bytes = datagrams.iter().map(|one| held_size(&one.content)).sum();
        self.held.remove(&parties.caller, bytes);
        if let Some(of_callee) = self.held_by_callee.get_mut(&parties.callee) {
            of_callee.remove(&parties.caller, bytes);
            // Functions come and go: an empty entry would stay for ever.
            if of_callee.is_empty() {
                self.held_by_callee.remove(&parties.callee);
            }
        }
    }
}

fn held_size(content: &[u8]) -> usize {
    content.len() + DATAGRAM_OVERHEAD_BYTES
}

#[cfg(test)]
#[path = "flow_table_tests.rs"]
mod tests;
