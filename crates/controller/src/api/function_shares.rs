//! Status of functions over all nodes: this node's, and the reports of the others.

use std::collections::HashMap;

use nearpath_types::instance_label::label_instance;
use nearpath_types::{FunctionStatus, MissingNode, NodeFunction, NodeName};

use super::peer_queries::PeerReplies;
use crate::controller::Controller;
use crate::merge::{FunctionShares, label_failure, merge_function};
use crate::model::DeployedFunction;

/// Reports of the other nodes, by name of the function.
pub(crate) struct PeerFunctions {
    reports: Vec<(NodeName, HashMap<String, NodeFunction>)>,
    missing: Vec<MissingNode>,
}

impl PeerFunctions {
    /// Sorts the replies of one namespace.
    pub(crate) fn new(peers: PeerReplies<Vec<NodeFunction>>) -> Self {
        let by_name = |all: Vec<NodeFunction>| {
            let named = all.into_iter().map(|one| (one.name.clone(), one));
            named.collect()
        };
        Self {
            reports: peers
                .replies
                .into_iter()
                .map(|(node, all)| (node, by_name(all)))
                .collect(),
            missing: peers.missing,
        }
    }

    /// Returns the nodes that did not answer.
    pub(crate) fn missing(&self) -> &[MissingNode] {
        &self.missing
    }

    /// Adds the reports about a function to its status on this node.
    pub(crate) fn add_to(
        &self,
        it: &Controller,
        function: &DeployedFunction,
        status: FunctionStatus,
    ) -> FunctionStatus {
        let Some(own) = it.inner.node_name() else {
            return status;
        };
        if self.reports.is_empty() && self.missing.is_empty() {
            return label_status(own, status);
        }
        let own_report = node_report(Some(own), function, &status);
        let name = &status.name;
        let others = self.reports.iter();
        let others = others.filter_map(|(node, all)| Some((node.clone(), all.get(name)?.clone())));
        let reports = std::iter::once((own.clone(), own_report)).chain(others);
        let mut reports: Vec<_> = reports.collect();
        // By name, so that each node shows the same.
        reports.sort_by(|(a, _), (b, _)| a.cmp(b));
        let shares = FunctionShares {
            reports,
            missing: &self.missing,
            missing_runners: self.missing_runners(function),
        };
        merge_function(status, shares)
    }

    /// Returns the missing nodes on which a function may run.
    fn missing_runners(&self, function: &DeployedFunction) -> Vec<MissingNode> {
        let policy = function.policy();
        let runs_there = |one: &&MissingNode| {
            let name = one.node.parse::<NodeName>();
            name.is_ok_and(|node| policy.runs_on(&node))
        };
        self.missing.iter().filter(runs_there).cloned().collect()
    }
}

/// Makes the report of this node, which others merge.
pub(crate) fn node_report(
    own: Option<&NodeName>,
    function: &DeployedFunction,
    status: &FunctionStatus,
) -> NodeFunction {
    let policy = function.policy();
    let runs_here = own.is_none_or(|own| policy.runs_on(own));
    NodeFunction {
        node: String::new(),
        name: status.name.clone(),
        replicas: if runs_here { status.replicas } else { 0 },
        available_replicas: status.available_replicas,
        invocation_count: status.invocation_count,
        revision: status.revision,
        not_ready_reason: status.not_ready_reason.clone(),
        last_failure: status.last_failure.clone(),
        usage: status.usage,
        instances: status.instances.clone(),
    }
}

/// Names the node of a status that is about this node alone.
fn label_status(own: &NodeName, mut status: FunctionStatus) -> FunctionStatus {
    for instance in &mut status.instances {
        instance.id = label_instance(Some(own), &instance.id);
    }
    let failure = status.last_failure.as_deref();
    status.last_failure = failure.map(|text| label_failure(own, text));
    status
}
