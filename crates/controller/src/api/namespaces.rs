//! Namespaces: list, describe, create, update, remove.

use std::collections::BTreeMap;

use axum::Json as Answer;
use axum::extract::State;
use http::StatusCode;
use nearpath_types::Namespace;
use serde::{Deserialize, Serialize};

use super::input::{Json, Name, OptionalJson, null_is_default};
use super::refused::Refused;
use crate::controller::Controller;
use crate::model::{Command, NamespaceEntry, Refusal};

/// OpenFaaS's `FunctionNamespace`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Body {
    #[serde(default, deserialize_with = "null_is_default")]
    name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_is_default")]
    labels: BTreeMap<String, String>,
}

impl Body {
    /// Name and content; a name in the path has to agree with one in the body.
    fn split(self, in_path: Option<&str>) -> Result<(Namespace, NamespaceEntry), Refused> {
        let entry = NamespaceEntry { labels: self.labels, annotations: self.annotations };
        match in_path {
            None => Ok((self.name.parse()?, entry)),
            Some(name) if self.name.is_empty() || self.name == name => Ok((name.parse()?, entry)),
            Some(name) => Err(Refused::bad_request(format!("name {:?} contradicts {name:?} in the path", self.name))),
        }
    }
}

/// `GET /system/namespaces`
pub(crate) async fn list(State(it): State<Controller>) -> Answer<Vec<String>> {
    Answer(it.model().namespace_names().into_iter().map(String::from).collect())
}

/// `GET /system/namespace/{name}`
pub(crate) async fn describe(State(it): State<Controller>, Name(name): Name) -> Result<Answer<Body>, Refused> {
    let name: Namespace = name.parse()?;
    let entry = it.model().namespace(&name).ok_or_else(|| Refusal::NoNamespace(name.clone()))?;
    Ok(Answer(Body { name: name.to_string(), annotations: entry.annotations, labels: entry.labels }))
}

/// `POST /system/namespace/`: how OpenFaaS's client creates one, with the name in the body.
pub(crate) async fn create_unnamed(
    State(it): State<Controller>,
    Json(body): Json<Body>,
) -> Result<StatusCode, Refused> {
    create_one(it, body.split(None)?).await
}

/// `POST /system/namespace/{name}`
pub(crate) async fn create(
    State(it): State<Controller>,
    Name(name): Name,
    OptionalJson(body): OptionalJson<Body>,
) -> Result<StatusCode, Refused> {
    create_one(it, body.split(Some(&name))?).await
}

async fn create_one(it: Controller, (name, entry): (Namespace, NamespaceEntry)) -> Result<StatusCode, Refused> {
    it.order(Command::CreateNamespace(name, entry)).await?;
    Ok(StatusCode::CREATED)
}

/// `PUT /system/namespace/{name}`
pub(crate) async fn update(
    State(it): State<Controller>,
    Name(name): Name,
    Json(body): Json<Body>,
) -> Result<StatusCode, Refused> {
    let (name, entry) = body.split(Some(&name))?;
    it.order(Command::UpdateNamespace(name, entry)).await?;
    Ok(StatusCode::OK)
}

/// `DELETE /system/namespace/{name}`
pub(crate) async fn remove(State(it): State<Controller>, Name(name): Name) -> Result<StatusCode, Refused> {
    it.order(Command::RemoveNamespace(name.parse()?)).await?;
    Ok(StatusCode::ACCEPTED)
}
