//! Status queries about this node: the agent's replies, and the paths of calls that leave the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearpath_gateway::invoke::{FunctionTable, RemotePath};
use nearpath_node::Node;
use nearpath_types::chain_status::{GATEWAY_NAME, PathStatus};
use nearpath_types::{
    FunctionId, FunctionRoute, InstanceState, NodeName, RoutingSnapshot, StatusQuery, StatusReport,
    StatusSource,
};

/// Node and gateway of this machine.
pub(crate) struct LocalStatus {
    pub(crate) node: Arc<Node>,
    pub(crate) functions: FunctionTable,
}

impl StatusSource for LocalStatus {
    fn status(&self, query: StatusQuery) -> StatusReport {
        match self.node.status(query) {
            StatusReport::Paths(rows) => {
                let snapshot = self.node.watch_snapshots().borrow().clone();
                let remote = self.functions.remote_paths();
                StatusReport::Paths(add_remote_paths(rows, &snapshot, &remote))
            }
            report => report,
        }
    }
}

/// Adds the paths to other nodes, and corrects the rows of functions that do not run here.
fn add_remote_paths(
    rows: Vec<PathStatus>,
    snapshot: &RoutingSnapshot,
    remote: &[RemotePath],
) -> Vec<PathStatus> {
    let elsewhere: BTreeMap<String, &FunctionRoute> = snapshot
        .functions
        .values()
        .filter(|route| !route.runs_here)
        .map(|route| (route.id.to_string(), &**route))
        .collect();
    let reached: BTreeSet<String> = remote.iter().map(|one| one.callee.to_string()).collect();
    let callers = callers_by_callee(snapshot);
    let direct = direct_edges(&rows);
    let local = rows
        .into_iter()
        // The other node shows the calls that its own instances make.
        .filter(|row| !elsewhere.contains_key(&row.caller))
        .filter_map(|row| correct_row(row, &elsewhere, &reached));
    let added = remote
        .iter()
        .flat_map(|to| rows_to_node(to, snapshot, callers.get(&to.callee)))
        .filter(|row| {
            let edge = (row.caller_instance.clone(), row.callee.clone());
            !direct.contains(&edge)
        });
    local.chain(added).collect()
}

/// Returns the callers and callees of direct calls to other nodes, which do not go by the nodes.
fn direct_edges(rows: &[PathStatus]) -> BTreeSet<(Option<String>, String)> {
    let direct = rows.iter().filter(|row| row.callee_node.is_some());
    direct
        .map(|row| (row.caller_instance.clone(), row.callee.clone()))
        .collect()
}

/// Corrects a row without a path: rows to other nodes replace it, or no other node takes calls.
fn correct_row(
    row: PathStatus,
    elsewhere: &BTreeMap<String, &FunctionRoute>,
    reached: &BTreeSet<String>,
) -> Option<PathStatus> {
    let callee = elsewhere.get(&row.callee);
    // A caller without an instance has a reason of its own.
    let reason = row.reason.as_deref().unwrap_or_default();
    let lacks_callee = row.path.is_none() && reason.starts_with(row.callee.as_str());
    match callee.filter(|_| lacks_callee) {
        None => Some(row),
        Some(_) if reached.contains(&row.callee) => None,
        Some(callee) => {
            let nodes: Vec<_> = callee.policy.nodes.iter().map(NodeName::as_str).collect();
            let nodes = nodes.join(", ");
            let reason = format!(
                "{} runs on {nodes}, and no such node takes calls",
                row.callee
            );
            Some(PathStatus {
                reason: Some(reason),
                ..row
            })
        }
    }
}

/// Returns the functions with instances here that call others.
fn callers_by_callee(snapshot: &RoutingSnapshot) -> BTreeMap<FunctionId, Vec<&FunctionRoute>> {
    let mut callers = BTreeMap::<_, Vec<_>>::new();
    for route in snapshot.functions.values() {
        for callee in &route.policy.calls {
            callers.entry(callee.clone()).or_default().push(&**route);
        }
    }
    callers
}

/// Makes the rows of calls of one function to one other node: the gateway's, and those of
/// instances.
fn rows_to_node(
    to: &RemotePath,
    snapshot: &RoutingSnapshot,
    callers: Option<&Vec<&FunctionRoute>>,
) -> Vec<PathStatus> {
    let callee = snapshot.functions.get(&to.callee);
    let row = PathStatus {
        chain: callee.and_then(|route| route.policy.chain.clone()),
        caller: GATEWAY_NAME.to_owned(),
        callee: to.callee.to_string(),
        path: Some(to.path.to_owned()),
        obstacle: to.obstacle.map(str::to_owned),
        reason: path_reason(to),
        callee_node: Some(to.node.to_string()),
        ..PathStatus::default()
    };
    let mut rows = vec![row.clone()];
    for caller in callers.into_iter().flatten() {
        let ready = caller
            .instances
            .iter()
            .filter(|instance| instance.state == InstanceState::Ready);
        rows.extend(ready.map(|instance| PathStatus {
            chain: caller.policy.chain.clone(),
            caller: caller.id.to_string(),
            caller_instance: Some(instance.id.to_string()),
            ..row.clone()
        }));
    }
    rows
}

fn path_reason(to: &RemotePath) -> Option<String> {
    if !to.runs_here {
        return to.reason.clone();
    }
    let only = "only while no place is free on the caller's node";
    Some(match &to.reason {
        Some(reason) => format!("{only}; {reason}"),
        None => only.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::policy::CallTransport;
    use nearpath_types::{
        FunctionPolicy, InstanceAddr, InstanceId, InstanceLocality, InstanceRoute,
    };

    fn route(name: &str, calls: &[&str], nodes: &[&str], instances: &[u64]) -> FunctionRoute {
        let policy = FunctionPolicy {
            chain: Some("shop".to_owned()),
            calls: calls.iter().map(|name| name.parse().unwrap()).collect(),
            nodes: nodes.iter().map(|name| name.parse().unwrap()).collect(),
            ..FunctionPolicy::default()
        };
        let instance = |id: &u64| InstanceRoute {
            id: InstanceId(*id),
            addr: InstanceAddr(([10, 62, 0, 2], 8080).into()),
            locality: InstanceLocality::SameNode,
            state: InstanceState::Ready,
            quic: None,
            transport: CallTransport::Auto,
            server: None,
        };
        FunctionRoute {
            address: None,
            id: name.parse().unwrap(),
            policy: Arc::new(policy),
            replicas: 1,
            instances: instances.iter().map(instance).collect(),
            runs_here: nodes.is_empty() || nodes.contains(&"a"),
            remotes: Vec::new(),
            start_failure: None,
        }
    }

    fn snapshot() -> RoutingSnapshot {
        let functions = [
            route("front", &["cart"], &["a"], &[1, 2]),
            route("cart", &["store"], &["b"], &[]),
            route("store", &[], &["b"], &[]),
        ];
        RoutingSnapshot {
            functions: functions.into_iter().collect(),
            ..RoutingSnapshot::default()
        }
    }

    fn missing(caller: &str, callee: &str) -> PathStatus {
        PathStatus {
            caller: caller.to_owned(),
            callee: callee.to_owned(),
            reason: Some(format!("{callee} has no ready instance")),
            ..PathStatus::default()
        }
    }

    fn to_b(callee: &str, runs_here: bool) -> RemotePath {
        RemotePath {
            callee: callee.parse().unwrap(),
            node: "b".parse().unwrap(),
            path: "quic",
            obstacle: Some("other_node"),
            reason: Some("the instance is on another machine".to_owned()),
            runs_here,
        }
    }

    #[test]
    fn rows_lead_to_other_nodes() {
        let rows = vec![
            missing("front.openfaas-fn", "cart.openfaas-fn"),
            missing(GATEWAY_NAME, "cart.openfaas-fn"),
            missing("cart.openfaas-fn", "store.openfaas-fn"),
            missing(GATEWAY_NAME, "store.openfaas-fn"),
        ];
        let rows = add_remote_paths(rows, &snapshot(), &[to_b("cart", false)]);
        let lines: Vec<_> = rows
            .iter()
            .map(|row| {
                let or_none = |text: &Option<String>| text.clone().unwrap_or("-".to_owned());
                let from = or_none(&row.caller_instance);
                let (node, path) = (or_none(&row.callee_node), or_none(&row.path));
                format!("{} {from} {} {node} {path}", row.caller, row.callee)
            })
            .collect();
        assert_eq!(
            lines,
            [
                "gateway - store.openfaas-fn - -",
                "gateway - cart.openfaas-fn b quic",
                "front.openfaas-fn i1 cart.openfaas-fn b quic",
                "front.openfaas-fn i2 cart.openfaas-fn b quic",
            ]
        );
        let reason = rows[0].reason.as_deref().unwrap();
        assert_eq!(
            reason,
            "store.openfaas-fn runs on b, and no such node takes calls"
        );
    }

    #[test]
    fn an_instance_that_calls_directly_has_no_row_by_the_nodes() {
        let direct = PathStatus {
            caller: "front.openfaas-fn".to_owned(),
            caller_instance: Some("i1".to_owned()),
            callee: "cart.openfaas-fn".to_owned(),
            callee_instance: Some("i5".to_owned()),
            callee_node: Some("b".to_owned()),
            path: Some("quic".to_owned()),
            ..PathStatus::default()
        };
        let rows = add_remote_paths(vec![direct], &snapshot(), &[to_b("cart", false)]);
        let callers: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.caller_instance.as_deref(),
                    row.callee_instance.as_deref(),
                )
            })
            .collect();
        let expected = [(Some("i1"), Some("i5")), (None, None), (Some("i2"), None)];
        assert_eq!(callers, expected);
    }

    #[test]
    fn a_function_that_runs_here_too_goes_elsewhere_only_when_it_is_busy() {
        let rows = add_remote_paths(Vec::new(), &snapshot(), &[to_b("front", true)]);
        let reason = rows[0].reason.as_deref().unwrap();
        assert_eq!(
            reason,
            "only while no place is free on the caller's node; the instance is on another machine"
        );
    }
}
