//! Permission of streams from other nodes. Pure.

use nearpath_types::{NodeName, NodeStreamRequest, PlatformError, Reason, RoutingSnapshot, policy};

use crate::instance::variables::WATCHDOG_PORT;

/// Name of this component in errors.
pub(crate) const COMPONENT: &str = "node";

/// Checks that `node` may open a stream for a function that runs on it, to a function that runs here. The
/// snapshot of this node decides, not the other node.
///
/// # Errors
/// `not_allowed` with both functions, or `not_here`.
pub(super) fn check_stream(
    snapshot: &RoutingSnapshot,
    node: &NodeName,
    request: &NodeStreamRequest,
) -> Result<(), PlatformError> {
    let NodeStreamRequest {
        caller,
        callee,
        port,
    } = request;
    let refuse = |why: String| {
        let message = format!("node {node} may not connect {caller} to {callee}: {why}");
        PlatformError::new(COMPONENT, Reason::NotAllowed, message)
    };
    // The watchdog believes what the node tells it, for instance who calls.
    if *port == WATCHDOG_PORT {
        let why = format!("port {port} of instances is the platform's own");
        return Err(refuse(why));
    }
    let Some(route) = snapshot.functions.get(caller) else {
        return Err(refuse(format!("this node knows no function {caller}")));
    };
    if !route.policy.runs_on(node) {
        let why = format!("{caller} does not run there");
        return Err(refuse(why).governed_by(policy::NODES));
    }
    if !route.policy.may_call(callee) {
        return Err(refuse("that edge is not declared".to_owned()).governed_by("chains"));
    }
    // Last: a node without the edge learns nothing about functions here.
    let callee_route = snapshot.functions.get(callee);
    if !callee_route.is_some_and(|route| route.runs_here) {
        let message = format!("{callee} does not run on this node");
        return Err(PlatformError::new(COMPONENT, Reason::NotHere, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::{FunctionPolicy, FunctionRoute};

    fn route(name: &str, calls: &[&str], nodes: &[&str], runs_here: bool) -> FunctionRoute {
        let policy = FunctionPolicy {
            calls: calls.iter().map(|name| name.parse().unwrap()).collect(),
            nodes: nodes.iter().map(|name| name.parse().unwrap()).collect(),
            ..FunctionPolicy::default()
        };
        FunctionRoute {
            id: name.parse().unwrap(),
            address: None,
            policy: policy.into(),
            replicas: 1,
            instances: Vec::new(),
            runs_here,
            remotes: Vec::new(),
            start_failure: None,
        }
    }

    fn refusal(node: &str, caller: &str, callee: &str, port: u16) -> Option<(Reason, String)> {
        let functions = [
            route("cart", &["store", "away", "absent"], &["a"], false),
            route("other", &[], &["a"], false),
            route("anywhere", &["store"], &[], true),
            route("store", &[], &["b"], true),
            route("away", &[], &["c"], false),
        ];
        let snapshot = RoutingSnapshot {
            functions: functions.into_iter().collect(),
            ..RoutingSnapshot::default()
        };
        let request = NodeStreamRequest {
            caller: caller.parse().unwrap(),
            callee: callee.parse().unwrap(),
            port,
        };
        let checked = check_stream(&snapshot, &node.parse().unwrap(), &request);
        let error = checked.err()?;
        Some((error.reason, error.message.into_owned()))
    }

    #[test]
    fn declared_callers_on_their_nodes_are_permitted() {
        assert_eq!(refusal("a", "cart", "store", 6379), None);
        assert_eq!(refusal("z", "anywhere", "store", 1), None);
    }

    #[test]
    fn all_others_are_refused_with_the_cause() {
        for (node, caller, callee, port, reason, why) in [
            ("a", "cart", "store", 8080, Reason::NotAllowed, "port 8080"),
            ("a", "unknown", "store", 1, Reason::NotAllowed, "knows no"),
            ("c", "cart", "store", 1, Reason::NotAllowed, "run there"),
            ("a", "other", "store", 1, Reason::NotAllowed, "not declared"),
            ("a", "cart", "away", 1, Reason::NotHere, "does not run"),
            ("a", "cart", "absent", 1, Reason::NotHere, "does not run"),
        ] {
            let (found, text) = refusal(node, caller, callee, port).unwrap();
            assert_eq!(found, reason, "{text}");
            assert!(text.contains(why), "{text}");
        }
    }
}
