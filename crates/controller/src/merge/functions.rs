//! Status of a function over all nodes.
//!
//! Instances add up, and so do invocations: a call to another node counts only at the node that its
//! caller has called.

use nearpath_types::instance_label::label_instance;
use nearpath_types::status::UsageStatus;
use nearpath_types::{FunctionStatus, MissingNode, NodeFunction, NodeName};

/// Reports about one function.
pub(crate) struct FunctionShares<'a> {
    /// Reports by node, this node's included.
    pub(crate) reports: Vec<(NodeName, NodeFunction)>,
    /// Nodes that did not answer.
    pub(crate) missing: &'a [MissingNode],
    /// Those of them on which the function may run.
    pub(crate) missing_runners: Vec<MissingNode>,
}

/// Adds the reports of all nodes to this node's `status`.
///
/// A node that did not answer wants as many instances as this one, because the files are the same.
pub(crate) fn merge_function(status: FunctionStatus, shares: FunctionShares<'_>) -> FunctionStatus {
    let FunctionShares {
        reports,
        missing,
        missing_runners,
    } = shares;
    let assumed = status.replicas * missing_runners.len() as u64;
    let sum = |count: fn(&NodeFunction) -> u64| reports.iter().map(|(_, one)| count(one)).sum();
    let replicas: u64 = sum(|one| one.replicas);
    FunctionStatus {
        replicas: replicas + assumed,
        available_replicas: sum(|one| one.available_replicas),
        invocation_count: reports.iter().map(|(_, one)| one.invocation_count).sum(),
        usage: sum_usage(&reports),
        not_ready_reason: join_reasons(&reports, &missing_runners),
        last_failure: join_failures(&reports),
        instances: reports
            .iter()
            .flat_map(|(node, one)| labelled_instances(node, one))
            .collect(),
        nodes: reports.into_iter().map(node_row).collect(),
        missing_nodes: missing.to_vec(),
        ..status
    }
}

fn sum_usage(reports: &[(NodeName, NodeFunction)]) -> Option<UsageStatus> {
    let usages = reports.iter().filter_map(|(_, one)| one.usage);
    usages.reduce(|sum, one| UsageStatus {
        cpu: sum.cpu + one.cpu,
        total_memory_bytes: sum.total_memory_bytes + one.total_memory_bytes,
    })
}

fn join_reasons(reports: &[(NodeName, NodeFunction)], missing: &[MissingNode]) -> Option<String> {
    let reported = reports
        .iter()
        .filter_map(|(node, one)| Some(format!("{node}: {}", one.not_ready_reason.as_ref()?)));
    let absent = missing
        .iter()
        .map(|one| format!("{}: no answer: {}", one.node, one.cause));
    join(reported.chain(absent))
}

fn join_failures(reports: &[(NodeName, NodeFunction)]) -> Option<String> {
    let failures = reports
        .iter()
        .filter_map(|(node, one)| Some(label_failure(node, one.last_failure.as_ref()?)));
    join(failures)
}

/// Puts the node before the text of a failure, which begins with the id of an instance if there was
/// one.
pub(crate) fn label_failure(node: &NodeName, text: &str) -> String {
    match text.split_once(": ") {
        Some((id, rest)) if is_instance_id(id) => {
            format!("{}: {rest}", label_instance(Some(node), id))
        }
        _ => format!("{node}: {text}"),
    }
}

/// Returns whether a text has the form of an instance's id.
fn is_instance_id(text: &str) -> bool {
    let digits = text.strip_prefix('i').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn join(texts: impl Iterator<Item = String>) -> Option<String> {
    let texts: Vec<_> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn labelled_instances<'a>(
    node: &'a NodeName,
    report: &'a NodeFunction,
) -> impl Iterator<Item = nearpath_types::status::InstanceStatus> + 'a {
    report.instances.iter().cloned().map(move |mut instance| {
        instance.id = label_instance(Some(node), instance.id);
        instance
    })
}

/// Makes the row of a node, without what the status shows for all nodes together.
fn node_row((node, report): (NodeName, NodeFunction)) -> NodeFunction {
    NodeFunction {
        node: node.to_string(),
        name: String::new(),
        usage: None,
        instances: Vec::new(),
        ..report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::status::InstanceStatus;
    use serde_json::json;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn own_status(replicas: u64) -> FunctionStatus {
        serde_json::from_value(json!({
            "name": "cart", "image": "", "namespace": "openfaas-fn", "invocationCount": 1.0,
            "replicas": replicas, "availableReplicas": 1, "createdAt": "",
        }))
        .unwrap()
    }

    fn report(ready: u64, calls: u32, instance: &str) -> NodeFunction {
        let instance: InstanceStatus = serde_json::from_value(json!({
            "id": instance, "state": "ready", "addr": "", "revision": 1, "pid": 1, "startMs": {},
        }))
        .unwrap();
        NodeFunction {
            replicas: 2,
            available_replicas: ready,
            invocation_count: calls.into(),
            usage: Some(UsageStatus {
                cpu: 1.5,
                total_memory_bytes: 10.0,
            }),
            instances: vec![instance],
            ..NodeFunction::default()
        }
    }

    fn shares<'a>(missing: &'a [MissingNode]) -> FunctionShares<'a> {
        FunctionShares {
            reports: vec![
                (name("a"), report(2, 3, "i1")),
                (name("b"), report(1, 4, "i1")),
            ],
            missing,
            missing_runners: missing.to_vec(),
        }
    }

    #[test]
    fn instances_and_invocations_add_up() {
        let merged = merge_function(own_status(2), shares(&[]));
        assert_eq!((merged.replicas, merged.available_replicas), (4, 3));
        assert_eq!(merged.invocation_count, 7.0);
        assert_eq!(merged.usage.unwrap().cpu, 3.0);
        let ids: Vec<_> = merged.instances.iter().map(|one| &*one.id).collect();
        assert_eq!(ids, ["a/i1", "b/i1"]);
        let rows: Vec<_> = merged
            .nodes
            .iter()
            .map(|row| (&*row.node, row.available_replicas, row.instances.len()))
            .collect();
        assert_eq!(rows, [("a", 2, 0), ("b", 1, 0)]);
        assert!(merged.not_ready_reason.is_none() && merged.missing_nodes.is_empty());
    }

    #[test]
    fn a_node_that_is_down_wants_its_instances_and_is_named() {
        let missing = [MissingNode::new("c", "connection refused")];
        let merged = merge_function(own_status(2), shares(&missing));
        assert_eq!((merged.replicas, merged.available_replicas), (6, 3));
        assert_eq!(merged.missing_nodes, missing);
        let reason = merged.not_ready_reason.unwrap();
        assert_eq!(reason, "c: no answer: connection refused");
        // A function that does not run there lacks nothing.
        let elsewhere = FunctionShares {
            missing_runners: Vec::new(),
            ..shares(&missing)
        };
        let merged = merge_function(own_status(2), elsewhere);
        assert_eq!((merged.replicas, merged.not_ready_reason), (4, None));
        assert_eq!(merged.missing_nodes.len(), 1);
    }

    #[test]
    fn failures_name_node_and_instance() {
        let mut all = shares(&[]);
        all.reports[0].1.last_failure = Some("i1f: exited with 1".to_owned());
        all.reports[1].1.last_failure = Some("image: no such folder".to_owned());
        let failure = merge_function(own_status(1), all).last_failure.unwrap();
        assert_eq!(failure, "a/i1f: exited with 1; b: image: no such folder");
    }
}
