//! One request and its answer through memory. What came of the request's body goes with its head; the rest follows as it
//! comes, in a task of its own, because a function may answer while it reads. The answer's body comes the same way.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use nearpath_domain::endpoint::polled::{self, AsyncEndpoint, BodyWriter};
use nearpath_domain::trace::{TRACEPARENT, TraceContext};
use nearpath_domain::{CallDestination, CallError, CallReply, UnsentReason, clock};
use nearpath_types::{PlatformError, Reason};

use super::attempt_outcome::Attempt;
use super::buffered_request::Taken;
use super::delivery_errors::{broken, lost_reply, too_late};
use super::instance_body::Source;
use super::shm_body::Parts;
use super::time_limits::within;
use crate::call::Call;
use crate::error_response::{X_NEARPATH_REASON, X_OPENFAAS_INTERNAL};
use crate::function::Endpoint;
use crate::request::Upload;

/// Sends the call's request and waits for the head of its answer.
///
/// # Errors
/// As [`super::attempt::attempt`]; [`Attempt::Unsent`] leaves the request whole for another path.
pub(super) async fn attempt(
    call: &mut Call,
    endpoint: &Arc<Endpoint>,
    post: AsyncEndpoint,
) -> Result<Attempt, PlatformError> {
    let Taken { head, first, rest: body, .. } = Taken::out_of(call, endpoint).await?;
    let (answer, whole) = match send(call, endpoint, &post, &head, &body, first.clone()) {
        Ok((answer, None)) => (answer, Some(body)),
        Ok((answer, Some(writer))) => {
            call.lane.spawn(write(writer, body));
            (answer, None)
        }
        Err(unsent) => {
            call.request = Some(Request::from_parts(head, body.with_first(first)));
            return Ok(Attempt::Unsent(unsent.to_string()));
        }
    };
    match within(&call.clock, call.admitted, call.flow.as_ref(), answer).await {
        Ok(Ok(reply)) => Ok(match whole.filter(|_| reply.did_not_run()) {
            None => Attempt::Answered(response(reply), None),
            Some(body) => {
                call.request = Some(Request::from_parts(head, body.with_first(first)));
                Attempt::Refused(words(&reply))
            }
        }),
        Ok(Err(CallError::Timeout)) => Err(too_late(call, endpoint, Reason::TotalTimeout)),
        Ok(Err(_)) if call.flow.as_ref().is_some_and(|flow| flow.fault().is_some()) => {
            Err(broken(call, endpoint, None))
        }
        Ok(Err(error)) => Err(lost_reply(call, endpoint, error)),
        Err(reason) => Err(too_late(call, endpoint, reason)),
    }
}

/// What a platform's answer says.
pub(crate) fn words(reply: &CallReply) -> String {
    String::from_utf8_lossy(&reply.body).trim_end().to_owned()
}

fn send(
    call: &Call,
    endpoint: &Endpoint,
    post: &AsyncEndpoint,
    head: &http::request::Parts,
    rest: &Upload,
    body: Bytes,
) -> Result<(polled::CallFuture, Option<BodyWriter>), UnsentReason> {
    let fields = fields(head);
    let left = call.clock.deadline().saturating_duration_since(Instant::now());
    let total = rest.size_hint().exact().map(|rest| rest + body.len() as u64);
    let (trace, span) = traced(head);
    let request =
        nearpath_domain::CallRequest { fields: &fields, body, deadline: clock::deadline_after(left), trace, span };
    let to = CallDestination::Instance(endpoint.id);
    if rest.is_end_stream() {
        return post.call(to, &request).map(|answer| (answer, None));
    }
    post.open_call(to, &request, total).map(|(answer, writer)| (answer, Some(writer)))
}

/// Writes the rest of a request's body, for as long as its function wants it. When the caller breaks it off, so does this.
async fn write(mut writer: BodyWriter, mut body: Upload) {
    loop {
        let frame = poll_fn(|cx| match writer.poll_ready(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut body).poll_frame(cx).map(Ok),
            Poll::Ready(Err(not_wanted)) => Poll::Ready(Err(not_wanted)),
            Poll::Pending => Poll::Pending,
        });
        match frame.await {
            Ok(Some(Ok(frame))) => {
                let Ok(piece) = frame.into_data() else { continue };
                if body.is_end_stream() {
                    return writer.finish_with(piece);
                }
                if writer.push_chunk(piece).is_err() {
                    return;
                }
            }
            Ok(None) => return writer.finish_body(),
            Ok(Some(Err(_))) | Err(_) => return,
        }
    }
}

fn fields(head: &http::request::Parts) -> Vec<(&str, &[u8])> {
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(head.headers.len() + 2);
    fields.push((":method", head.method.as_str().as_bytes()));
    fields.push((":path", head.uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes()));
    fields.extend(head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())));
    fields
}

/// What the envelope says of the request's trace; its `traceparent` goes along as a field too.
pub(super) fn traced(head: &http::request::Parts) -> ([u8; 16], [u8; 8]) {
    let told = head.headers.get(TRACEPARENT).and_then(|text| TraceContext::parse_traceparent(text.as_bytes()));
    told.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

/// The answer as HTTP. Fields that HTTP does not know are left out: who wrote them may be hostile.
pub(crate) fn response(reply: CallReply) -> Response<Source> {
    let mut response = Response::new(());
    *response.status_mut() = match reply.status {
        0 => StatusCode::OK,
        status => StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    for field in reply.head_fields().flatten().filter(|field| !field.name.starts_with(':')) {
        let (name, value) = (HeaderName::from_bytes(field.name.as_bytes()), HeaderValue::from_bytes(field.value));
        if let (Ok(name), Ok(value)) = (name, value) {
            response.headers_mut().append(name, value);
        }
    }
    if reply.is_platform {
        if let Some(reason) = Reason::ALL.iter().find(|reason| **reason as u16 == reply.reason) {
            response.headers_mut().entry(X_NEARPATH_REASON).or_insert(HeaderValue::from_static(reason.name()));
        }
        response.headers_mut().entry(X_OPENFAAS_INTERNAL).or_insert(HeaderValue::from_static("function"));
    }
    response.map(|()| match reply.reader {
        None => Source::Memory(reply.body.into()),
        Some(rest) => Source::Parts(Parts::new(reply.body.into(), rest)),
    })
}
