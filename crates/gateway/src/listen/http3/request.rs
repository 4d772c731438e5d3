//! Requests over HTTP/3, from the head to the last byte of the response.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use futures_util::poll;
use http::header::{CONTENT_LENGTH, DATE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use nearpath_types::Reason;
use nearpath_wire::h3::{
    Http3RequestBody, MalformedHead, ReceivedRequest, RequestBodyError, RequestReadError,
    UnreadRequest,
};
use tokio::time::error::Elapsed;

use super::Http3ListenPort;
use super::client::{Http3Client, OpenRequest};
use super::early_data::{self, EARLY_DATA};
use crate::context::WorkerContext;
use crate::deliver::ResponseContent;
use crate::listen::client_connection::{ClientConnection, StreamGuard, TrackedBody};
use crate::pipeline::{self, RoutedRequest};
use crate::record::CompletionRecord;
use crate::request::CallerBody;

const PROTOCOL: &str = "HTTP/3";

/// Answers a request through [`pipeline::answer_request`]. Ends early when the client cancels it.
pub(super) async fn answer_request(
    client: Rc<Http3Client>,
    port: Rc<Http3ListenPort>,
    unread: UnreadRequest,
    is_early: bool,
    _open_request: OpenRequest,
) {
    let (connection, worker) = (&client.connection, &client.worker);
    let (stream, peer) = (StreamGuard::new(connection), &connection.peer);
    let received = match tokio::time::timeout(port.header_timeout, unread.read_head()).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) => return record_unreadable(connection, &stream, &error),
        Err(_) => {
            return CompletionRecord::start_unreadable(&worker.recorder, peer, PROTOCOL)
                .mark_refused(Reason::SlowRequest);
        }
    };
    let ReceivedRequest {
        mut request,
        fault,
        responder,
        mut stopped,
    } = received;
    // Two guards: the first ends with the response body. The second keeps the connection busy until
    // the client has acknowledged the response.
    let (active, _until_acknowledged) = (
        connection.state.begin_request(false),
        connection.state.begin_request(false),
    );
    worker.totals.http3.requests.fetch_add(1, Ordering::Relaxed);
    let has_no_body = *request.method() == Method::HEAD;
    let answer = async {
        let detected = tokio::time::timeout(port.header_timeout, detect_body(&mut request)).await;
        let routed = match refusal_reason(&request, &port, fault, detected, is_early) {
            Some((reason, message)) => {
                pipeline::refuse_unrouted(worker, peer, &request, reason, &message)
            }
            None => route_request(&client, request, is_early),
        };
        pipeline::answer_request(routed).await
    };
    let response = tokio::select! {
        // In this order: a finished response counts even if the client cancels at the same time.
        biased;
        response = answer => response,
        () = &mut stopped => return,
    };
    stream.mark_answered();
    let has_no_body = has_no_body || is_bodiless_status(response.status());
    if let Err(error) = responder
        .send_response(
            with_date(worker, response).map(|content| TrackedBody::new(content, active)),
            has_no_body,
        )
        .await
    {
        return tracing::debug!(%error, "HTTP/3: response was not sent completely");
    }
    // quinn still sends the rest of the response. The connection must not count as idle or drained
    // meanwhile, because its close would discard the rest.
    let _ = tokio::time::timeout(port.write_timeout, stopped).await;
}

fn route_request(
    client: &Http3Client,
    mut request: Request<Http3RequestBody>,
    is_early: bool,
) -> RoutedRequest {
    if is_early {
        client
            .worker
            .totals
            .http3
            .early
            .fetch_add(1, Ordering::Relaxed);
        request
            .headers_mut()
            .insert(EARLY_DATA, HeaderValue::from_static("1"));
    }
    let routed = pipeline::route_request(
        &client.worker,
        &client.connection.peer,
        request.map(|body| CallerBody::Http3(Box::new(body))),
    );
    client.connection.leave_reserve(&routed);
    routed
}

/// Detects whether a request has a body if its `content-length` does not show one. Functions would
/// otherwise get an empty chunked body. Waits only for methods that usually have no body, and after
/// `content-length: 0`, because no later step reads such a body. Fails if the body is invalid as
/// far as it has arrived.
async fn detect_body(request: &mut Request<Http3RequestBody>) -> Result<(), RequestBodyError> {
    let length = request.body().size_hint().exact();
    if request.headers().contains_key(CONTENT_LENGTH) && length.is_some_and(|bytes| bytes > 0) {
        return Ok(());
    }
    let waits_for_body = early_data::is_safe_method(request.method()) || length == Some(0);
    let mut is_empty = poll_fn(|cx| request.body_mut().poll_is_empty(cx));
    // Polled once for all methods: the end of the stream often arrives with the head.
    match poll!(&mut is_empty) {
        Poll::Ready(found) => found.map(drop),
        Poll::Pending if waits_for_body => is_empty.await.map(drop),
        Poll::Pending => Ok(()),
    }
}

/// Returns the reason to refuse a request, if there is one.
fn refusal_reason(
    request: &Request<Http3RequestBody>,
    port: &Http3ListenPort,
    fault: Option<MalformedHead>,
    detected: Result<Result<(), RequestBodyError>, Elapsed>,
    is_early: bool,
) -> Option<(Reason, String)> {
    if let Some(fault) = fault {
        return Some((Reason::BadRequest, fault.to_string()));
    }
    if request.headers().len() > port.limits.max_headers {
        let max_fields = port.limits.max_headers;
        return Some((
            Reason::HeadersTooLarge,
            format!("the request has more than {max_fields} fields; the limit is fixed"),
        ));
    }
    // A client that sends neither a body nor its end would hold the request open for ever.
    match detected {
        Err(_) => {
            return Some((
                Reason::SlowRequest,
                "the request announced neither a body nor its end in time".to_owned(),
            ));
        }
        Ok(Err(error)) if error.is_malformed() => {
            return Some((Reason::BadRequest, error.to_string()));
        }
        // A client that has gone is noticed by the next read or write.
        Ok(Ok(()) | Err(_)) => {}
    }
    if is_early && !early_data::may_run_early(request.method(), !request.body().is_end_stream()) {
        return Some((
            Reason::TooEarly,
            "not allowed in early data: send the request again after the handshake (RFC 8470)"
                .to_owned(),
        ));
    }
    None
}

fn record_unreadable(
    connection: &ClientConnection,
    stream: &StreamGuard,
    error: &RequestReadError,
) {
    let (worker, peer) = (&connection.worker, &connection.peer);
    match error {
        RequestReadError::TooLarge => {
            CompletionRecord::start_unreadable(&worker.recorder, peer, PROTOCOL)
                .mark_refused(Reason::HeadersTooLarge)
        }
        RequestReadError::Malformed(_) => {
            CompletionRecord::start_unreadable(&worker.recorder, peer, PROTOCOL)
                .mark_refused(Reason::BadRequest)
        }
        // Not answered: when `stream` is dropped, the request counts as abandoned.
        RequestReadError::ClientGone(_) => return,
    }
    stream.mark_answered();
}

fn with_date(
    worker: &WorkerContext,
    mut response: Response<ResponseContent>,
) -> Response<ResponseContent> {
    let date = || HeaderValue::from_bytes(&worker.http_date()).expect("a date is ASCII");
    response.headers_mut().entry(DATE).or_insert_with(date);
    response
}

fn is_bodiless_status(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}
