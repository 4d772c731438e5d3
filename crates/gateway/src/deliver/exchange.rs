//! One request and its answer through memory. What came of the request's body goes with its head; the rest follows as it
//! comes, in a task of its own, because a function may answer while it reads. The answer's body comes the same way.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use nearpath_domain::post::Rest;
use nearpath_domain::post::polled::{self, Post, Writer};
use nearpath_domain::trace::{TRACEPARENT, Trace};
use nearpath_domain::{CallError, Reply, To, Unsent, clock};
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::BoxError;

use super::attempt::{Attempt, broken, too_late, within};
use super::source::Source;
use super::taken::Taken;
use crate::COMPONENT;
use crate::call::{Call, Upload};
use crate::refusal::{X_NEARPATH_REASON, X_OPENFAAS_INTERNAL};
use crate::route::Endpoint;

/// Sends the call's request and waits for the head of its answer.
///
/// # Errors
/// As [`super::attempt::attempt`]; [`Attempt::Unsent`] leaves the request whole for another path.
pub(super) async fn attempt(call: &mut Call, endpoint: &Arc<Endpoint>, post: Post) -> Result<Attempt, PlatformError> {
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
        Ok(Err(error)) => Err(lost(call, endpoint, error)),
        Err(reason) => Err(too_late(call, endpoint, reason)),
    }
}

/// What a platform's answer says.
pub(super) fn words(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).trim_end().to_owned()
}

fn send(
    call: &Call,
    endpoint: &Endpoint,
    post: &Post,
    head: &http::request::Parts,
    rest: &Upload,
    body: Bytes,
) -> Result<(polled::Call, Option<Writer>), Unsent> {
    let fields = fields(head);
    let left = call.clock.deadline().saturating_duration_since(Instant::now());
    let total = rest.size_hint().exact().map(|rest| rest + body.len() as u64);
    let (trace, span) = traced(head);
    let request = nearpath_domain::Request { fields: &fields, body, deadline: clock::within(left), trace, span };
    let to = To::Instance(endpoint.id);
    if rest.is_end_stream() {
        return post.call(to, &request).map(|answer| (answer, None));
    }
    post.open(to, &request, total).map(|(answer, writer)| (answer, Some(writer)))
}

/// Writes the rest of a request's body, for as long as its function wants it. When the caller breaks it off, so does this.
async fn write(mut writer: Writer, mut body: Upload) {
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
                    return writer.end(piece);
                }
                if writer.hand(piece).is_err() {
                    return;
                }
            }
            Ok(None) => return writer.finish(),
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
    let told = head.headers.get(TRACEPARENT).and_then(|text| Trace::parse(text.as_bytes()));
    told.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

/// The answer as HTTP. Fields that HTTP does not know are left out: who wrote them may be hostile.
pub(super) fn response(reply: Reply) -> Response<Source> {
    let mut response = Response::new(());
    *response.status_mut() = match reply.status {
        0 => StatusCode::OK,
        status => StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    for field in reply.fields().flatten().filter(|field| !field.name.starts_with(':')) {
        let (name, value) = (HeaderName::from_bytes(field.name.as_bytes()), HeaderValue::from_bytes(field.value));
        if let (Ok(name), Ok(value)) = (name, value) {
            response.headers_mut().append(name, value);
        }
    }
    if reply.platform {
        if let Some(reason) = Reason::ALL.iter().find(|reason| **reason as u16 == reply.reason) {
            response.headers_mut().entry(X_NEARPATH_REASON).or_insert(HeaderValue::from_static(reason.name()));
        }
        response.headers_mut().entry(X_OPENFAAS_INTERNAL).or_insert(HeaderValue::from_static("function"));
    }
    response.map(|()| match reply.rest {
        None => Source::Memory(reply.body.into()),
        Some(rest) => Source::Parts(Parts::new(reply.body.into(), rest)),
    })
}

/// The body of an answer that is longer than one message. Dropping it before its end tells the function.
pub(crate) struct Parts {
    first: Bytes,
    rest: Rest,
    left: Option<u64>,
}

impl Parts {
    fn new(first: Bytes, rest: Rest) -> Self {
        Self { left: rest.total(), first, rest }
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if self.first.is_empty() { self.rest.poll(cx) } else { Poll::Ready(Some(Ok(std::mem::take(&mut self.first)))) }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.next(cx).map(|next| {
            next.map(|part| {
                let part = part?;
                self.left = self.left.map(|left| left.saturating_sub(part.len() as u64));
                Ok(Frame::data(part))
            })
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.first.is_empty() && self.rest.is_over()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

pub(super) fn lost(call: &Call, endpoint: &Endpoint, error: CallError) -> PlatformError {
    let message = format!("instance {} of {}: {error}", endpoint.id, call.function.name);
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}
