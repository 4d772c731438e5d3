//! `GET /system/nodes`: all nodes of the application, as this one sees them.

use axum::Json as Answer;
use axum::extract::State;
use http::HeaderMap;
use nearpath_types::node_status::NODE_STATUS_PATH;
use nearpath_types::{MissingNode, NodeState, NodeStatus};

use super::peer_queries::{ask_peers, missing_header, read_json};
use crate::controller::Controller;

/// Lists this node, and those of the node list with what they say about themselves.
pub(crate) async fn list_nodes(
    State(it): State<Controller>,
) -> (HeaderMap, Answer<Vec<NodeStatus>>) {
    let path = format!("{NODE_STATUS_PATH}/node");
    let peers = ask_peers(&it, &path, read_json::<NodeStatus>).await;
    let seen = it.inner.peers().map(|peers| peers.peer_statuses());
    let mut rows: Vec<_> = seen.unwrap_or_default();
    for row in &mut rows {
        let is_row = |name: &str| row.name.as_deref() == Some(name);
        let reply = peers.replies.iter().find(|(node, _)| is_row(node.as_str()));
        let missing = peers.missing.iter().find(|one| is_row(&one.node));
        add_report(row, reply.map(|(_, report)| report), missing);
    }
    rows.push(own_status(&it));
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    (missing_header(&peers.missing), Answer(rows))
}

/// Adds to a row what the node reports about itself, or the cause for which it does not.
fn add_report(row: &mut NodeStatus, report: Option<&NodeStatus>, missing: Option<&MissingNode>) {
    row.source = report.and_then(|report| report.source.clone());
    let is_silent = row.state.is_reachable() && row.cause.is_none();
    if let Some(missing) = missing.filter(|_| is_silent) {
        row.cause = Some(missing.cause.clone());
    }
}

/// Returns the status of this node.
pub(crate) fn own_status(it: &Controller) -> NodeStatus {
    let (model, observed) = (it.model(), it.inner.fleet.observed_functions());
    let known = it.inner.peers().map(|peers| peers.own_status());
    let own = it.inner.node_name();
    let runs_here = model
        .functions
        .values()
        .filter(|function| own.is_none_or(|own| function.policy().runs_on(own)));
    NodeStatus {
        name: own.map(ToString::to_string),
        state: NodeState::This,
        version: Some(it.inner.version.release.clone()),
        functions: runs_here.count() as u64,
        ready_instances: observed.values().map(|one| one.available_count()).sum(),
        ..known.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_node_has_the_cause_and_a_node_that_is_down_keeps_its_own() {
        let missing = MissingNode::new("b", "no answer within 2s");
        let mut row = NodeStatus {
            state: NodeState::Up,
            ..NodeStatus::default()
        };
        add_report(&mut row, None, Some(&missing));
        assert_eq!(row.cause.as_deref(), Some("no answer within 2s"));
        let mut row = NodeStatus {
            state: NodeState::Down,
            cause: Some("its stream ended".to_owned()),
            ..NodeStatus::default()
        };
        add_report(&mut row, None, Some(&missing));
        assert_eq!(row.cause.as_deref(), Some("its stream ended"));
    }
}
