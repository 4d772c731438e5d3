//! When a new process is as good as the one before it: its instances have started.

use std::time::Duration;

use nearpath_controller::Controller;
use nearpath_node::Node;
use nearpath_types::{Desired, ObservedFunction};

/// A function that has not come up by then does not hold up the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until every function that is awake has all its instances, or is known to be in trouble.
pub(in crate::up) async fn risen(controller: &Controller, node: &Node) {
    let (desired, mut observed) = (controller.model().desired(), node.observed());
    let all = async { observed.wait_for(|observed| missing(&desired, observed).next().is_none()).await.is_ok() };
    if tokio::time::timeout(PATIENCE, all).await.is_err() {
        let observed = node.observed();
        let late: Vec<_> = missing(&desired, &observed.borrow()).collect();
        tracing::warn!(functions = ?late, "not all instances are ready; taking over without them");
    }
}

fn missing(desired: &Desired, observed: &[ObservedFunction]) -> impl Iterator<Item = String> {
    let is_there = |id: &nearpath_types::FunctionId, replicas: u32| {
        let known = observed.iter().find(|function| function.id == *id);
        replicas == 0 || known.is_some_and(|known| known.trouble.is_some() || known.available() >= u64::from(replicas))
    };
    let late = desired.functions.iter().filter(move |one| !is_there(&one.spec.id(), one.replicas));
    late.map(|one| one.spec.id().to_string()).collect::<Vec<_>>().into_iter()
}
