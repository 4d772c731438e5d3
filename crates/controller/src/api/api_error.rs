//! Errors as responses: status, text for people, reason for programs.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use nearpath_types::{InvalidName, PlatformError, Reason};

use super::request_origin::ForeignRequest;
use crate::model::{CommandRefusal, InvalidSecretName};
use crate::store::StoreError;
use crate::store_writer::ControllerError;

/// Origin of the error, for OpenFaaS's clients.
const INTERNAL_HEADER: HeaderName = HeaderName::from_static("x-openfaas-internal");
/// Reason, as listed in `contract/reasons.toml`.
const REASON_HEADER: HeaderName = HeaderName::from_static("x-nearpath-reason");

/// A refused request. The status is the reason's, unless [`ApiError::with_status`] changes it.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    error: PlatformError,
}

impl ApiError {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let status =
            StatusCode::from_u16(reason.status()).expect("every reason has a valid status");
        Self {
            status,
            error: PlatformError::new("controller", reason, message.into()),
        }
    }

    /// Error for a request that cannot be understood.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// Sets the time after which a retry can succeed.
    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        self.error.retry_after = Some(time);
        self
    }

    /// Replaces the status, where OpenFaaS has another one for this error.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let reason = self.error.reason;
        let mut response = (self.status, format!("{}\n", self.error)).into_response();
        // Text and header are those of OpenFaaS's own provider.
        if reason == Reason::Unauthorized {
            response = (self.status, "invalid credentials").into_response();
            response.headers_mut().insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static(r#"Basic realm="Restricted""#),
            );
        }
        response
            .headers_mut()
            .insert(INTERNAL_HEADER, HeaderValue::from_static("controller"));
        response
            .headers_mut()
            .insert(REASON_HEADER, HeaderValue::from_static(reason.name()));
        if let Some(time) = self.error.retry_after {
            // Rounded up: a retry after the time must succeed.
            let seconds = time.as_secs_f64().ceil() as u64;
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self.error); // for the log line
        response
    }
}

impl From<CommandRefusal> for ApiError {
    fn from(refusal: CommandRefusal) -> Self {
        Self::new(refusal.reason(), refusal.to_string())
    }
}

impl From<ControllerError> for ApiError {
    fn from(failure: ControllerError) -> Self {
        let text = failure.to_string();
        let (reason, setting) = match failure {
            ControllerError::Refused(refusal) => return refusal.into(),
            ControllerError::Store(StoreError::DiskFull { .. }) => {
                (Reason::StorageFull, Some("--data-dir"))
            }
            ControllerError::Store(StoreError::ReadOnly { .. }) => {
                (Reason::ReadOnly, Some("--data-dir"))
            }
            ControllerError::Store(StoreError::Failed { .. }) => (Reason::Internal, None),
            ControllerError::Closed => (Reason::Draining, None),
        };
        let mut api_error = Self::new(reason, text);
        api_error.error.setting = setting;
        api_error
    }
}

impl From<InvalidName> for ApiError {
    fn from(error: InvalidName) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<InvalidSecretName> for ApiError {
    fn from(error: InvalidSecretName) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<ForeignRequest> for ApiError {
    fn from(error: ForeignRequest) -> Self {
        Self::new(Reason::NotAllowed, error.to_string())
    }
}
