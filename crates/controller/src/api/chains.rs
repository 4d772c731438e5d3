//! Chains as they are: what their edges counted, who holds their memory, which paths their calls take, and how connections outside stand. nearpath's own.

use axum::Json as Answer;
use axum::extract::State;
use nearpath_types::chain::{EdgeStatus, MemoryStatus, PathStatus};
use nearpath_types::pool::PoolStatus;
use nearpath_types::{FunctionId, Namespace};

use super::input::Params;
use super::refused::Refused;
use crate::controller::Controller;

/// `GET /system/edges?namespace=`
pub(crate) async fn edges(State(it): State<Controller>, params: Params) -> Result<Answer<Vec<EdgeStatus>>, Refused> {
    let namespace = params.listed_namespace(&it)?;
    let edges = it.inner.fleet.edges().into_iter();
    Ok(Answer(edges.filter(|edge| edge.namespace == namespace.as_str()).collect()))
}

/// `GET /system/memory?namespace=`
pub(crate) async fn memory(State(it): State<Controller>, params: Params) -> Result<Answer<Vec<MemoryStatus>>, Refused> {
    let namespace = params.listed_namespace(&it)?;
    let chains = it.inner.fleet.memory().into_iter();
    Ok(Answer(chains.filter(|chain| chain.namespace == namespace.as_str()).collect()))
}

/// `GET /system/paths?namespace=`: edges that begin or end in that namespace.
pub(crate) async fn paths(State(it): State<Controller>, params: Params) -> Result<Answer<Vec<PathStatus>>, Refused> {
    let namespace = params.listed_namespace(&it)?;
    let paths = it.inner.fleet.paths().into_iter();
    Ok(Answer(paths.filter(|path| is_in(&path.caller, &namespace) || is_in(&path.callee, &namespace)).collect()))
}

/// `GET /system/pool?namespace=`
pub(crate) async fn pool(State(it): State<Controller>, params: Params) -> Result<Answer<Vec<PoolStatus>>, Refused> {
    let namespace = params.listed_namespace(&it)?;
    let all = it.inner.fleet.pool().into_iter();
    Ok(Answer(all.filter(|one| one.namespace == namespace.as_str()).collect()))
}

fn is_in(function: &str, namespace: &Namespace) -> bool {
    function.contains('.') && function.parse::<FunctionId>().is_ok_and(|id| id.namespace == *namespace)
}
