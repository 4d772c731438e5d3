//! Paths of direct calls to instances of other nodes. Pure.

use std::collections::BTreeMap;

use nearpath_types::chain_status::PathStatus;
use nearpath_types::direct::split_incarnation;
use nearpath_types::{FunctionId, InstanceId, RoutingSnapshot};

/// Instances on other nodes that one instance calls directly at present, by callee.
pub(crate) type RemoteCalls = BTreeMap<FunctionId, Vec<String>>;

/// Lists each pair of an instance here and one on another node that it calls directly.
pub(crate) fn remote_rows(
    snapshot: &RoutingSnapshot,
    calls: &BTreeMap<InstanceId, (FunctionId, RemoteCalls)>,
) -> Vec<PathStatus> {
    let mut rows = Vec::new();
    for (instance, (caller, callees)) in calls {
        let route = snapshot.functions.get(caller);
        for (callee, names) in callees {
            let places = names.iter().filter_map(|name| split_incarnation(name));
            rows.extend(places.map(|(callee_instance, node)| PathStatus {
                chain: route.and_then(|route| route.policy.chain.clone()),
                caller: caller.to_string(),
                caller_instance: Some(instance.to_string()),
                callee: callee.to_string(),
                callee_instance: Some(callee_instance.to_owned()),
                callee_node: Some(node.to_owned()),
                path: Some(nearpath_path::Path::Quic.name().to_owned()),
                ..PathStatus::default()
            }));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_both_instances_and_the_node() {
        let callees = [("cart".parse().unwrap(), vec!["i5.b.up.nearpath".to_owned()])];
        let calls = [(InstanceId(1), ("front".parse().unwrap(), callees.into()))];
        let rows = remote_rows(&RoutingSnapshot::default(), &calls.into());
        let row = &rows[0];
        assert_eq!(
            (row.caller.as_str(), row.callee.as_str()),
            ("front.openfaas-fn", "cart.openfaas-fn")
        );
        let ids = [
            &row.caller_instance,
            &row.callee_instance,
            &row.callee_node,
            &row.path,
        ];
        assert_eq!(
            ids.map(|id| id.as_deref().unwrap()),
            ["i1", "i5", "b", "quic"]
        );
    }
}
