//! Paths of OpenFaaS's API that are known and not served yet. They say so, instead of pretending or looking mistyped.

use nearpath_types::Reason;

use super::api_error::ApiError;

/// `POST /async-function/…`: will enter the queue here.
pub(crate) async fn async_call() -> ApiError {
    not_implemented("asynchronous calls come with the queue; call /function/… instead")
}

/// `POST /system/alert`: will feed the scaler here.
pub(crate) async fn scale_alert() -> ApiError {
    not_implemented(
        "scaling by alert comes with the autoscaler; POST /system/scale-function/NAME instead",
    )
}

/// `GET /system/telemetry`.
pub(crate) async fn system_telemetry() -> ApiError {
    not_implemented("there is no telemetry; metrics are on the operator's port, /metrics")
}

fn not_implemented(text: &str) -> ApiError {
    ApiError::new(Reason::NotImplemented, text)
}
