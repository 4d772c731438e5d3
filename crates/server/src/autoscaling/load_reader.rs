//! Reads the load of functions from the counters of gateway, node and kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_gateway::invoke::FunctionTable;
use nearpath_node::{ConnectionTotals, Node};
use nearpath_types::policy::ScaleMetric;
use nearpath_types::{FunctionId, InstanceState};
use tokio::sync::Notify;

use super::load_counts::{CallCount, LoadCounts};
use super::scale_state::PollTarget;

/// Sources of load counts.
pub(crate) struct LoadReader {
    pub(super) node: Arc<Node>,
    pub(super) functions: FunctionTable,
    /// Instances of other nodes may call those of this one directly, and count at their node.
    has_direct_nodes: bool,
}

impl LoadReader {
    /// Creates a reader. `has_direct_nodes`: instances of other nodes may call those of this one.
    pub(crate) fn new(node: Arc<Node>, functions: FunctionTable, has_direct_nodes: bool) -> Self {
        Self {
            node,
            functions,
            has_direct_nodes,
        }
    }

    /// Reads the counters of all polled functions.
    pub(super) async fn read_all(&self, targets: &[PollTarget]) -> Vec<(FunctionId, LoadCounts)> {
        let mut all = Vec::with_capacity(targets.len());
        let connections = self.connections(targets);
        for target in targets {
            let connections = connections.get(&target.id).copied().unwrap_or_default();
            let counts = self.read(target, connections).await;
            all.push((target.id.clone(), counts));
        }
        all
    }

    async fn read(&self, target: &PollTarget, connections: ConnectionTotals) -> LoadCounts {
        let observed = self.node.watch_observed().borrow().get(&target.id).cloned();
        let instances = observed
            .map(|one| one.instances.clone())
            .unwrap_or_default();
        let count = |state| {
            let count = instances.iter().filter(|one| one.state == state).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let ready = count(InstanceState::Ready);
        LoadCounts {
            requests: self.requests(&target.id),
            direct_calls: self.direct_calls(&target.id),
            connections: CallCount {
                started: connections.started,
                open: connections.open,
            },
            has_unseen_calls: self.has_direct_nodes && target.has_callers,
            cpu_milli: self.cpu_milli(target, ready).await,
            ready,
            starting: count(InstanceState::Starting),
        }
    }

    fn requests(&self, id: &FunctionId) -> CallCount {
        let function = self.functions.get(id);
        function.map_or_else(CallCount::default, |function| CallCount {
            started: function.started_requests(),
            open: function.local_requests().into(),
        })
    }

    fn direct_calls(&self, id: &FunctionId) -> CallCount {
        let calls = self.node.call_totals(id);
        CallCount {
            started: calls.ended.saturating_add(calls.open),
            open: calls.open,
        }
    }

    /// Returns the connections by callee. They matter for the sleep of functions that others may call.
    fn connections(&self, targets: &[PollTarget]) -> BTreeMap<FunctionId, ConnectionTotals> {
        let mut targets = targets.iter();
        match targets.any(|target| target.has_callers && target.settings.scale_to_zero) {
            true => self.node.connection_totals(),
            false => BTreeMap::new(),
        }
    }

    async fn cpu_milli(&self, target: &PollTarget, ready: u32) -> Option<u64> {
        if target.settings.metric != ScaleMetric::Cpu {
            return None;
        }
        let usage = self.node.read_usage(&target.id).await;
        // Instances without any memory are not accounted for, so their CPU time is not known.
        let is_known = usage.total_memory_bytes > 0.0 || ready == 0;
        is_known.then_some(usage.cpu as u64)
    }

    /// Notifies `listener` of the next request for each function. Returns false if a request has
    /// come since `counted`, or a function is not in the gateway's table yet.
    pub(super) fn notify_next_requests(
        &self,
        counted: &[(FunctionId, LoadCounts)],
        listener: &Arc<Notify>,
    ) -> bool {
        counted.iter().all(|(id, counts)| {
            let Some(function) = self.functions.get(id) else {
                return false;
            };
            function.notify_next_request(listener);
            // After arming: a request in between is in the counter.
            function.started_requests() == counts.requests.started
        })
    }
}
