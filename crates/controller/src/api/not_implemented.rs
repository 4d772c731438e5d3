//! Paths of OpenFaaS's API without an implementation. They return 501 with a reason, so that they
//! do not look mistyped.

use nearpath_types::Reason;

use super::api_error::ApiError;

/// `POST /async-function/…`, for calls through a queue.
pub(crate) async fn async_call() -> ApiError {
    not_implemented("asynchronous calls are not implemented: call /function/… instead")
}

/// `POST /system/alert`, for an autoscaler.
pub(crate) async fn scale_alert() -> ApiError {
    not_implemented("scaling by alert is not implemented: POST /system/scale-function/NAME instead")
}

/// `GET /system/telemetry`.
pub(crate) async fn system_telemetry() -> ApiError {
    not_implemented("telemetry is not implemented: metrics are on the operator's port, /metrics")
}

fn not_implemented(text: &str) -> ApiError {
    ApiError::new(Reason::NotImplemented, text)
}
