//! Calls over QUIC to an instance of the callee, and the meaning of their failures.
//!
//! Calls that provably did not run go to the gateway, which queues, wakes and tries others. All
//! other calls are never repeated. A buffered body goes in the first flight where there is a
//! session; a streamed one waits for the handshake.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, Uri, request};
use http_body::{Frame, SizeHint};
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::quic::{
    CallTerms, CallerConnection, EarlyData, QuicCallError, QuicResponseBody,
};
use tokio::time::timeout;

use nearpath_wire::hop::headers::{keep_one_origin, strip_hop_headers};

use super::call_target::{CallTarget, X_TIMEOUT};
use super::request_context::{OutboundContext, PathHeader};
use super::{OutboundProxy, SendOutcome};
use crate::errors::{self, watchdog_error};
use crate::quic_peers::{CountedCall, PickedPeer, QuicCallee};
use crate::request_body::RequestBody;
use crate::response_body::WatchdogBody;
use crate::shm_server;

/// Outcome of one attempt, with the body if it was not sent.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, for a moment"
)]
pub(super) enum QuicAttempt<B> {
    Answered(Response<QuicResponseBody>),
    NotRun(B),
    Lost(QuicCallError),
}

/// Body that can be sent over QUIC.
pub(super) trait QuicRequestBody: Sized {
    /// Sends the body once.
    fn send_over(
        self,
        connection: &CallerConnection,
        head: &request::Parts,
        terms: CallTerms,
        early: EarlyData,
    ) -> impl Future<Output = QuicAttempt<Self>>;
}

/// Makes a call over QUIC.
pub(super) async fn call_via_quic<B: QuicRequestBody>(
    proxy: &OutboundProxy,
    callee: &QuicCallee,
    context: &OutboundContext,
    target: &CallTarget,
    request: Request<B>,
) -> Result<SendOutcome<B>, PlatformError> {
    // Before connecting: a call that waits for a connection is open, too.
    let mut counted = callee.count_call();
    let PickedPeer { connection, remote } = match with_limit(
        remaining_time(context, target),
        proxy.quic_peers.connect(callee),
    )
    .await
    {
        Some(Some(picked)) => picked,
        Some(None) => {
            // The gateway carries the call and counts it.
            counted.cancel_count();
            return Ok(SendOutcome::NotRun(gateway_request(
                request, context, target,
            )));
        }
        None => return Err(deadline_error(target)),
    };
    let (mut head, body) = request.into_parts();
    // Kept, because a request that did not run goes to the gateway unchanged.
    let original_uri = set_function_path(&mut head, context, target, proxy);
    let remaining = remaining_time(context, target);
    let terms = CallTerms {
        timeout: remaining,
        trace_context: shm_server::trace_ids(&head.headers),
    };
    let early = first_flight_policy(callee.zero_rtt(), &head.method);
    let outcome = with_limit(remaining, body.send_over(&connection, &head, terms, early)).await;
    head.uri = original_uri;
    match outcome {
        None => Err(deadline_error(target)),
        Some(QuicAttempt::NotRun(body)) => {
            // Nothing ran here, so the gateway counts the call.
            counted.cancel_count();
            Ok(SendOutcome::NotRun(gateway_request(
                Request::from_parts(head, body),
                context,
                target,
            )))
        }
        Some(QuicAttempt::Answered(response)) => {
            counted.record_status(response.status().as_u16());
            Ok(SendOutcome::Answered(finish_response(
                response, counted, context, proxy, remote,
            )))
        }
        Some(QuicAttempt::Lost(QuicCallError::InvalidHead(fault))) => Err(watchdog_error(
            Reason::HeadersTooLarge,
            format!("the request's header fields: {fault}"),
        )),
        Some(QuicAttempt::Lost(fault)) => Err(lost_call_error(target, &fault.to_string())),
    }
}

/// Returns the time that the caller still waits, if it set a limit.
fn remaining_time(context: &OutboundContext, target: &CallTarget) -> Option<Duration> {
    target
        .timeout
        .map(|limit| limit.saturating_sub(context.elapsed()))
}

/// Prepares the request for the gateway, whose clock starts anew: the limit becomes the remaining
/// time.
fn gateway_request<B>(
    mut request: Request<B>,
    context: &OutboundContext,
    target: &CallTarget,
) -> Request<B> {
    if let Some(remaining) = remaining_time(context, target) {
        let value = format!("{}ms", remaining.as_millis().max(1));
        request.headers_mut().insert(
            X_TIMEOUT,
            HeaderValue::from_str(&value).expect("a number and two letters"),
        );
    }
    request
}

/// Replaces the path by the function's own. Returns the original URI.
fn set_function_path(
    head: &mut request::Parts,
    context: &OutboundContext,
    target: &CallTarget,
    proxy: &OutboundProxy,
) -> Uri {
    context.prepare_request(&mut head.headers, proxy);
    let path = target.function_path(head.uri.path_and_query().map_or("", PathAndQuery::as_str));
    let path = Uri::try_from(path).expect("the end of a URI's path is a path");
    std::mem::replace(&mut head.uri, path)
}

/// Returns whether the call may go in the first flight. A repeated flight is not run again
/// (`contract/quic.md`), so any may, unless its function asks for less.
fn first_flight_policy(setting: ZeroRttPolicy, method: &Method) -> EarlyData {
    match setting {
        ZeroRttPolicy::Always => EarlyData::Allowed,
        ZeroRttPolicy::Idempotent if method.is_idempotent() => EarlyData::Allowed,
        ZeroRttPolicy::Idempotent | ZeroRttPolicy::Never => EarlyData::Never,
    }
}

async fn with_limit<F: Future>(limit: Option<Duration>, call: F) -> Option<F::Output> {
    match limit {
        Some(limit) => timeout(limit, call).await.ok(),
        None => Some(call.await),
    }
}

impl QuicRequestBody for Bytes {
    async fn send_over(
        self,
        connection: &CallerConnection,
        head: &request::Parts,
        terms: CallTerms,
        early: EarlyData,
    ) -> QuicAttempt<Self> {
        match connection
            .call_buffered_parts(head, self.clone(), early, terms)
            .await
        {
            // Full or stopping: the callee has proved that the call did not run.
            Ok(response) if did_not_run(&response) => QuicAttempt::NotRun(self),
            Ok(response) => QuicAttempt::Answered(response),
            Err(QuicCallError::NotRun(_)) => QuicAttempt::NotRun(self),
            Err(fault) => QuicAttempt::Lost(fault),
        }
    }
}

impl QuicRequestBody for RequestBody {
    async fn send_over(
        self,
        connection: &CallerConnection,
        head: &request::Parts,
        terms: CallTerms,
        _: EarlyData,
    ) -> QuicAttempt<Self> {
        // Only after the handshake: a body that streams cannot be sent again after a lost first
        // flight.
        if connection.wait_handshake().await.is_err() {
            return QuicAttempt::NotRun(self);
        }
        match connection.call_parts(head, self, terms).await {
            Ok(response) => QuicAttempt::Answered(response),
            Err((QuicCallError::NotRun(_), Some(body))) => QuicAttempt::NotRun(body),
            Err((fault, _)) => QuicAttempt::Lost(fault),
        }
    }
}

/// Returns whether the callee's platform refused before its code saw the call.
fn did_not_run(response: &Response<QuicResponseBody>) -> bool {
    response
        .body()
        .opening()
        .refusal_reason()
        .is_some_and(Reason::did_not_run)
}

fn finish_response(
    response: Response<QuicResponseBody>,
    counted: CountedCall,
    context: &OutboundContext,
    proxy: &OutboundProxy,
    remote: Option<Rc<str>>,
) -> Response<WatchdogBody> {
    let platform = response.body().opening().is_platform;
    let mut response = response.map(|body| {
        WatchdogBody::from_stream(DirectResponseBody {
            body,
            _until_its_end: counted,
        })
    });
    let headers = response.headers_mut();
    strip_hop_headers(headers, false);
    if !context.is_head {
        headers.remove(CONTENT_LENGTH); // the declared length may be wrong; the body's is known
    }
    if platform {
        // The gateway marks refusals of functions so, and callers must not notice the difference.
        headers
            .entry(errors::X_OPENFAAS_INTERNAL)
            .or_insert(HeaderValue::from_static("function"));
        keep_one_origin(headers);
    }
    context.finish_response(
        headers,
        proxy,
        &PathHeader {
            path: "quic",
            remote,
        },
    );
    response
}

/// Body of a response. Its call counts as open until it is dropped.
#[derive(Debug)]
struct DirectResponseBody {
    body: QuicResponseBody,
    _until_its_end: CountedCall,
}

impl http_body::Body for DirectResponseBody {
    type Data = Bytes;
    type Error = <QuicResponseBody as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn deadline_error(target: &CallTarget) -> PlatformError {
    let text = format!(
        "the instance of {} had not answered when the deadline passed",
        target.function
    );
    watchdog_error(Reason::TotalTimeout, text).governed_by("X-Timeout")
}

fn lost_call_error(target: &CallTarget, why: &str) -> PlatformError {
    watchdog_error(
        Reason::InstanceDied,
        format!("an instance of {}: {why}", target.function),
    )
}
