//! Functions: list, deploy, update, remove, describe, scale.

use axum::Json as Answer;
use axum::extract::State;
use http::{HeaderMap, HeaderValue, StatusCode};
use nearpath_types::node_status::NODE_STATUS_PATH;
use nearpath_types::policy::WARNING_HEADER;
use nearpath_types::{FunctionMap, FunctionSpec, FunctionStatus, ObservedFunction};
use serde::Deserialize;

use super::api_error::ApiError;
use super::extractors::{
    NamespacedBody, PathName, QueryParams, null_is_default, parse_function_id,
};
use super::function_shares::PeerFunctions;
use super::image::resolve_image;
use super::peer_queries::{ask_peers, missing_header, read_json};
use super::status::{function_status, with_autoscaling, with_details};
use crate::controller::Controller;
use crate::model::{CommandRefusal, ControllerCommand, ControllerModel, DeployedFunction};

/// `GET /system/functions?namespace=`
pub(crate) async fn list_functions(
    State(it): State<Controller>,
    params: QueryParams,
) -> Result<(HeaderMap, Answer<Vec<FunctionStatus>>), ApiError> {
    let namespace = params.listed_namespace(&it)?;
    let path = format!("{NODE_STATUS_PATH}/functions?namespace={namespace}");
    let peers = PeerFunctions::new(ask_peers(&it, &path, read_json).await);
    let (model, observed) = (it.model(), it.inner.fleet.observed_functions());
    let all = model.functions_in(&namespace).map(|function| {
        let status = local_status(&it, &model, function, &observed);
        peers.add_to(&it, function, status)
    });
    Ok((missing_header(peers.missing()), Answer(all.collect())))
}

/// Returns the status of a function on this node.
pub(super) fn local_status(
    it: &Controller,
    model: &ControllerModel,
    function: &DeployedFunction,
    observed: &FunctionMap<ObservedFunction>,
) -> FunctionStatus {
    let (id, fleet) = (function.spec.id(), &it.inner.fleet);
    let address = model.address_number(&id);
    let observed = observed.get(&id).map(|seen| &**seen);
    let invocations = fleet.invocation_count(&id);
    let status = function_status(function, address, observed, invocations);
    with_autoscaling(status, fleet.autoscaling(&id))
}

/// Returns the status of a function on this node, with its instances and perhaps their usage.
pub(super) async fn local_details(
    it: &Controller,
    model: &ControllerModel,
    function: &DeployedFunction,
    with_usage: bool,
) -> FunctionStatus {
    let (id, fleet) = (function.spec.id(), &it.inner.fleet);
    let usage = match with_usage {
        // Only on request: reading the usage takes time.
        true => Some(fleet.function_usage(id.clone()).await),
        false => None,
    };
    let observed = fleet.observed_functions();
    let status = local_status(it, model, function, &observed);
    with_details(status, observed.get(&id).map(|seen| &**seen), usage)
}

/// Status of an accepted deployment, and its warnings.
type DeployAnswer = (StatusCode, HeaderMap);

/// Warnings per deployment; a response's head is bounded.
const MAX_WARNINGS: usize = 16;

/// `POST /system/functions`: deploys a function; an existing one is replaced by a rolling update.
pub(crate) async fn deploy_function(
    State(it): State<Controller>,
    NamespacedBody(mut spec): NamespacedBody<FunctionSpec>,
) -> Result<DeployAnswer, ApiError> {
    // Before the check of its folder, whose correction would not help then.
    it.check_changeable()?;
    resolve_image(&it, &mut spec).await?;
    let warnings = warning_headers(&spec);
    it.apply_command(ControllerCommand::Deploy(spec)).await?;
    Ok((StatusCode::ACCEPTED, warnings))
}

/// `PUT /system/functions`: a rolling update. 404 makes OpenFaaS's clients send a `POST`.
pub(crate) async fn update_function(
    State(it): State<Controller>,
    NamespacedBody(mut spec): NamespacedBody<FunctionSpec>,
) -> Result<DeployAnswer, ApiError> {
    // Before the check of its folder, whose correction would not help then.
    it.check_changeable()?;
    resolve_image(&it, &mut spec).await?;
    let warnings = warning_headers(&spec);
    it.apply_command(ControllerCommand::Update(spec)).await?;
    Ok((StatusCode::OK, warnings))
}

/// Warnings about settings without effect, one header each; logged too, because OpenFaaS's clients
/// show no headers.
fn warning_headers(spec: &FunctionSpec) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for ignored in spec.ignored_settings().into_iter().take(MAX_WARNINGS) {
        let text = ignored.to_string();
        tracing::warn!(function = %spec.id(), "deploy: {text}");
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.append(WARNING_HEADER, value);
        }
    }
    headers
}

/// OpenFaaS's `DeleteFunctionRequest`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RemoveFunctionRequest {
    function_name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    namespace: String,
}

/// `DELETE /system/functions`
pub(crate) async fn remove_function(
    State(it): State<Controller>,
    NamespacedBody(request): NamespacedBody<RemoveFunctionRequest>,
) -> Result<StatusCode, ApiError> {
    it.apply_command(ControllerCommand::Remove(parse_function_id(
        &request.function_name,
        Some(&request.namespace),
    )?))
    .await?;
    Ok(StatusCode::OK)
}

/// `GET /system/function/{name}?namespace=&usage=1`
pub(crate) async fn describe_function(
    State(it): State<Controller>,
    PathName(name): PathName,
    params: QueryParams,
) -> Result<(HeaderMap, Answer<FunctionStatus>), ApiError> {
    let id = parse_function_id(&name, params.get("namespace"))?;
    let model = it.model();
    let function = model
        .functions
        .get(&id)
        .ok_or_else(|| CommandRefusal::NoFunction(id.clone()))?;
    let with_usage = params.has_flag("usage");
    let mut path = format!(
        "{NODE_STATUS_PATH}/functions?namespace={}&name={}",
        id.namespace, id.name
    );
    if with_usage {
        path += "&usage=1";
    }
    let (peers, status) = tokio::join!(
        ask_peers(&it, &path, read_json),
        local_details(&it, &model, function, with_usage)
    );
    let peers = PeerFunctions::new(peers);
    let status = peers.add_to(&it, function, status);
    Ok((missing_header(peers.missing()), Answer(status)))
}

/// OpenFaaS's `ScaleServiceRequest`. A missing number is an error: Go would read it as 0 and put
/// the function to sleep.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScaleFunctionRequest {
    #[serde(default, deserialize_with = "null_is_default")]
    service_name: String,
    replicas: u64,
    #[serde(default, deserialize_with = "null_is_default")]
    namespace: String,
}

/// `POST /system/scale-function/{name}`
pub(crate) async fn scale_function(
    State(it): State<Controller>,
    PathName(name): PathName,
    NamespacedBody(request): NamespacedBody<ScaleFunctionRequest>,
) -> Result<StatusCode, ApiError> {
    let namespace = Some(request.namespace.as_str());
    let id = parse_function_id(&name, namespace)?;
    // OpenFaaS's clients repeat the name in the body; scaling another function than the path says
    // would be dangerous.
    if !request.service_name.is_empty()
        && parse_function_id(&request.service_name, namespace)? != id
    {
        let text = format!(
            "serviceName {:?} contradicts {name:?} in the path",
            request.service_name
        );
        return Err(ApiError::bad_request(text));
    }
    it.apply_command(ControllerCommand::Scale(id.clone(), request.replicas))
        .await?;
    // The stored number may be the same while the autoscaler has another one.
    let replicas = u32::try_from(request.replicas).unwrap_or(u32::MAX);
    it.inner.fleet.continue_autoscaling(&id, replicas);
    Ok(StatusCode::ACCEPTED)
}
