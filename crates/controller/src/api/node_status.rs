//! Status queries of all nodes: edges, memory, paths and pool. Specific to nearpath, not part of
//! OpenFaaS's API.

use axum::Json as Answer;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::HeaderMap;
use nearpath_types::node_status::NODE_STATUS_PATH;
use nearpath_types::{NodeName, StatusQuery, StatusReport};

use super::api_error::ApiError;
use super::extractors::QueryParams;
use super::peer_queries::{ask_peers, missing_header};
use crate::controller::Controller;
use crate::merge::join_paths;

/// Routes `GET /system/NAME?namespace=` for every query.
pub(crate) fn status_routes() -> Router<Controller> {
    let route = |router: Router<Controller>, query: StatusQuery| {
        let handler = move |State(it): State<Controller>, params: QueryParams| async move {
            status_report(&it, query, &params).await
        };
        router.route(&format!("/{}", query.name()), get(handler))
    };
    StatusQuery::ALL.into_iter().fold(Router::new(), route)
}

/// Rows of one namespace, of all nodes.
async fn status_report(
    it: &Controller,
    query: StatusQuery,
    params: &QueryParams,
) -> Result<(HeaderMap, Answer<StatusReport>), ApiError> {
    let namespace = params.listed_namespace(it)?;
    let path = format!("{NODE_STATUS_PATH}/{}", query.name());
    let peers = ask_peers(it, &path, |reply| read_report(query, reply)).await;
    let own = it.inner.status.status(query);
    let reports = merge_reports(own, it.inner.node_name(), peers.replies);
    let mut report = join_parts(reports);
    // Filtered here and not at the nodes: a call's two paths may have callers of two namespaces.
    report.retain(|row| row.is_in_namespace(&namespace));
    Ok((missing_header(&peers.missing), Answer(report)))
}

/// Merges the rows of all nodes in the order of their names, so that each node shows the same.
fn merge_reports(
    own: StatusReport,
    own_name: Option<&NodeName>,
    mut others: Vec<(NodeName, StatusReport)>,
) -> StatusReport {
    let Some(own_name) = own_name else { return own };
    others.push((own_name.clone(), own));
    others.sort_by(|(a, _), (b, _)| a.cmp(b));
    let labelled = others.into_iter().map(|(node, mut report)| {
        // By the name in its certificate: a node names no others.
        report.set_node(&node);
        report
    });
    let merged = labelled.reduce(|mut merged, report| {
        merged.append(report);
        merged
    });
    merged.expect("this node has a report")
}

fn read_report(query: StatusQuery, reply: &[u8]) -> Result<StatusReport, String> {
    let mut reader = serde_json::Deserializer::from_slice(reply);
    let report = query.read(&mut reader);
    report.map_err(|error| format!("its reply cannot be read: {error}"))
}

/// Joins the two parts of paths to other nodes.
fn join_parts(report: StatusReport) -> StatusReport {
    match report {
        StatusReport::Paths(rows) => StatusReport::Paths(join_paths(rows)),
        report => report,
    }
}
