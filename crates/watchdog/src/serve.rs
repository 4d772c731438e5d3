//! Handling of a request: health, limit, deadline, mode, completion.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use nearpath_types::exposition::MetricsFormat;
use nearpath_types::{PlatformError, Reason, duration};
use nearpath_wire::lingering_close::WatchedBody;
use nearpath_wire::mtls::MtlsAcceptor;
use tokio::time::{Instant, timeout_at};

use crate::call_limit::CallLimiter;
use crate::completion::CallCompletion;
use crate::config::WatchdogConfig;
use crate::drain::DrainToken;
use crate::errors::{self, watchdog_error};
use crate::health_paths::{HEALTH_PATH, READY_PATH};
use crate::incoming_body::IncomingBody;
use crate::lock_file::LockFile;
use crate::metrics::WatchdogMetrics;
use crate::mode::{ModeCall, ModeHandler, ModeResponse};
use crate::process::output::TenantOutput;
use crate::request_body::UploadState;
use crate::response_body::WatchdogBody;
use crate::stream_timeouts::BusyGuard;
use nearpath_wire::hop::grpc::has_grpc_content;

const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");

/// State that every request needs.
#[derive(Debug)]
pub(crate) struct WatchdogState {
    pub(crate) config: WatchdogConfig,
    pub(crate) mode: ModeHandler,
    pub(crate) call_limiter: CallLimiter,
    pub(crate) metrics: Arc<WatchdogMetrics>,
    pub(crate) lock_file: LockFile,
    pub(crate) output: Arc<TenantOutput>,
    /// Accepts callers with certificates over TCP.
    pub(crate) tls_acceptor: MtlsAcceptor,
    /// False from the first SIGTERM on.
    pub(crate) is_healthy: AtomicBool,
}

/// Handles one request, from any transport.
pub(crate) async fn handle_request(
    app: Arc<WatchdogState>,
    request: Request<IncomingBody>,
    busy: BusyGuard,
    token: DrainToken,
) -> Response<WatchdogBody> {
    // Before limit and metrics: health checks are no calls.
    match request.uri().path() {
        HEALTH_PATH => health_response(&app),
        READY_PATH => ready_response(&app, request).await,
        _ => run_call(&app, request, busy, token).await,
    }
}

fn health_response(app: &WatchdogState) -> Response<WatchdogBody> {
    // Relaxed: the flag guards no other data, and a late answer is no harm.
    if app.is_healthy.load(Ordering::Relaxed) && app.lock_file.is_present() {
        return Response::new(WatchdogBody::from("OK"));
    }
    errors::error_response(&watchdog_error(
        Reason::Draining,
        "the instance is stopping, or its lock file was removed",
    ))
}

/// Responds to a readiness check. The limit comes first: a full instance is alive, but must not be
/// called.
async fn ready_response(
    app: &WatchdogState,
    request: Request<IncomingBody>,
) -> Response<WatchdogBody> {
    if app.call_limiter.is_full() {
        return errors::error_response(&overload_error(app));
    }
    let health = health_response(app);
    if health.status() != StatusCode::OK {
        return health;
    }
    if !app.mode.is_ready() {
        let starting = watchdog_error(
            Reason::ColdTimeout,
            "the tenant's server does not accept connections yet",
        );
        return errors::error_response(&starting.governed_by("start_timeout"));
    }
    match (&app.mode, &app.config.ready_path) {
        (ModeHandler::Http(_), Some(path)) => request_ready_path(app, request, path.clone()).await,
        _ => health,
    }
}

async fn request_ready_path(
    app: &WatchdogState,
    mut request: Request<IncomingBody>,
    path: PathAndQuery,
) -> Response<WatchdogBody> {
    *request.uri_mut() = path.into();
    let deadline = CallDeadline::after(app.config.exec_timeout);
    let answered = run_until_deadline(deadline, &app.mode, request, Instant::now()).await;
    answered.map_or_else(
        |fault| errors::error_response(&fault),
        ModeResponse::into_response,
    )
}

async fn run_call(
    app: &Arc<WatchdogState>,
    request: Request<IncomingBody>,
    busy: BusyGuard,
    token: DrainToken,
) -> Response<WatchdogBody> {
    let log = app.config.log_callid.then_some(&app.output);
    let mut completion = CallCompletion::begin_call(&app.metrics, log, &request, busy, token);
    let grpc = request.version() == Version::HTTP_2 && has_grpc_content(request.headers());
    // Kept in the record, so that it is returned when the response's body ends.
    completion.permit = app.call_limiter.try_acquire();
    if completion.permit.is_none() {
        return refuse_call(completion, &overload_error(app), grpc);
    }
    let deadline = CallDeadline::after(time_limit(app.config.exec_timeout, request.headers()));
    match run_until_deadline(deadline, &app.mode, request, completion.started_at).await {
        Ok(ModeResponse::Plain(response)) => {
            // A stream that lasts as long as both sides like had its deadline for the head.
            let cut = deadline
                .instant()
                .filter(|_| !is_endless(response.headers()));
            complete_with_body(completion, response, cut)
        }
        Ok(ModeResponse::Upgraded(response, tunnel)) => {
            completion.code = response.status().as_u16();
            // In a task that keeps the completion, hence the permit, as long as bytes pass.
            tokio::spawn(tunnel.run(completion));
            response
        }
        Err(fault) => refuse_call(completion, &fault, grpc),
    }
}

fn overload_error(app: &WatchdogState) -> PlatformError {
    let text = format!(
        "{} calls are in progress, which is the limit",
        app.call_limiter.limit()
    );
    watchdog_error(Reason::Overload, text).governed_by("max_inflight")
}

/// Returns the call's time limit. A caller may shorten the function's, never extend it. An invalid
/// value is ignored, as in of-watchdog.
fn time_limit(max_time: Option<Duration>, headers: &HeaderMap) -> Option<Duration> {
    let requested = headers
        .get(X_TIMEOUT)
        .and_then(|value| duration::parse_duration(value.to_str().ok()?).ok());
    match (max_time, requested.filter(|requested| !requested.is_zero())) {
        (Some(max), Some(requested)) => Some(max.min(requested)),
        (max, requested) => max.or(requested),
    }
}

/// Returns whether a response may last as long as both sides like: events, JSON lines and gRPC. Its
/// head met the deadline; a gRPC caller ends the call by a reset at its own.
pub(crate) fn is_endless(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .map_or(&[][..], HeaderValue::as_bytes);
    let begins = |with: &str| {
        kind.get(..with.len())
            .is_some_and(|kind| kind.eq_ignore_ascii_case(with.as_bytes()))
    };
    [
        "text/event-stream",
        "application/x-ndjson",
        "application/grpc",
    ]
    .into_iter()
    .any(begins)
}

/// Hint for callers of a function that may be a server; the administrator reads the port.
const SERVER_HINT: &str =
    "; one of its processes listens on a port: if that is its server, set mode: http";

/// Deadline of a call, and the limit that it came from.
#[derive(Debug, Clone, Copy)]
struct CallDeadline(Option<(Instant, Duration)>);

impl CallDeadline {
    fn after(limit: Option<Duration>) -> Self {
        Self(limit.map(|limit| (Instant::now() + limit, limit)))
    }

    fn instant(self) -> Option<Instant> {
        self.0.map(|(at, _)| at)
    }
}

/// Runs the mode until the deadline. Dropping its future kills the call's process or closes its
/// connection.
async fn run_until_deadline(
    deadline: CallDeadline,
    mode: &ModeHandler,
    request: Request<IncomingBody>,
    started_at: Instant,
) -> Result<ModeResponse, PlatformError> {
    let upload = UploadState::default();
    let work = mode.handle_call(ModeCall {
        request,
        started_at,
        upload: upload.clone(),
    });
    let Some((at, limit)) = deadline.0 else {
        return work.await;
    };
    // Read after the timeout: the state of the upload then says whose fault it is.
    timeout_at(at, work).await.unwrap_or_else(|_| {
        let hint = mode.may_be_server().then_some(SERVER_HINT);
        Err(deadline_error(limit, upload.is_awaited(), hint))
    })
}

/// Returns the error of an expired call: the caller's fault while its body is awaited, else the
/// function's, with a hint at the reason.
fn deadline_error(limit: Duration, awaited: bool, hint: Option<&str>) -> PlatformError {
    let limit = duration::format_duration(limit);
    let fault = match awaited {
        true => watchdog_error(
            Reason::SlowRequest,
            format!("the request's body did not arrive whole within {limit}"),
        ),
        false => watchdog_error(
            Reason::ExecTimeout,
            format!(
                "the function did not answer within {limit}{}",
                hint.unwrap_or_default()
            ),
        ),
    };
    fault.governed_by("exec_timeout")
}

/// Completes the call when the response's body is dropped.
fn complete_with_body(
    mut completion: CallCompletion,
    response: Response<WatchdogBody>,
    deadline: Option<Instant>,
) -> Response<WatchdogBody> {
    completion.code = response.status().as_u16();
    response.map(|body| body.with_completion(deadline, completion))
}

/// Responds to a refused call. Metrics count the HTTP status, also where gRPC gets another.
fn refuse_call(
    completion: CallCompletion,
    error: &PlatformError,
    grpc: bool,
) -> Response<WatchdogBody> {
    // First, because the gRPC form has status 200.
    let response = complete_with_body(completion, errors::error_response(error), None);
    if grpc {
        errors::grpc_error_response(response, error)
    } else {
        response
    }
}

/// Responds on the metrics port.
pub(crate) fn metrics_response(
    app: &WatchdogState,
    request: &Request<WatchedBody>,
) -> Result<Response<WatchdogBody>, Infallible> {
    if request.uri().path() != "/metrics" {
        return Ok(errors::error_response(&watchdog_error(
            Reason::NotFound,
            "the only path on this port is /metrics",
        )));
    }
    let accept = request.headers().get(ACCEPT);
    let format = MetricsFormat::negotiate(accept.map(HeaderValue::as_bytes));
    let text = format.convert(app.metrics.encode_text());
    let mut response = Response::new(WatchdogBody::from(text));
    let content_type = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_known_by_their_content_type() {
        let endless = |kind: &'static str| {
            is_endless(&HeaderMap::from_iter([(
                CONTENT_TYPE,
                HeaderValue::from_static(kind),
            )]))
        };
        for kind in [
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "application/x-ndjson",
        ] {
            assert!(endless(kind), "{kind}");
        }
        assert!(endless("application/grpc") && endless("application/grpc+proto"));
        assert!(
            !endless("text/plain")
                && !endless("application/json")
                && !endless("")
                && !endless("text/event")
        );
        assert!(!is_endless(&HeaderMap::new()));
    }

    #[test]
    fn x_timeout_only_shortens() {
        let limit = |max: Option<u64>, requested: &'static str| {
            let headers = HeaderMap::from_iter([(X_TIMEOUT, HeaderValue::from_static(requested))]);
            time_limit(max.map(Duration::from_secs), &headers).map(|limit| limit.as_secs())
        };
        assert_eq!(limit(Some(30), "10s"), Some(10));
        assert_eq!(limit(Some(30), "10"), Some(10));
        assert_eq!(limit(Some(30), "1m"), Some(30));
        assert_eq!(limit(None, "5s"), Some(5));
        assert_eq!(
            (
                limit(Some(30), "soon"),
                limit(Some(30), "0s"),
                limit(None, "")
            ),
            (Some(30), Some(30), None)
        );
    }
}
