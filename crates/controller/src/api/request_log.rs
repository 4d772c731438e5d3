//! Log line of each request: refusals with their reason, changes, and reads at debug level.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use nearpath_types::{PlatformError, Reason};
use tracing::Level;

use super::auth::AnswerToAnybody;
use crate::controller::Controller;

pub(crate) async fn log_request(
    State(controller): State<Controller>,
    request: Request,
    next: Next,
) -> Response {
    // Copied: the handler consumes the request.
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let source = request.extensions().get().copied();
    let started = Instant::now();
    let response = next.run(request).await;
    let (status, took) = (response.status().as_u16(), started.elapsed());
    let error = response.extensions().get::<PlatformError>();
    let is_answer_to_anybody = response.extensions().get::<AnswerToAnybody>().is_some();
    let level = match error.map(|error| error.reason) {
        // A line a minute for each source: otherwise anybody could fill the log.
        Some(reason) if is_answer_to_anybody => {
            controller.inner.logins.log_refusal(source, reason);
            Level::DEBUG
        }
        reason => log_level(&method, status, reason),
    };
    match error {
        Some(PlatformError {
            reason, message, ..
        }) => match level {
            Level::ERROR => {
                tracing::error!(%method, path, status, ?took, %reason, %message, "api: failed")
            }
            Level::WARN => {
                tracing::warn!(%method, path, status, ?took, %reason, %message, "api: refused")
            }
            _ => tracing::debug!(%method, path, status, ?took, %reason, %message, "api: refused"),
        },
        None if level == Level::DEBUG => tracing::debug!(%method, path, status, ?took, "api"),
        None => tracing::info!(%method, path, status, ?took, "api"),
    }
    response
}

/// Level of a request's log line. Clients deploy by an update and create functions that do not
/// exist yet: a refused update of an unknown function is part of an ordinary deploy.
fn log_level(method: &Method, status: u16, reason: Option<Reason>) -> Level {
    match reason {
        Some(_) if status >= 500 => Level::ERROR,
        Some(Reason::NoFunction) if method == Method::PUT => Level::DEBUG,
        Some(_) => Level::WARN,
        None if method == Method::GET || method == Method::HEAD => Level::DEBUG,
        None => Level::INFO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deploy_of_something_new_is_no_warning() {
        assert_eq!(
            log_level(&Method::PUT, 404, Some(Reason::NoFunction)),
            Level::DEBUG
        );
        assert_eq!(log_level(&Method::POST, 202, None), Level::INFO);
        assert_eq!(
            log_level(&Method::DELETE, 404, Some(Reason::NoFunction)),
            Level::WARN
        );
        assert_eq!(
            log_level(&Method::PUT, 400, Some(Reason::BadRequest)),
            Level::WARN
        );
        assert_eq!(
            log_level(&Method::PUT, 507, Some(Reason::StorageFull)),
            Level::ERROR
        );
        assert_eq!(log_level(&Method::GET, 200, None), Level::DEBUG);
    }
}
