//! One try to have a request answered by one instance.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use http::Response;
use nearpath_path::Path;
use nearpath_types::{PlatformError, Reason, duration, policy};
use nearpath_wire::client::ConnectError;

use super::pool::{Cover, Line};
use super::source::Source;
use super::way::{self, Way};
use super::{exchange, outgoing, quic, spare};
use crate::COMPONENT;
use crate::call::{Call, Clock, Flow, Stage};
use crate::route::Endpoint;

/// What came of it.
pub(crate) enum Attempt {
    /// The head of an answer, on this connection; none through memory.
    Answered(Response<Source>, Option<Line>),
    /// Not a byte was sent, and why; the request is back in the call.
    Unsent(String),
    /// The instance says that it did not run the request, being full or about to stop; the request is back in the call.
    Refused(String),
}

/// Sends the call's request to `endpoint` over a pooled or a new connection and waits for the head of its answer.
///
/// # Errors
/// Everything after which the request may have run: it is not sent again.
pub(crate) async fn attempt(call: &mut Call, endpoint: &Arc<Endpoint>) -> Result<Attempt, PlatformError> {
    let path = match way::way(call, endpoint) {
        Way::Carried(path) => path,
        Way::Memory(post) => {
            // On the heap, because not every request comes here and this future is copied into its place.
            let answered = Box::pin(exchange::attempt(call, endpoint, post)).await?;
            if !matches!(answered, Attempt::Unsent(_)) {
                return Ok(answered);
            }
            way::past_memory(call, endpoint)
        }
    };
    match path {
        Path::Quic => Box::pin(over_quic(call, endpoint)).await,
        path => over_tcp(call, endpoint, path).await,
    }
}

/// What does not get through over UDP goes over TCP.
async fn over_quic(call: &mut Call, endpoint: &Arc<Endpoint>) -> Result<Attempt, PlatformError> {
    if let Some(attempt) = quic::attempt(call, endpoint).await? {
        return Ok(attempt);
    }
    let path = way::past_udp(call, endpoint);
    over_tcp(call, endpoint, path).await
}

/// What `path` names decides how a line is opened, and among which idle ones it is looked for.
async fn over_tcp(call: &mut Call, endpoint: &Arc<Endpoint>, path: Path) -> Result<Attempt, PlatformError> {
    let (cover, h2) = (way::cover(path, endpoint.transport), call.asked.grpc);
    let mut pooled = call.lane.pools.take(endpoint, cover, h2);
    loop {
        let fresh = pooled.is_none();
        let mut line = match pooled.take() {
            Some(line) => line,
            // Rare, so on the heap: every request's future would be as large otherwise, and it is copied into its place.
            None => match Box::pin(open(call, endpoint, cover)).await {
                Ok(line) => line,
                Err(error) => return Ok(Attempt::Unsent(error.to_string())),
            },
        };
        let careful = endpoint.is_wary() || line.is_on_trial();
        let spare = if fresh || careful { Box::pin(spare::copy(call, endpoint, careful)).await? } else { None };
        let request = call.request.take().expect("an unsent request is put back");
        match within(&call.clock, call.admitted, call.flow.as_ref(), line.send(request)).await {
            Ok(Ok(response)) => return Ok(spare::answered(call, endpoint, response, line, spare).await),
            Ok(Err(mut error)) => {
                call.request = error.take_message();
                let error = error.into_error();
                match call.request {
                    None => return spare::unanswered(call, endpoint, &line, spare, &error),
                    Some(_) if fresh => return Ok(Attempt::Unsent(error.to_string())),
                    Some(_) => {} // the pooled connection had been closed: a new one
                }
            }
            Err(reason) => return Err(too_late(call, endpoint, reason)),
        }
    }
}

async fn open(call: &Call, endpoint: &Arc<Endpoint>, cover: Cover) -> Result<Line, ConnectError> {
    let caller = if cover == Cover::Plain { None } else { call.lane.lines.caller() };
    call.lane.pools.open(endpoint, cover, call.asked.grpc, call.lane.connect_timeout, caller).await
}

/// Awaits `answer` for as long as the clock allows. One timer, which moves only when it fires early or the stage changes.
pub(super) async fn within<F: Future>(
    clock: &Clock,
    sent: Instant,
    flow: Option<&Rc<Flow>>,
    answer: F,
) -> Result<F::Output, Reason> {
    let stage = || flow.map_or(Stage::Awaiting(sent), |flow| flow.stage(sent));
    let mut answer = pin!(answer);
    let mut timer = pin!(tokio::time::sleep_until(clock.next(stage()).0.into()));
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(Ok(answer));
        }
        if let Some(flow) = flow.filter(|flow| !flow.has_ended()) {
            flow.watch(cx.waker());
        }
        let next = clock.next(stage()).0.into();
        if next < timer.deadline() {
            timer.as_mut().reset(next);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if let Some(reason) = clock.expired(stage(), Instant::now()) {
                return Poll::Ready(Err(reason));
            }
            timer.as_mut().reset(clock.next(stage()).0.into());
        }
        Poll::Pending
    })
    .await
}

pub(super) fn broken(call: &Call, endpoint: &Endpoint, error: Option<&hyper::Error>) -> PlatformError {
    match call.flow.as_ref().and_then(|flow| flow.fault()) {
        Some(Reason::BodyTooLarge) => outgoing::too_large(call.route.policy.max_body.unwrap_or(u64::MAX)),
        Some(Reason::BadRequest) => PlatformError::new(
            COMPONENT,
            Reason::BadRequest,
            "the request's chunked body is not framed as RFC 9112 says",
        ),
        Some(reason) => PlatformError::new(COMPONENT, reason, "the caller went away before its body was complete"),
        None => {
            let invalid = error.is_some_and(hyper::Error::is_parse);
            let what = if invalid { "answered with invalid HTTP" } else { "broke off before it had answered" };
            let why = error.map(|error| format!(": {error}")).unwrap_or_default();
            let message = format!("instance {} of {} {what}{why}", endpoint.id, call.function.name);
            PlatformError::new(COMPONENT, Reason::InstanceDied, message)
        }
    }
}

pub(super) fn too_late(call: &Call, endpoint: &Endpoint, reason: Reason) -> PlatformError {
    let (name, limits, id) = (&call.function.name, &call.route.policy, endpoint.id);
    let (message, setting) = match reason {
        Reason::SlowRequest => ("the request's body stopped arriving".to_owned(), "body idle timeout"),
        Reason::FirstByteTimeout => {
            let limit = duration::format(limits.first_byte_timeout);
            (format!("instance {id} of {name} did not begin to answer within {limit}"), policy::FIRST_BYTE_TIMEOUT)
        }
        _ => (format!("instance {id} of {name} had not answered when the deadline passed"), call.clock.total_setting()),
    };
    PlatformError::new(COMPONENT, reason, message).governed_by(setting)
}
