//! Queries of other nodes, about this node alone: `contract/node.md`. No handler asks further
//! nodes.

use axum::Json as Answer;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use nearpath_types::node_status::{NODE_LOGS_PATH, NODE_STATUS_PATH};
use nearpath_types::{FunctionId, NodeFunction, NodeStatus, StatusQuery};

use super::api_error::ApiError;
use super::extractors::{QueryParams, parse_namespace};
use super::function_shares::node_report;
use super::functions::{local_details, local_status};
use super::{logs, nodes, unknown_path, wrong_method};
use crate::controller::Controller;

/// Builds the routes for other nodes. Their certificates were checked before.
pub(super) fn build(controller: &Controller) -> Router {
    let path = |name: &str| format!("{NODE_STATUS_PATH}/{name}");
    let routes = Router::new()
        .route(&path("node"), get(report_node))
        .route(&path("functions"), get(report_functions))
        .route(NODE_LOGS_PATH, get(logs::stream_local_logs));
    let add = |router: Router<Controller>, query: StatusQuery| {
        let rows = move |State(it): State<Controller>| async move {
            Answer(it.inner.status.status(query))
        };
        router.route(&path(query.name()), get(rows))
    };
    StatusQuery::ALL
        .into_iter()
        .fold(routes, add)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(controller.clone())
}

async fn report_node(State(it): State<Controller>) -> Answer<NodeStatus> {
    Answer(nodes::own_status(&it))
}

/// `?namespace=`: all functions of a namespace. `&name=`: one, with its instances and `&usage=1`.
async fn report_functions(
    State(it): State<Controller>,
    params: QueryParams,
) -> Result<Answer<Vec<NodeFunction>>, ApiError> {
    let namespace = parse_namespace(params.get("namespace"))?;
    let (model, own) = (it.model(), it.inner.node_name());
    let Some(name) = params.get("name") else {
        let observed = it.inner.fleet.observed_functions();
        let all = model.functions_in(&namespace).map(|function| {
            let status = local_status(&it, &model, function, &observed);
            node_report(own, function, &status)
        });
        return Ok(Answer(all.collect()));
    };
    let id = FunctionId::new(name.parse()?, Some(namespace));
    // This node may know the function later, or no more.
    let Some(function) = model.functions.get(&id) else {
        return Ok(Answer(Vec::new()));
    };
    let with_usage = params.has_flag("usage");
    let status = local_details(&it, &model, function, with_usage).await;
    Ok(Answer(vec![node_report(own, function, &status)]))
}
