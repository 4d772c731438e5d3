//! Conversion between calls in shared memory and HTTP: the same fields both ways, framing left out.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, request, response};
use http_body_util::BodyExt;
use nearpath_domain::trace::{self, TraceContext};
use nearpath_domain::{CallReply, CallResponse, IncomingCall};
use nearpath_types::{PlatformError, Reason, duration};

use crate::errors::{self, X_OPENFAAS_INTERNAL, watchdog_error};
use crate::incoming_body::{IncomingBody, SharedMemoryBody};
use crate::response_body::WatchdogBody;
use nearpath_wire::hop::headers::{
    CALLER, TOPIC, X_TOPIC, append_untrusted, keep_one_origin, strip_hop_headers,
    strip_platform_headers,
};

const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");
const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

/// Converts a call into a request.
///
/// # Errors
/// `bad_request` when its method or path is invalid.
pub(crate) fn http_request(
    incoming: &IncomingCall,
    body: SharedMemoryBody,
) -> Result<Request<IncomingBody>, PlatformError> {
    let mut request = Request::new(IncomingBody::Shm(body));
    // The method of a call that names none.
    *request.method_mut() = Method::POST;
    let mut topic = None;
    for field in incoming.head_fields().flatten() {
        match field.name {
            ":method" => {
                *request.method_mut() =
                    Method::from_bytes(field.value).map_err(|_| invalid_call("method"))?
            }
            ":path" => {
                *request.uri_mut() = parse_path(field.value).ok_or_else(|| invalid_call("path"))?
            }
            ":name" if incoming.is_event => topic = Some(field.value),
            name => append_untrusted(request.headers_mut(), name, field.value),
        }
    }
    if let Some(topic) = topic {
        set_topic(&mut request, topic);
    }
    let headers = request.headers_mut();
    // Another process wrote the fields, so hop-by-hop headers may be among them.
    strip_hop_headers(headers, false);
    headers.remove(CONTENT_LENGTH); // the declared length may be wrong; the body's is known
    set_trace_header(headers, incoming);
    Ok(request)
}

/// Names the calling function, of a call that does not come through shared memory.
pub(crate) fn set_caller(headers: &mut HeaderMap, caller: &str) {
    strip_platform_headers(headers);
    if let Ok(name) = HeaderValue::from_str(caller) {
        headers.insert(CALLER, name);
    }
}

/// Makes a request the event of a topic. Its publisher may send events only, so it chooses no path.
fn set_topic(request: &mut Request<IncomingBody>, topic: &[u8]) {
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("/");
    let headers = request.headers_mut();
    for name in [X_TOPIC, TOPIC] {
        headers.remove(&name); // a value of the publisher's
        append_untrusted(headers, name.as_str(), topic);
    }
}

fn invalid_call(what: &str) -> PlatformError {
    watchdog_error(
        Reason::BadRequest,
        format!("the call's {what} is not valid"),
    )
}

fn parse_path(value: &[u8]) -> Option<Uri> {
    let uri = Uri::try_from(value).ok()?;
    uri.path().starts_with('/').then_some(uri)
}

/// Sets the call's time limit, unless its caller set one or asks for a stream, which has none.
pub(crate) fn set_time_limit(headers: &mut HeaderMap, limit: Option<Duration>) {
    let accept = headers.get(ACCEPT).map_or(&[][..], HeaderValue::as_bytes);
    let accepts = |kind: &[u8]| {
        accept
            .windows(kind.len())
            .any(|part| part.eq_ignore_ascii_case(kind))
    };
    let Some(limit) =
        limit.filter(|_| !accepts(b"text/event-stream") && !accepts(b"application/x-ndjson"))
    else {
        return;
    };
    let value =
        || HeaderValue::from_str(&duration::format_duration(limit)).expect("a duration is ASCII");
    headers.entry(X_TIMEOUT).or_insert_with(value);
}

/// Sets `traceparent` from the envelope, the only place where an SDK writes its trace.
fn set_trace_header(headers: &mut HeaderMap, incoming: &IncomingCall) {
    if incoming.trace == [0; 16] || headers.contains_key(TRACEPARENT) {
        return;
    }
    let text = TraceContext {
        id: incoming.trace,
        span: incoming.span,
    }
    .to_string();
    headers.insert(
        TRACEPARENT,
        HeaderValue::from_str(&text).expect("digits and dashes"),
    );
}

/// Returns a request's trace for the envelope; its `traceparent` is sent as a field, too.
pub(crate) fn trace_ids(headers: &HeaderMap) -> ([u8; 16], [u8; 8]) {
    let parsed = headers
        .get(TRACEPARENT)
        .and_then(|text| TraceContext::parse_traceparent(text.as_bytes()));
    parsed.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

/// Converts a response into the response of a call. The watchdog's own is marked as the platform's.
pub(super) fn call_response(head: response::Parts, body: Bytes) -> CallResponse {
    // Only the watchdog's own responses have the extension, see `errors`.
    let reason = head.extensions.get::<Reason>();
    let is_kept = |name: &HeaderName| name != CONTENT_LENGTH || body.is_empty(); // a response to HEAD has a length without a body
    let fields = head.headers.iter().filter(|(name, _)| is_kept(name));
    let owned = |(name, value): (&HeaderName, &HeaderValue)| {
        (owned_name(name), Bytes::copy_from_slice(value.as_bytes()))
    };
    CallResponse {
        status: head.status.as_u16(),
        reason: reason.map_or(0, |reason| *reason as u16),
        is_platform: reason.is_some(),
        fields: fields.map(owned).collect(),
        body: body.into(),
    }
}

fn owned_name(name: &HeaderName) -> Cow<'static, str> {
    Cow::Owned(name.as_str().to_owned())
}

/// Converts an error into the response of a call.
pub(super) fn error_call_response(error: &PlatformError) -> CallResponse {
    let (head, body) = errors::error_response(error).into_parts();
    // The body of an error is at hand, so collecting it never waits.
    let body = futures_util::FutureExt::now_or_never(body.collect()).and_then(Result::ok);
    call_response(head, body.map(|body| body.to_bytes()).unwrap_or_default())
}

/// Returns the fields of a request whose path at the callee is `path`.
pub(crate) fn request_fields<'a>(
    head: &'a request::Parts,
    path: &'a str,
) -> Vec<(&'a str, &'a [u8])> {
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(head.headers.len() + 2);
    fields.extend([
        (":method", head.method.as_str().as_bytes()),
        (":path", path.as_bytes()),
    ]);
    // The envelope has the body's real length.
    let headers = head
        .headers
        .iter()
        .filter(|(name, _)| *name != CONTENT_LENGTH);
    fields.extend(headers.map(|(name, value)| (name.as_str(), value.as_bytes())));
    fields
}

/// Converts a reply into a response.
pub(crate) fn http_response(mut reply: CallReply, asked_head: bool) -> Response<WatchdogBody> {
    let rest = reply.reader.take();
    let body = match rest {
        None => WatchdogBody::from(reply.body.clone()),
        rest => WatchdogBody::from_stream(SharedMemoryBody::new(reply.body.clone(), rest)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = match reply.status {
        // 0: the handler set no status.
        0 => StatusCode::OK,
        status => StatusCode::from_u16(status)
            .ok()
            // Shared memory has no upgrades, and no other 1xx ends a request.
            .filter(|status| !status.is_informational())
            .unwrap_or(StatusCode::BAD_GATEWAY),
    };
    let headers = response.headers_mut();
    // Names with a colon belong to the envelope.
    for field in reply
        .head_fields()
        .flatten()
        .filter(|field| !field.name.starts_with(':'))
    {
        append_untrusted(headers, field.name, field.value);
    }
    // A handler with an SDK may have set hop-by-hop headers, or the platform's.
    strip_hop_headers(headers, false);
    if !reply.is_platform {
        strip_platform_headers(headers);
    }
    if !asked_head {
        headers.remove(CONTENT_LENGTH);
    }
    // OpenFaaS's queue worker repeats calls with this mark.
    if reply.is_platform {
        headers
            .entry(X_OPENFAAS_INTERNAL)
            .or_insert(HeaderValue::from_static("function"));
        keep_one_origin(headers);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_set_unless_the_caller_set_one_or_streams() {
        let limit_header = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]);
            set_time_limit(&mut headers, Some(Duration::from_secs(60)));
            headers
                .get(X_TIMEOUT)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(limit_header("x-end", "1").as_deref(), Some("60s"));
        assert_eq!(
            limit_header("x-timeout", "2s").as_deref(),
            Some("2s"),
            "the caller's own"
        );
        assert_eq!(limit_header("accept", "Text/Event-Stream"), None);
    }

    #[test]
    fn an_answer_of_the_watchdogs_own_is_the_platforms() {
        let own = error_call_response(&watchdog_error(Reason::Overload, "full"));
        assert_eq!(
            (own.status, own.reason, own.is_platform),
            (429, Reason::Overload as u16, true)
        );
        assert_eq!(own.body, "watchdog: overload: full\n");
        let forged = Response::builder()
            .status(429)
            .header("x-nearpath-reason", "overload")
            .body(())
            .unwrap();
        let forged = call_response(forged.into_parts().0, Bytes::new());
        assert_eq!(
            (forged.reason, forged.is_platform),
            (0, false),
            "what a tenant writes is a tenant's"
        );
    }

    #[test]
    fn a_content_length_is_sent_only_without_a_body() {
        let head = || {
            Response::builder()
                .header(CONTENT_LENGTH, "5")
                .body(())
                .unwrap()
                .into_parts()
                .0
        };
        assert_eq!(
            call_response(head(), Bytes::from_static(b"right")).fields,
            []
        );
        assert_eq!(
            call_response(head(), Bytes::new()).fields.len(),
            1,
            "the answer to a HEAD"
        );
    }
}
