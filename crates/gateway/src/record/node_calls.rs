//! Calls from other nodes. Their callers have called those nodes, so the counters of received
//! requests do not include them.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_types::NodeName;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::function::StatusCounts;

/// Completed calls by calling node.
#[derive(Debug, Default)]
pub(crate) struct NodeCallTotals(Mutex<BTreeMap<NodeName, Arc<StatusCounts>>>);

impl NodeCallTotals {
    /// Returns the counters of a node. Nodes have certificates, so there are few.
    pub(super) fn counts_of(&self, node: &NodeName) -> Arc<StatusCounts> {
        self.lock().entry(node.clone()).or_default().clone()
    }

    pub(super) fn encode_metrics(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Completed calls from other nodes, by calling node";
        let mut calls =
            to.encode_descriptor("nearpath_node_calls", help, None, MetricType::Counter)?;
        for (node, counts) in self.lock().iter() {
            for (code, count) in counts.nonzero_counts() {
                let labels = [("node", node.as_str()), ("code", &code.to_string())];
                ConstCounter::new(count).encode(calls.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeName, Arc<StatusCounts>>> {
        // Each change of the map is complete, so a panic elsewhere leaves it valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
