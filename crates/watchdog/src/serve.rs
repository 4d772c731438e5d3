//! The way of one request through the watchdog: health, limit, deadline, mode, completion.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use nearpath_types::{PlatformError, Reason, duration};
use nearpath_wire::mutual::Entrance;
use tokio::time::{Instant, timeout_at};

use crate::arrival::Arrival;
use crate::body::Body;
use crate::completion::Completion;
use crate::config::Config;
use crate::drain::Open;
use crate::health_paths::{HEALTH, READY};
use crate::inbound::Upload;
use crate::inflight::Inflight;
use crate::lock::Lock;
use crate::metrics::Metrics;
use crate::mode::{self, Answer, Call, Mode};
use crate::patience::BusyGuard;
use crate::process::output::Output;
use crate::refusal::{self, error};

const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");

/// All that a request needs to be answered.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) mode: Mode,
    pub(crate) inflight: Inflight,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lock: Lock,
    pub(crate) output: Arc<Output>,
    /// Where callers with certificates come in over TCP.
    pub(crate) entrance: Entrance,
    /// False from the first SIGTERM on.
    pub(crate) healthy: AtomicBool,
}

/// Answers one request, from wherever it came.
pub(crate) async fn answer(app: Arc<App>, request: Request<Arrival>, busy: BusyGuard, open: Open) -> Response<Body> {
    match request.uri().path() {
        HEALTH => health(&app),
        READY => ready(&app, request).await,
        _ => call(&app, request, busy, open).await,
    }
}

fn health(app: &App) -> Response<Body> {
    if app.healthy.load(Ordering::Relaxed) && app.lock.held() {
        return Response::new(Body::from("OK"));
    }
    refusal::answer(&error(Reason::Draining, "the instance is stopping, or its lock file was removed"))
}

/// Of the three answers, the limit's comes first: an instance that is full is alive, but not to be called.
async fn ready(app: &App, request: Request<Arrival>) -> Response<Body> {
    if app.inflight.full() {
        return refusal::answer(&overload(app));
    }
    let health = health(app);
    if health.status() != StatusCode::OK {
        return health;
    }
    if !app.mode.started() {
        let starting = error(Reason::ColdTimeout, "the tenant's server does not accept connections yet");
        return refusal::answer(&starting.governed_by("start_timeout"));
    }
    match (&app.mode, &app.config.ready_path) {
        (Mode::Http(_), Some(path)) => ask_tenant(app, request, path.clone()).await,
        _ => health,
    }
}

async fn ask_tenant(app: &App, mut request: Request<Arrival>, path: PathAndQuery) -> Response<Body> {
    *request.uri_mut() = path.into();
    let deadline = Deadline::after(app.config.exec_timeout);
    let answered = within(deadline, &app.mode, request, Instant::now()).await;
    answered.map_or_else(|fault| refusal::answer(&fault), Answer::into_response)
}

async fn call(app: &Arc<App>, request: Request<Arrival>, busy: BusyGuard, open: Open) -> Response<Body> {
    let log = app.config.log_callid.then_some(&app.output);
    let mut completion = Completion::begin(&app.metrics, log, &request, busy, open);
    let grpc = request.version() == Version::HTTP_2 && mode::is_grpc(request.headers());
    completion.permit = app.inflight.enter();
    if completion.permit.is_none() {
        return refuse(completion, &overload(app), grpc);
    }
    let deadline = Deadline::after(time_limit(app.config.exec_timeout, request.headers()));
    match within(deadline, &app.mode, request, completion.began).await {
        Ok(Answer::Plain(response)) => {
            let cut = deadline.at().filter(|_| !is_endless(response.headers()));
            attach(completion, response, cut)
        }
        Ok(Answer::Upgraded(response, tunnel)) => {
            completion.code = response.status().as_u16();
            tokio::spawn(tunnel.run(completion));
            response
        }
        Err(fault) => refuse(completion, &fault, grpc),
    }
}

fn overload(app: &App) -> PlatformError {
    let text = format!("{} calls are in progress, which is the limit", app.inflight.limit());
    error(Reason::Overload, text).governed_by("max_inflight")
}

/// A caller may ask for less time than the function has, never for more. What is not a duration is ignored, as
/// of-watchdog does.
fn time_limit(most: Option<Duration>, headers: &HeaderMap) -> Option<Duration> {
    let asked = headers.get(X_TIMEOUT).and_then(|value| duration::parse(value.to_str().ok()?).ok());
    match (most, asked.filter(|asked| !asked.is_zero())) {
        (Some(most), Some(asked)) => Some(most.min(asked)),
        (most, asked) => most.or(asked),
    }
}

/// Whether an answer lasts as long as both sides like: its head met the deadline, its end need not. Events, lines of JSON, and
/// gRPC, where the caller's own deadline ends the call by a reset.
pub(crate) fn is_endless(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    let begins = |with: &str| kind.get(..with.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(with.as_bytes()));
    ["text/event-stream", "application/x-ndjson", "application/grpc"].into_iter().any(begins)
}

/// When a call must be over, and how long it had.
#[derive(Debug, Clone, Copy)]
struct Deadline(Option<(Instant, Duration)>);

impl Deadline {
    fn after(limit: Option<Duration>) -> Self {
        Self(limit.map(|limit| (Instant::now() + limit, limit)))
    }

    fn at(self) -> Option<Instant> {
        self.0.map(|(at, _)| at)
    }
}

/// Dropping the mode's work at the deadline kills the call's process or closes its connection.
async fn within(
    deadline: Deadline,
    mode: &Mode,
    request: Request<Arrival>,
    began: Instant,
) -> Result<Answer, PlatformError> {
    let upload = Upload::default();
    let work = mode.answer(Call { request, began, upload: upload.clone() });
    let Some((at, limit)) = deadline.0 else { return work.await };
    timeout_at(at, work).await.unwrap_or_else(|_| Err(late(limit, upload.is_awaited())))
}

/// Whose fault it is that a call's time is over: the caller's, while the call waits for the rest of its body.
fn late(limit: Duration, awaited: bool) -> PlatformError {
    let limit = duration::format(limit);
    let fault = match awaited {
        true => error(Reason::SlowRequest, format!("the request's body did not arrive whole within {limit}")),
        false => error(Reason::ExecTimeout, format!("the function did not answer within {limit}")),
    };
    fault.governed_by("exec_timeout")
}

/// Completes the call when the answer's body is gone.
fn attach(mut completion: Completion, response: Response<Body>, deadline: Option<Instant>) -> Response<Body> {
    completion.code = response.status().as_u16();
    response.map(|body| body.until(deadline, completion))
}

/// The answer for a call that was refused: counted by its status in HTTP, in whatever words the caller reads it.
fn refuse(completion: Completion, error: &PlatformError, grpc: bool) -> Response<Body> {
    let response = attach(completion, refusal::answer(error), None);
    if grpc { refusal::in_grpc(response, error) } else { response }
}

/// The answer of the metrics port.
pub(crate) fn show_metrics(app: &App, request: &Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if request.uri().path() != "/metrics" {
        return Ok(refusal::answer(&error(Reason::NotFound, "only /metrics is here")));
    }
    let mut response = Response::new(Body::from(app.metrics.text()));
    let openmetrics = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, openmetrics);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_known_by_their_content_type() {
        let endless =
            |kind: &'static str| is_endless(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]));
        for kind in ["text/event-stream", "Text/Event-Stream; charset=utf-8", "application/x-ndjson"] {
            assert!(endless(kind), "{kind}");
        }
        assert!(endless("application/grpc") && endless("application/grpc+proto"));
        assert!(!endless("text/plain") && !endless("application/json") && !endless("") && !endless("text/event"));
        assert!(!is_endless(&HeaderMap::new()));
    }

    #[test]
    fn x_timeout_only_shortens() {
        let limit = |most: Option<u64>, asked: &'static str| {
            let headers = HeaderMap::from_iter([(X_TIMEOUT, HeaderValue::from_static(asked))]);
            time_limit(most.map(Duration::from_secs), &headers).map(|limit| limit.as_secs())
        };
        assert_eq!(limit(Some(30), "10s"), Some(10));
        assert_eq!(limit(Some(30), "10"), Some(10));
        assert_eq!(limit(Some(30), "1m"), Some(30));
        assert_eq!(limit(None, "5s"), Some(5));
        assert_eq!((limit(Some(30), "soon"), limit(Some(30), "0s"), limit(None, "")), (Some(30), Some(30), None));
    }
}
