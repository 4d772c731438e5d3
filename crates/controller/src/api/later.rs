//! Paths of OpenFaaS's API that are known and not served yet. They say so, instead of pretending or looking mistyped.

use nearpath_types::Reason;

use super::refused::Refused;

/// `POST /async-function/…`: will enter the queue here.
pub(crate) async fn asynchronous() -> Refused {
    later("asynchronous calls come with the queue; call /function/… instead")
}

/// `POST /system/alert`: will feed the scaler here.
pub(crate) async fn alert() -> Refused {
    later("scaling by alert comes with the autoscaler; POST /system/scale-function/NAME instead")
}

/// `GET /system/telemetry`.
pub(crate) async fn telemetry() -> Refused {
    later("there is no telemetry; metrics are on the operator's port, /metrics")
}

fn later(text: &str) -> Refused {
    Refused::new(Reason::NotImplemented, text)
}
