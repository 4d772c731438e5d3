//! Namespaces: list, describe, create, update, remove.

use std::collections::BTreeMap;

use axum::Json as Answer;
use axum::extract::State;
use http::StatusCode;
use nearpath_types::Namespace;
use serde::{Deserialize, Serialize};

use super::api_error::ApiError;
use super::extractors::{JsonBody, OptionalJsonBody, PathName, null_is_default};
use crate::controller::Controller;
use crate::model::{CommandRefusal, ControllerCommand, NamespaceEntry};

/// OpenFaaS's `FunctionNamespace`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NamespaceBody {
    #[serde(default, deserialize_with = "null_is_default")]
    name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_is_default")]
    labels: BTreeMap<String, String>,
}

impl NamespaceBody {
    /// Name and content; a name in the path must agree with one in the body.
    fn into_entry(self, path_name: Option<&str>) -> Result<(Namespace, NamespaceEntry), ApiError> {
        let entry = NamespaceEntry {
            labels: self.labels,
            annotations: self.annotations,
        };
        match path_name {
            None => Ok((self.name.parse()?, entry)),
            Some(name) if self.name.is_empty() || self.name == name => Ok((name.parse()?, entry)),
            Some(name) => Err(ApiError::bad_request(format!(
                "name {:?} contradicts {name:?} in the path",
                self.name
            ))),
        }
    }
}

/// `GET /system/namespaces`
pub(crate) async fn list_namespaces(State(it): State<Controller>) -> Answer<Vec<String>> {
    Answer(
        it.model()
            .namespace_names()
            .into_iter()
            .map(String::from)
            .collect(),
    )
}

/// `GET /system/namespace/{name}`
pub(crate) async fn describe_namespace(
    State(it): State<Controller>,
    PathName(name): PathName,
) -> Result<Answer<NamespaceBody>, ApiError> {
    let name: Namespace = name.parse()?;
    let entry = it
        .model()
        .namespace_entry(&name)
        .ok_or_else(|| CommandRefusal::NoNamespace(name.clone()))?;
    Ok(Answer(NamespaceBody {
        name: name.to_string(),
        annotations: entry.annotations,
        labels: entry.labels,
    }))
}

/// `POST /system/namespace/`: OpenFaaS's client creates a namespace this way, with the name in the
/// body.
pub(crate) async fn create_namespace_from_body(
    State(it): State<Controller>,
    JsonBody(body): JsonBody<NamespaceBody>,
) -> Result<StatusCode, ApiError> {
    apply_create(it, body.into_entry(None)?).await
}

/// `POST /system/namespace/{name}`
pub(crate) async fn create_namespace(
    State(it): State<Controller>,
    PathName(name): PathName,
    OptionalJsonBody(body): OptionalJsonBody<NamespaceBody>,
) -> Result<StatusCode, ApiError> {
    apply_create(it, body.into_entry(Some(&name))?).await
}

async fn apply_create(
    it: Controller,
    (name, entry): (Namespace, NamespaceEntry),
) -> Result<StatusCode, ApiError> {
    it.apply_command(ControllerCommand::CreateNamespace(name, entry))
        .await?;
    Ok(StatusCode::CREATED)
}

/// `PUT /system/namespace/{name}`
pub(crate) async fn update_namespace(
    State(it): State<Controller>,
    PathName(name): PathName,
    JsonBody(body): JsonBody<NamespaceBody>,
) -> Result<StatusCode, ApiError> {
    let (name, entry) = body.into_entry(Some(&name))?;
    it.apply_command(ControllerCommand::UpdateNamespace(name, entry))
        .await?;
    Ok(StatusCode::OK)
}

/// `DELETE /system/namespace/{name}`
pub(crate) async fn remove_namespace(
    State(it): State<Controller>,
    PathName(name): PathName,
) -> Result<StatusCode, ApiError> {
    it.apply_command(ControllerCommand::RemoveNamespace(name.parse()?))
        .await?;
    Ok(StatusCode::ACCEPTED)
}
