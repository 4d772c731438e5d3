//! Readiness of a new process: its instances have started.

use std::time::Duration;

use nearpath_controller::Controller;
use nearpath_node::Node;
use nearpath_types::{
    DesiredFunction, DesiredState, FunctionId, FunctionMap, FunctionPolicy, NodeName,
    ObservedFunction,
};

/// After this time the handover goes on without the missing instances: one broken function must not
/// block an upgrade.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until every function that is awake on this node has all its instances, or is known to fail.
pub(crate) async fn wait_ready(controller: &Controller, node: &Node, member: Option<&NodeName>) {
    let (desired, mut observed) = (controller.model().desired_state(), node.watch_observed());
    let all = async {
        observed
            .wait_for(|observed| missing(&desired, observed, member).is_empty())
            .await
            .is_ok()
    };
    if tokio::time::timeout(READY_TIMEOUT, all).await.is_err() {
        let observed = node.watch_observed();
        let missing = missing(&desired, &observed.borrow(), member);
        tracing::warn!(functions = ?missing, "handover: taking over, although some instances are not ready");
    }
}

/// Functions that lack instances and do not fail.
fn missing(
    desired: &DesiredState,
    observed: &FunctionMap<ObservedFunction>,
    member: Option<&NodeName>,
) -> Vec<String> {
    let runs_here = |one: &DesiredFunction| match (FunctionPolicy::from_spec(&one.spec), member) {
        (Ok(policy), Some(member)) => policy.runs_on(member),
        _ => true,
    };
    let is_settled = |id: &FunctionId, one: &DesiredFunction| {
        one.replicas == 0
            || !runs_here(one)
            || observed.get(id).is_some_and(|known| {
                // Waiting does not repair a function that fails, and must not block an upgrade.
                known.start_failure.is_some() || known.available_count() >= u64::from(one.replicas)
            })
    };
    let missing = desired
        .functions
        .iter()
        .filter(|(id, one)| !is_settled(id, one));
    missing.map(|(id, _)| id.to_string()).collect()
}
