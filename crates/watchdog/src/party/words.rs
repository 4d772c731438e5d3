//! Calls and answers in shared memory as HTTP, and HTTP as those: the same fields both ways, framing left out.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, request, response};
use http_body_util::BodyExt;
use nearpath_domain::trace::{self, TraceContext};
use nearpath_domain::{CallReply, CallResponse, IncomingCall};
use nearpath_types::{PlatformError, Reason, duration};

use crate::arrival::{Arrival, Parts};
use crate::body::Body;
use crate::hop;
use crate::refusal::{self, INTERNAL, error};

/// What OpenFaaS's connectors call an event's topic.
const X_TOPIC: &str = "x-topic";
const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");
const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

/// The request that a call is.
///
/// # Errors
/// `bad_request` when its method or path is none.
pub(crate) fn request(incoming: &IncomingCall, body: Parts) -> Result<Request<Arrival>, PlatformError> {
    let mut request = Request::new(Arrival::Memory(body));
    *request.method_mut() = Method::POST;
    for field in incoming.head_fields().flatten() {
        match field.name {
            ":method" => *request.method_mut() = Method::from_bytes(field.value).map_err(|_| invalid("method"))?,
            ":path" => *request.uri_mut() = path(field.value).ok_or_else(|| invalid("path"))?,
            ":name" if incoming.is_event => add(request.headers_mut(), X_TOPIC, field.value),
            name => add(request.headers_mut(), name, field.value),
        }
    }
    let headers = request.headers_mut();
    hop::strip(headers, false);
    headers.remove(CONTENT_LENGTH); // who wrote it may be wrong; the body's length is known
    tell_trace(headers, incoming);
    Ok(request)
}

fn invalid(what: &str) -> PlatformError {
    error(Reason::BadRequest, format!("the call's {what} is not valid"))
}

fn path(value: &[u8]) -> Option<Uri> {
    let uri = Uri::try_from(value).ok()?;
    uri.path().starts_with('/').then_some(uri)
}

/// Fields that HTTP does not know are left out: who wrote them may be hostile.
fn add(headers: &mut HeaderMap, name: &str, value: &[u8]) {
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
        headers.append(name, value);
    }
}

/// The call's time limit, unless its caller set one or asks for a stream, which has none.
pub(crate) fn tell_limit(headers: &mut HeaderMap, limit: Option<Duration>) {
    let accept = headers.get(ACCEPT).map_or(&[][..], HeaderValue::as_bytes);
    let asks = |kind: &[u8]| accept.windows(kind.len()).any(|part| part.eq_ignore_ascii_case(kind));
    let Some(limit) = limit.filter(|_| !asks(b"text/event-stream") && !asks(b"application/x-ndjson")) else { return };
    let value = || HeaderValue::from_str(&duration::format(limit)).expect("a duration is ASCII");
    headers.entry(X_TIMEOUT).or_insert_with(value);
}

/// A caller with an SDK tells its trace in the envelope alone.
fn tell_trace(headers: &mut HeaderMap, incoming: &IncomingCall) {
    if incoming.trace == [0; 16] || headers.contains_key(TRACEPARENT) {
        return;
    }
    let text = TraceContext { id: incoming.trace, span: incoming.span }.to_string();
    headers.insert(TRACEPARENT, HeaderValue::from_str(&text).expect("digits and dashes"));
}

/// What the envelope says of a request's trace; its `traceparent` goes along as a field too.
pub(crate) fn traced(headers: &HeaderMap) -> ([u8; 16], [u8; 8]) {
    let told = headers.get(TRACEPARENT).and_then(|text| TraceContext::parse_traceparent(text.as_bytes()));
    told.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

/// The answer that a response is. One of the watchdog's own is marked as the platform's.
pub(super) fn answer(head: response::Parts, body: Bytes) -> CallResponse {
    let reason = head.extensions.get::<Reason>();
    let kept = |name: &HeaderName| name != CONTENT_LENGTH || body.is_empty(); // the answer to a HEAD tells a length
    let fields = head.headers.iter().filter(|(name, _)| kept(name));
    let owned = |(name, value): (&HeaderName, &HeaderValue)| (own_name(name), Bytes::copy_from_slice(value.as_bytes()));
    CallResponse {
        status: head.status.as_u16(),
        reason: reason.map_or(0, |reason| *reason as u16),
        is_platform: reason.is_some(),
        fields: fields.map(owned).collect(),
        body: body.into(),
    }
}

fn own_name(name: &HeaderName) -> Cow<'static, str> {
    Cow::Owned(name.as_str().to_owned())
}

/// The answer for an error.
pub(super) fn refusal(error: &PlatformError) -> CallResponse {
    let (head, body) = refusal::answer(error).into_parts();
    let body = futures_util::FutureExt::now_or_never(body.collect()).and_then(Result::ok);
    answer(head, body.map(|body| body.to_bytes()).unwrap_or_default())
}

/// The fields of a request whose path at the callee is `path`.
pub(crate) fn fields<'a>(head: &'a request::Parts, path: &'a str) -> Vec<(&'a str, &'a [u8])> {
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(head.headers.len() + 2);
    fields.extend([(":method", head.method.as_str().as_bytes()), (":path", path.as_bytes())]);
    let told = head.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH);
    fields.extend(told.map(|(name, value)| (name.as_str(), value.as_bytes())));
    fields
}

/// The response that a reply is.
pub(crate) fn response(mut reply: CallReply, asked_head: bool) -> Response<Body> {
    let rest = reply.reader.take();
    let body = match rest {
        None => Body::from(reply.body.clone()),
        rest => Body::stream(Parts::new(reply.body.clone(), rest)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = match reply.status {
        0 => StatusCode::OK,
        status => StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    let headers = response.headers_mut();
    for field in reply.head_fields().flatten().filter(|field| !field.name.starts_with(':')) {
        add(headers, field.name, field.value);
    }
    hop::strip(headers, false);
    if !asked_head {
        headers.remove(CONTENT_LENGTH);
    }
    if reply.is_platform {
        headers.entry(INTERNAL).or_insert(HeaderValue::from_static("function"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_told_where_there_is_one() {
        let told = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            tell_limit(&mut headers, Some(Duration::from_secs(60)));
            headers.get(X_TIMEOUT).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(told("x-end", "1").as_deref(), Some("60s"));
        assert_eq!(told("x-timeout", "2s").as_deref(), Some("2s"), "the caller's own");
        assert_eq!(told("accept", "Text/Event-Stream"), None);
    }

    #[test]
    fn an_answer_of_the_watchdogs_own_is_the_platforms() {
        let own = refusal(&error(Reason::Overload, "full"));
        assert_eq!((own.status, own.reason, own.is_platform), (429, Reason::Overload as u16, true));
        assert_eq!(own.body, "watchdog: overload: full\n");
        let forged = Response::builder().status(429).header("x-nearpath-reason", "overload").body(()).unwrap();
        let forged = answer(forged.into_parts().0, Bytes::new());
        assert_eq!((forged.reason, forged.is_platform), (0, false), "what a tenant writes is a tenant's");
    }

    #[test]
    fn a_length_is_told_only_where_there_is_no_body() {
        let head = || Response::builder().header(CONTENT_LENGTH, "5").body(()).unwrap().into_parts().0;
        assert_eq!(answer(head(), Bytes::from_static(b"right")).fields, []);
        assert_eq!(answer(head(), Bytes::new()).fields.len(), 1, "the answer to a HEAD");
    }
}
