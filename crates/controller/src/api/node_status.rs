//! Status queries of the node: edges, memory, paths and pool. Specific to nearpath, not part of
//! OpenFaaS's API.

use axum::Json as Answer;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use nearpath_types::{StatusQuery, StatusReport};

use super::api_error::ApiError;
use super::extractors::QueryParams;
use crate::controller::Controller;

/// Routes `GET /system/NAME?namespace=` for every query.
pub(crate) fn status_routes() -> Router<Controller> {
    let route = |router: Router<Controller>, query: StatusQuery| {
        let handler = move |State(it): State<Controller>, params: QueryParams| async move {
            status_report(&it, query, &params)
        };
        router.route(&format!("/{}", query.name()), get(handler))
    };
    StatusQuery::ALL.into_iter().fold(Router::new(), route)
}

/// Rows of one namespace.
fn status_report(
    it: &Controller,
    query: StatusQuery,
    params: &QueryParams,
) -> Result<Answer<StatusReport>, ApiError> {
    let namespace = params.listed_namespace(it)?;
    let mut report = it.inner.status.status(query);
    // Filtered here and not at the node: the query stays the same for every namespace.
    report.retain(|row| row.is_in_namespace(&namespace));
    Ok(Answer(report))
}
