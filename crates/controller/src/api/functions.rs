//! Functions: list, deploy, update, remove, describe, scale.

use std::collections::HashMap;

use axum::Json as Answer;
use axum::extract::State;
use http::StatusCode;
use nearpath_types::{FunctionSpec, FunctionStatus};
use serde::Deserialize;

use super::input::{Json, Name, Params, function_id, null_is_default};
use super::refused::Refused;
use super::status::{in_detail, status};
use crate::controller::Controller;
use crate::model::{Command, Refusal};

/// `GET /system/functions?namespace=`
pub(crate) async fn list(State(it): State<Controller>, params: Params) -> Result<Answer<Vec<FunctionStatus>>, Refused> {
    let namespace = params.listed_namespace(&it)?;
    let (model, fleet) = (it.model(), &it.inner.fleet);
    let observed = fleet.observed();
    let observed: HashMap<_, _> = observed.iter().map(|seen| (&seen.id, seen)).collect();
    let all = model.functions_in(&namespace).map(|function| {
        let id = function.spec.id();
        status(function, observed.get(&id).copied(), fleet.invocations(&id))
    });
    Ok(Answer(all.collect()))
}

/// `POST /system/functions`: deploys, and replaces a function that exists by a rolling update.
pub(crate) async fn deploy(
    State(it): State<Controller>,
    Json(spec): Json<FunctionSpec>,
) -> Result<StatusCode, Refused> {
    it.order(Command::Deploy(spec)).await?;
    Ok(StatusCode::ACCEPTED)
}

/// `PUT /system/functions`: a rolling update; 404 tells OpenFaaS's clients to `POST` instead.
pub(crate) async fn update(
    State(it): State<Controller>,
    Json(spec): Json<FunctionSpec>,
) -> Result<StatusCode, Refused> {
    it.order(Command::Update(spec)).await?;
    Ok(StatusCode::OK)
}

/// OpenFaaS's `DeleteFunctionRequest`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Removal {
    function_name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    namespace: String,
}

/// `DELETE /system/functions`
pub(crate) async fn remove(State(it): State<Controller>, Json(asked): Json<Removal>) -> Result<StatusCode, Refused> {
    it.order(Command::Remove(function_id(&asked.function_name, Some(&asked.namespace))?)).await?;
    Ok(StatusCode::OK)
}

/// `GET /system/function/{name}?namespace=&usage=1`
pub(crate) async fn describe(
    State(it): State<Controller>,
    Name(name): Name,
    params: Params,
) -> Result<Answer<FunctionStatus>, Refused> {
    let id = function_id(&name, params.get("namespace"))?;
    let (model, fleet) = (it.model(), &it.inner.fleet);
    let function = model.functions.get(&id).ok_or_else(|| Refusal::NoFunction(id.clone()))?;
    let usage = match params.get("usage") {
        Some("1" | "true") => Some(fleet.usage(id.clone()).await),
        _ => None,
    };
    let everything = fleet.observed();
    let observed = everything.iter().find(|seen| seen.id == id);
    Ok(Answer(in_detail(status(function, observed, fleet.invocations(&id)), observed, usage)))
}

/// OpenFaaS's `ScaleServiceRequest`. A missing number is an error: Go would read it as 0 and put the function to sleep.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Scaling {
    #[serde(default, deserialize_with = "null_is_default")]
    service_name: String,
    replicas: u64,
    #[serde(default, deserialize_with = "null_is_default")]
    namespace: String,
}

/// `POST /system/scale-function/{name}`
pub(crate) async fn scale(
    State(it): State<Controller>,
    Name(name): Name,
    params: Params,
    Json(asked): Json<Scaling>,
) -> Result<StatusCode, Refused> {
    let beside = Some(asked.namespace.as_str()).filter(|text| !text.is_empty()).or(params.get("namespace"));
    let id = function_id(&name, beside)?;
    if !asked.service_name.is_empty() && function_id(&asked.service_name, beside)? != id {
        let text = format!("serviceName {:?} contradicts {name:?} in the path", asked.service_name);
        return Err(Refused::bad_request(text));
    }
    it.order(Command::Scale(id, asked.replicas)).await?;
    Ok(StatusCode::ACCEPTED)
}
