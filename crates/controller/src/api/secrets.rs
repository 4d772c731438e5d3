//! Secrets: list, create, update, remove. Values are never returned.

use axum::Json as Answer;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::api_error::ApiError;
use super::extractors::{NamespacedBody, QueryParams, null_is_default, parse_namespace};
use crate::controller::Controller;
use crate::model::{ControllerCommand, SecretId, SecretValue};

/// OpenFaaS's `Secret`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SecretBody {
    name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    namespace: String,
    #[serde(default, deserialize_with = "null_is_default")]
    value: String,
    /// Base64, for values that are not text; used before `value`.
    #[serde(default, deserialize_with = "null_is_default")]
    raw_value: String,
}

impl SecretBody {
    fn secret_id(&self) -> Result<SecretId, ApiError> {
        Ok(SecretId {
            namespace: parse_namespace(Some(&self.namespace))?,
            name: self.name.parse()?,
        })
    }

    /// Value of the secret. The error text never contains it.
    fn secret_value(&self) -> Result<SecretValue, ApiError> {
        // The decoder's own error is dropped: it quotes bytes of the secret.
        let raw = STANDARD.decode(&self.raw_value);
        let raw = raw.map_err(|_| {
            ApiError::bad_request("rawValue is not base64 (RFC 4648, with padding)")
        })?;
        match (raw.is_empty(), self.value.is_empty()) {
            (false, _) => Ok(SecretValue(raw.into())),
            (true, false) => Ok(SecretValue(self.value.as_bytes().into())),
            (true, true) => Err(ApiError::bad_request(
                "the secret is empty: give it a value or a rawValue",
            )),
        }
    }
}

/// Visible part of a secret.
#[derive(Debug, Serialize)]
pub(crate) struct SecretSummary {
    name: String,
    namespace: String,
}

/// `GET /system/secrets?namespace=`
pub(crate) async fn list_secrets(
    State(it): State<Controller>,
    params: QueryParams,
) -> Result<Answer<Vec<SecretSummary>>, ApiError> {
    let namespace = params.listed_namespace(&it)?;
    let model = it.model();
    let ids = model.secrets.keys().filter(|id| id.namespace == namespace);
    Ok(Answer(
        ids.map(|id| SecretSummary {
            name: id.name.to_string(),
            namespace: id.namespace.to_string(),
        })
        .collect(),
    ))
}

/// `POST /system/secrets`. 409 tells OpenFaaS's clients that the secret exists.
pub(crate) async fn create_secret(
    State(it): State<Controller>,
    NamespacedBody(body): NamespacedBody<SecretBody>,
) -> Result<StatusCode, ApiError> {
    it.apply_command(ControllerCommand::CreateSecret(
        body.secret_id()?,
        body.secret_value()?,
    ))
    .await?;
    Ok(StatusCode::CREATED)
}

/// `PUT /system/secrets`: functions that use it restart with the new value.
pub(crate) async fn update_secret(
    State(it): State<Controller>,
    NamespacedBody(body): NamespacedBody<SecretBody>,
) -> Result<StatusCode, ApiError> {
    it.apply_command(ControllerCommand::UpdateSecret(
        body.secret_id()?,
        body.secret_value()?,
    ))
    .await?;
    Ok(StatusCode::OK)
}

/// `DELETE /system/secrets`. Never 204, which OpenFaaS's clients treat as an error.
pub(crate) async fn remove_secret(
    State(it): State<Controller>,
    NamespacedBody(body): NamespacedBody<SecretBody>,
) -> Result<StatusCode, ApiError> {
    it.apply_command(ControllerCommand::RemoveSecret(body.secret_id()?))
        .await?;
    Ok(StatusCode::ACCEPTED)
}
