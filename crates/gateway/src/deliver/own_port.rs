//! The path `loopback` for requests of other nodes. The fast path has it for plain requests of other
//! callers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Response};
use nearpath_types::{FunctionServer, PlatformError};
use nearpath_wire::hop::headers::{append_untrusted, strip_hop_headers, strip_platform_headers};
use nearpath_wire::not_run_header;

use super::attempt_outcome::AttemptOutcome;
use super::buffered_request::BufferedRequest;
use super::delivery_errors::timeout_error;
use super::headers::X_DURATION_SECONDS;
use super::instance_body::InstanceBody;
use super::own_port_errors::own_port_error;
use super::time_limits::await_within;
use crate::call::GatewayCall;
use crate::function::FunctionEndpoint;
use crate::request::{ListenerZone, seconds_value};
use crate::transport::{
    Exchange, ExchangeError, PooledConnection, ResponseHead, ServerBody, ServerResponse,
};

/// Paths that the watchdog answers itself.
const WATCHDOG_PATHS: [&str; 2] = ["/_/health", "/_/ready"];
/// Room for the head of a usual request, and a short body.
const HEAD_RESERVE_BYTES: usize = 1024;
/// Content type of a response where neither it nor its request has one, as in of-watchdog.
pub(crate) const DEFAULT_CONTENT_TYPE: &str = "text/plain";

/// Returns whether only the watchdog can take a request with this path.
pub(crate) fn is_for_watchdog(path: &str) -> bool {
    WATCHDOG_PATHS.contains(&path)
}

/// Returns whether the call's request can go to the own port: another node sent it, its body is complete,
/// and its response has a body of its own. The gateway's limits hold, the caller's own included.
pub(super) fn is_suitable(call: &GatewayCall) -> bool {
    let Some(request) = &call.request else {
        return false;
    };
    let has_method = matches!(
        *request.method(),
        Method::GET | Method::POST | Method::PUT | Method::DELETE | Method::PATCH
    );
    let is_whole = request.body().try_copy().is_some();
    call.peer.zone == ListenerZone::Node
        && has_method
        && is_whole
        && !call.options.wants_stream
        && !is_for_watchdog(request.uri().path())
}

/// Sends the request to the function's own server and waits for the head of the response.
///
/// # Errors
/// As [`super::attempt::try_instance`]; [`AttemptOutcome::Unsent`] leaves the request whole for another
/// path.
pub(super) async fn try_own_port(
    call: &mut GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
    server: Arc<FunctionServer>,
) -> Result<AttemptOutcome, PlatformError> {
    let buffered = BufferedRequest::take_from(call, endpoint).await?;
    let connection = match buffered.is_complete {
        true => connect(call, endpoint, &server).await,
        false => None,
    };
    let Some(connection) = connection else {
        buffered.put_back_into(call);
        return Ok(AttemptOutcome::Unsent(
            "no connection to its own port".into(),
        ));
    };
    if let Some(limit) = server.exec_timeout {
        let limit = call.admitted_at + limit;
        call.deadlines.shorten_to_exec_timeout(limit);
    }
    let head = write_head(&server, &buffered);
    let content_type = buffered.head.headers.get(CONTENT_TYPE).cloned();
    let began = Instant::now();
    let exchange = Exchange::new(connection, head, buffered.first_chunk);
    // Its own limit is never the first: the limits of the call are shorter, and name their settings.
    let answer = exchange.complete_by(call.deadlines.deadline());
    match await_within(&call.deadlines, call.admitted_at, None, answer).await {
        Ok(Ok(response)) => {
            let response = to_response(response, content_type, began);
            Ok(AttemptOutcome::Answered(response, None))
        }
        Ok(Err(ExchangeError::Timeout)) => Err(timeout_error(
            call,
            endpoint,
            call.deadlines.deadline_reason(),
        )),
        Ok(Err(ExchangeError::Head(error))) => {
            let function = (endpoint, &*call.function.name);
            Err(own_port_error(&call.worker, function, began, &error).await)
        }
        Err(reason) => Err(timeout_error(call, endpoint, reason)),
    }
}

async fn connect(
    call: &GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
    server: &Arc<FunctionServer>,
) -> Option<PooledConnection> {
    let (pools, poller) = (&call.worker.loopback_pools, call.worker.event_loop.poller());
    match pools.take_idle(endpoint, server, poller, Instant::now()) {
        Some(idle) => Some(idle),
        None => pools.open(endpoint, server, poller).await,
    }
}

/// Writes the request's head (RFC 9112 section 3).
fn write_head(server: &FunctionServer, request: &BufferedRequest) -> Vec<u8> {
    let (head, body) = (&request.head, &request.first_chunk);
    let mut out = Vec::with_capacity(HEAD_RESERVE_BYTES);
    let mut write = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    let target = head
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    write(&[head.method.as_str().as_bytes(), b" "]);
    write(&[
        server.base_path.as_bytes(),
        target.as_bytes(),
        b" HTTP/1.1\r\n",
    ]);
    let fields = head
        .headers
        .iter()
        .filter(|(name, _)| *name != CONTENT_LENGTH);
    for (name, value) in fields {
        write(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    // Without a body, a length is a statement of the caller (RFC 9110 section 8.6).
    if !body.is_empty() || head.headers.contains_key(CONTENT_LENGTH) {
        write(&[
            b"content-length: ",
            body.len().to_string().as_bytes(),
            b"\r\n",
        ]);
    }
    write(&[b"\r\n"]);
    out
}

fn to_response(
    response: ServerResponse,
    request_type: Option<HeaderValue>,
    began: Instant,
) -> Response<InstanceBody> {
    let ServerResponse { head, body } = response;
    let body = match body {
        ServerBody::Buffered(body) => InstanceBody::Whole(body),
        ServerBody::Stream(body) => InstanceBody::Loopback(body),
    };
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = own_port_headers(&head, request_type, began.elapsed());
    if let InstanceBody::Whole(body) = response.body() {
        let length = HeaderValue::from(body.len());
        response.headers_mut().insert(CONTENT_LENGTH, length);
    }
    response
}

/// Converts the head of another node's response, which is complete.
pub(crate) fn node_headers(head: &ResponseHead) -> HeaderMap {
    let mut headers = to_header_map(head);
    headers.remove(not_run_header::NOT_RUN);
    headers
}

fn to_header_map(head: &ResponseHead) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in head.fields() {
        // httparse accepts no other names; a value with a control character is dropped.
        append_untrusted(&mut headers, name, value);
    }
    headers
}

/// Converts the head of a response, as the watchdog completes it. A response without a content type gets
/// that of its request.
pub(crate) fn own_port_headers(
    head: &ResponseHead,
    request_type: Option<HeaderValue>,
    took: Duration,
) -> HeaderMap {
    let mut headers = to_header_map(head);
    strip_hop_headers(&mut headers, false);
    strip_platform_headers(&mut headers);
    let missing = || request_type.unwrap_or(HeaderValue::from_static(DEFAULT_CONTENT_TYPE));
    headers.entry(CONTENT_TYPE).or_insert_with(missing);
    headers.insert(X_DURATION_SECONDS, seconds_value(took));
    headers
}
