//! A refusal as a response: status, text for people, reason for programs.

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use nearpath_types::{InvalidName, PlatformError, Reason};

use super::site::Foreign;
use crate::model::{InvalidSecretName, Refusal};
use crate::store::StoreError;
use crate::writer::Failure;

/// Who made the error, for OpenFaaS's clients.
const INTERNAL: HeaderName = HeaderName::from_static("x-openfaas-internal");
/// Why, as listed in `contract/reasons.toml`.
const REASON: HeaderName = HeaderName::from_static("x-nearpath-reason");

/// A refused request. The status is the reason's unless [`Refused::with_status`] says otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    status: StatusCode,
    error: PlatformError,
}

impl Refused {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(reason.status()).expect("every reason has a valid status");
        Self { status, error: PlatformError::new("controller", reason, message.into()) }
    }

    /// The caller's request cannot be understood.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// OpenFaaS answers with another status than the reason's.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let reason = self.error.reason;
        let mut response = (self.status, format!("{}\n", self.error)).into_response();
        if reason == Reason::Unauthorized {
            response = (self.status, "invalid credentials").into_response();
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(r#"Basic realm="Restricted""#));
        }
        response.headers_mut().insert(INTERNAL, HeaderValue::from_static("controller"));
        response.headers_mut().insert(REASON, HeaderValue::from_static(reason.name()));
        response.extensions_mut().insert(self.error); // for the log line
        response
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.reason(), refusal.to_string())
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let text = failure.to_string();
        let (reason, setting) = match failure {
            Failure::Refused(refusal) => return refusal.into(),
            Failure::Store(StoreError::Full { .. }) => (Reason::StorageFull, Some("--data-dir")),
            Failure::Store(StoreError::ReadOnly { .. }) => (Reason::ReadOnly, Some("--data-dir")),
            Failure::Store(StoreError::Failed { .. }) => (Reason::Internal, None),
            Failure::Closed => (Reason::Draining, None),
        };
        let mut refused = Self::new(reason, text);
        refused.error.setting = setting;
        refused
    }
}

impl From<InvalidName> for Refused {
    fn from(error: InvalidName) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<InvalidSecretName> for Refused {
    fn from(error: InvalidSecretName) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<Foreign> for Refused {
    fn from(foreign: Foreign) -> Self {
        Self::new(Reason::NotAllowed, foreign.to_string())
    }
}
