//! Secrets: list, create, update, remove. Values go in and never come out.

use axum::Json as Answer;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::input::{Json, Params, namespace, null_is_default};
use super::refused::Refused;
use crate::controller::Controller;
use crate::model::{Command, Secret, SecretId};

/// OpenFaaS's `Secret`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Given {
    name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    namespace: String,
    #[serde(default, deserialize_with = "null_is_default")]
    value: String,
    /// Base64, for values that are not text; counts before `value`.
    #[serde(default, deserialize_with = "null_is_default")]
    raw_value: String,
}

impl Given {
    fn id(&self) -> Result<SecretId, Refused> {
        Ok(SecretId { namespace: namespace(Some(&self.namespace))?, name: self.name.parse()? })
    }

    /// The error text never holds the value.
    fn secret(&self) -> Result<Secret, Refused> {
        let raw = STANDARD.decode(&self.raw_value);
        let raw = raw.map_err(|_| Refused::bad_request("rawValue is not base64 (RFC 4648, with padding)"))?;
        match (raw.is_empty(), self.value.is_empty()) {
            (false, _) => Ok(Secret(raw.into())),
            (true, false) => Ok(Secret(self.value.as_bytes().into())),
            (true, true) => Err(Refused::bad_request("the secret is empty: give it a value or a rawValue")),
        }
    }
}

/// What is shown of a secret.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    name: String,
    namespace: String,
}

/// `GET /system/secrets?namespace=`
pub(crate) async fn list(State(it): State<Controller>, params: Params) -> Result<Answer<Vec<Shown>>, Refused> {
    let namespace = params.listed_namespace(&it)?;
    let model = it.model();
    let here = model.secrets.keys().filter(|id| id.namespace == namespace);
    Ok(Answer(here.map(|id| Shown { name: id.name.to_string(), namespace: id.namespace.to_string() }).collect()))
}

/// `POST /system/secrets`; 409 tells OpenFaaS's clients that it exists.
pub(crate) async fn create(State(it): State<Controller>, Json(given): Json<Given>) -> Result<StatusCode, Refused> {
    it.order(Command::CreateSecret(given.id()?, given.secret()?)).await?;
    Ok(StatusCode::CREATED)
}

/// `PUT /system/secrets`: functions that use it are renewed with the new value.
pub(crate) async fn update(State(it): State<Controller>, Json(given): Json<Given>) -> Result<StatusCode, Refused> {
    it.order(Command::UpdateSecret(given.id()?, given.secret()?)).await?;
    Ok(StatusCode::OK)
}

/// `DELETE /system/secrets`. Never 204, which OpenFaaS's clients take for an error.
pub(crate) async fn remove(State(it): State<Controller>, Json(given): Json<Given>) -> Result<StatusCode, Refused> {
    it.order(Command::RemoveSecret(given.id()?)).await?;
    Ok(StatusCode::ACCEPTED)
}
