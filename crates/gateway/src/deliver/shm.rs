//! Requests and responses through shared memory. The available part of a request body goes with
//! the head. A task sends the rest, because a function may answer while it reads. Response bodies
//! arrive the same way.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRAILER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use nearpath_domain::endpoint::polled::{self, AsyncEndpoint, BodyWriter};
use nearpath_domain::{CallDestination, CallError, CallReply, UnsentReason, clock};
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::hop::headers::{append_untrusted, strip_platform_headers};

use super::attempt_outcome::AttemptOutcome;
use super::buffered_request::BufferedRequest;
use super::delivery_errors::{broken_call_error, lost_response_error, timeout_error};
use super::instance_body::InstanceBody;
use super::shm_body::ShmBody;
use super::shm_event;
use super::shm_head::{call_fields, trace_ids};
use super::time_limits::await_within;
use crate::call::GatewayCall;
use crate::error_response::{X_NEARPATH_REASON, X_OPENFAAS_INTERNAL};
use crate::function::FunctionEndpoint;
use crate::request::RequestUpload;

/// Sends the request through shared memory and waits for the head of the response.
///
/// # Errors
/// As [`super::attempt::try_instance`]; [`AttemptOutcome::Unsent`] leaves the request whole for
/// another path.
pub(super) async fn try_shm(
    call: &mut GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
    shm_endpoint: AsyncEndpoint,
) -> Result<AttemptOutcome, PlatformError> {
    let mut buffered = BufferedRequest::take_from(call, endpoint).await?;
    if let Some(trailers) = buffered.remaining.known_trailers() {
        // Over HTTP/1.1 only announced trailers are sent, after a body in chunks.
        let names = announced_names(trailers);
        buffered.head.headers.insert(TRAILER, names);
        buffered.head.headers.remove(CONTENT_LENGTH);
        buffered.put_back_into(call);
        return Ok(AttemptOutcome::Unsent(
            "messages in memory have no trailers".into(),
        ));
    }
    if call.topic.is_some() {
        return shm_event::try_send_event(call, endpoint, &shm_endpoint, buffered).await;
    }
    let BufferedRequest {
        head,
        first_chunk: first,
        remaining: body,
        ..
    } = buffered;
    let (answer, unsent_body) =
        match send_call(call, endpoint, &shm_endpoint, &head, &body, first.clone()) {
            Ok((answer, None)) => (answer, Some(body)),
            Ok((answer, Some(writer))) => {
                // A task of the worker and not of this request, so that the drain waits for the
                // upload too.
                call.worker.spawn(write_body(writer, body));
                (answer, None)
            }
            Err(unsent) => {
                call.request = Some(Request::from_parts(head, body.with_first_chunk(first)));
                return Ok(AttemptOutcome::Unsent(unsent.to_string()));
            }
        };
    match await_within(
        &call.deadlines,
        call.admitted_at,
        call.upload_progress.as_ref(),
        answer,
    )
    .await
    {
        // A streamed body is gone in part, so only a complete one can be sent to another
        // instance.
        Ok(Ok(reply)) => Ok(match unsent_body.filter(|_| reply.did_not_run()) {
            None => AttemptOutcome::Answered(to_response(reply), None),
            Some(body) => {
                call.request = Some(Request::from_parts(head, body.with_first_chunk(first)));
                AttemptOutcome::Refused(refusal_text(&reply))
            }
        }),
        Ok(Err(CallError::Timeout)) => Err(timeout_error(call, endpoint, Reason::TotalTimeout)),
        // The call broke because the caller's body did; that is the error to report.
        Ok(Err(_))
            if call
                .upload_progress
                .as_ref()
                .is_some_and(|progress| progress.fault().is_some()) =>
        {
            Err(broken_call_error(call, endpoint, None))
        }
        Ok(Err(error)) => Err(lost_response_error(call, endpoint, error)),
        Err(reason) => Err(timeout_error(call, endpoint, reason)),
    }
}

/// Returns the text of a platform response.
pub(crate) fn refusal_text(reply: &CallReply) -> String {
    String::from_utf8_lossy(&reply.body).trim_end().to_owned()
}

fn send_call(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    shm_endpoint: &AsyncEndpoint,
    head: &http::request::Parts,
    remaining: &RequestUpload,
    body: Bytes,
) -> Result<(polled::CallFuture, Option<BodyWriter>), UnsentReason> {
    let fields = call_fields(head);
    let time_left = call
        .deadlines
        .deadline()
        .saturating_duration_since(Instant::now());
    let total = remaining
        .size_hint()
        .exact()
        .map(|rest| rest + body.len() as u64);
    let (trace, span) = trace_ids(head);
    let request = nearpath_domain::CallRequest {
        fields: &fields,
        body,
        deadline: clock::deadline_after(time_left),
        trace,
        span,
    };
    let id = endpoint.instance().expect("memory is shared within a node");
    let to = CallDestination::Instance(id);
    // One message is cheaper than a stream: no writer, no task, no credit.
    if remaining.is_end_stream() {
        return shm_endpoint.call(to, &request).map(|answer| (answer, None));
    }
    shm_endpoint
        .open_call(to, &request, total)
        .map(|(answer, writer)| (answer, Some(writer)))
}

/// Writes the rest of a request body while its function wants it. Ends with the caller's body.
async fn write_body(mut writer: BodyWriter, mut body: RequestUpload) {
    loop {
        let frame = poll_fn(|cx| match writer.poll_ready(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut body).poll_frame(cx).map(Ok),
            Poll::Ready(Err(not_wanted)) => Poll::Ready(Err(not_wanted)),
            Poll::Pending => Poll::Pending,
        });
        match frame.await {
            Ok(Some(Ok(frame))) => {
                let chunk = match frame.into_data() {
                    Ok(chunk) => chunk,
                    Err(frame) if frame.trailers_ref().is_none_or(HeaderMap::is_empty) => continue,
                    // Dropping the writer breaks the call off: a function that relies on the
                    // trailers must not take the body without them.
                    Err(_) => return body.refuse_trailers(),
                };
                if body.is_end_stream() {
                    return writer.finish_with(chunk);
                }
                if writer.push_chunk(chunk).is_err() {
                    return;
                }
            }
            // Dropping the writer without this call tells the function that the body is
            // incomplete.
            Ok(None) => return writer.finish_body(),
            Ok(Some(Err(_))) | Err(_) => return,
        }
    }
}

/// Returns the value of `Trailer` that announces these fields.
fn announced_names(trailers: &HeaderMap) -> HeaderValue {
    let names: Vec<&str> = trailers.keys().map(HeaderName::as_str).collect();
    HeaderValue::try_from(names.join(", ")).expect("names and separators are a value")
}

/// Converts a reply into an HTTP response. Invalid fields are dropped: the function may be
/// hostile.
pub(crate) fn to_response(reply: CallReply) -> Response<InstanceBody> {
    let mut response = Response::new(());
    *response.status_mut() = match reply.status {
        0 => StatusCode::OK,
        status => StatusCode::from_u16(status)
            .ok()
            // Shared memory has no upgrades, and no other 1xx ends a request.
            .filter(|status| !status.is_informational())
            .unwrap_or(StatusCode::BAD_GATEWAY),
    };
    // Names with a colon are pseudo-fields of the message format, never HTTP fields.
    for field in reply
        .head_fields()
        .flatten()
        .filter(|field| !field.name.starts_with(':'))
    {
        append_untrusted(response.headers_mut(), field.name, field.value);
    }
    if !reply.is_platform {
        strip_platform_headers(response.headers_mut());
    } else {
        if let Some(reason) = Reason::ALL
            .iter()
            .find(|reason| **reason as u16 == reply.reason)
        {
            response
                .headers_mut()
                .entry(X_NEARPATH_REASON)
                .or_insert(HeaderValue::from_static(reason.name()));
        }
        response
            .headers_mut()
            .entry(X_OPENFAAS_INTERNAL)
            .or_insert(HeaderValue::from_static("function"));
    }
    response.map(|()| match reply.reader {
        None => InstanceBody::Whole(reply.body.into()),
        Some(reader) => InstanceBody::ShmStream(ShmBody::new(reply.body.into(), reader)),
    })
}
