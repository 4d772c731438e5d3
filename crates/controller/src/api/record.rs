//! One log line a request: refusals with their reason, changes, and, at debug level, reads.

use std::time::Instant;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use nearpath_types::PlatformError;

pub(crate) async fn record(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let started = Instant::now();
    let response = next.run(request).await;
    let (status, took) = (response.status().as_u16(), started.elapsed());
    match response.extensions().get::<PlatformError>() {
        Some(PlatformError { reason, message, .. }) if status >= 500 => {
            tracing::error!(%method, path, status, ?took, %reason, %message, "api: failed");
        }
        Some(PlatformError { reason, message, .. }) => {
            tracing::warn!(%method, path, status, ?took, %reason, %message, "api: refused");
        }
        None if method == Method::GET || method == Method::HEAD => tracing::debug!(%method, path, status, ?took, "api"),
        None => tracing::info!(%method, path, status, ?took, "api"),
    }
    response
}
