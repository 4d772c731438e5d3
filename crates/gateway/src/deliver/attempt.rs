//! A single attempt to have a request answered by one instance.

use std::sync::Arc;

use http::{HeaderValue, Method, Uri};
use nearpath_path::{Obstacle, Path, PathPlan};
use nearpath_types::PlatformError;
use nearpath_wire::client::InstanceConnectError;
use nearpath_wire::hop::headers::{FUNCTION, TOPIC, X_TOPIC};

use super::attempt_outcome::AttemptOutcome;
use super::delivery_errors::timeout_error;
use super::time_limits::await_within;
use super::{own_port, path_choice, quic, retry_copy, shm};
use crate::call::GatewayCall;
use crate::function::FunctionEndpoint;
use crate::request::X_NEARPATH_PATH;
use crate::transport::{HttpConnection, TlsMode};

/// Sends the request to `endpoint` over a pooled or a new connection and waits for the head of
/// the response.
///
/// # Errors
/// Errors after which the request may have run: it is not sent again.
pub(crate) async fn try_instance(
    call: &mut GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
) -> Result<AttemptOutcome, PlatformError> {
    name_function(call, endpoint);
    let (mut plan, shm_endpoint) = path_choice::plan_paths(call, endpoint);
    if let Some(shm_endpoint) = shm_endpoint {
        // On the heap: only some requests come here, and this future is moved.
        let outcome = Box::pin(shm::try_shm(call, endpoint, shm_endpoint)).await?;
        if !matches!(outcome, AttemptOutcome::Unsent(_)) {
            return Ok(outcome);
        }
        // The request is still whole: a full memory region costs a slower path, not the call.
        let obstacle = match has_trailers(call) {
            true => Obstacle::Trailers,
            false => Obstacle::NoRoom,
        };
        plan = path_choice::strike_out(call, plan, Path::Shm, obstacle);
    }
    name_topic(call, endpoint);
    if let (Path::Loopback, Some(server)) = (plan.first_choice().path, endpoint.server()) {
        // On the heap, as above.
        let outcome = Box::pin(own_port::try_own_port(call, endpoint, server.clone())).await?;
        if !matches!(outcome, AttemptOutcome::Unsent(_)) {
            return Ok(outcome);
        }
        plan = path_choice::strike_out(call, plan, Path::Loopback, Obstacle::NoRoom);
    }
    match plan.first_choice().path {
        Path::Quic => Box::pin(try_quic_then_tcp(call, endpoint, plan)).await,
        path => try_tcp(call, endpoint, path).await,
    }
}

/// Names the function to another node, and asks for its report of the path if the caller wants one. An
/// instance does not see these fields.
fn name_function(call: &mut GatewayCall, endpoint: &FunctionEndpoint) {
    let Some(request) = &mut call.request else {
        return;
    };
    let headers = request.headers_mut();
    if endpoint.is_remote() {
        headers.insert(FUNCTION, call.function.host.clone());
        if call.options.wants_path {
            headers.insert(X_NEARPATH_PATH, HeaderValue::from_static("?"));
        }
    } else if !call.route.remotes.is_empty() {
        headers.remove(FUNCTION); // another node has refused the request
        headers.remove(X_NEARPATH_PATH);
    }
}

/// Names the topic of an event that goes over HTTP. A function finds it in the field of OpenFaaS's
/// connectors, and gets no path of the publisher, which may send events only.
fn name_topic(call: &mut GatewayCall, endpoint: &FunctionEndpoint) {
    let (Some(request), Some(topic)) = (&mut call.request, &call.topic) else {
        return;
    };
    request.headers_mut().insert(TOPIC, topic.clone());
    if !endpoint.is_remote() {
        request.headers_mut().insert(X_TOPIC, topic.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/");
    }
}

/// Returns whether trailers were found after the body of the call's request.
fn has_trailers(call: &GatewayCall) -> bool {
    let body = call.request.as_ref().map(http::Request::body);
    body.is_some_and(|body| body.known_trailers().is_some())
}

/// Sends the request over QUIC, and over TCP if UDP is blocked.
async fn try_quic_then_tcp(
    call: &mut GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
    plan: PathPlan,
) -> Result<AttemptOutcome, PlatformError> {
    if let Some(attempt) = quic::try_quic(call, endpoint).await? {
        return Ok(attempt);
    }
    let plan = path_choice::strike_out(call, plan, Path::Quic, Obstacle::UdpBlocked);
    try_tcp(call, endpoint, plan.first_choice().path).await
}

/// Sends the request over TCP. `path` selects the encryption of a new or pooled connection.
async fn try_tcp(
    call: &mut GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
    path: Path,
) -> Result<AttemptOutcome, PlatformError> {
    let (tls_mode, h2) = (
        path_choice::tls_mode(path, endpoint.transport),
        call.options.is_grpc,
    );
    // A pooled connection may have been closed by the instance. Then nothing was sent, and the
    // loop opens a new one.
    let mut pooled = call
        .worker
        .connections_to(&endpoint.target)
        .tcp
        .take_connection(&endpoint.target, tls_mode, h2);
    loop {
        let is_new = pooled.is_none();
        let mut connection = match pooled.take() {
            Some(connection) => connection,
            // On the heap, because it is rare: otherwise every request's future would be as large.
            None => match Box::pin(open_connection(call, endpoint, tls_mode)).await {
                Ok(connection) => connection,
                Err(error) => return Ok(AttemptOutcome::Unsent(error.to_string())),
            },
        };
        // hyper keeps what it sends. Where a refusal is likely, a copy makes a second try
        // possible.
        let keep_copy =
            endpoint.is_remote() || endpoint.is_suspect() || connection.may_be_refused();
        let retry_copy = if is_new || keep_copy {
            Box::pin(retry_copy::copy_request(call, endpoint, keep_copy)).await?
        } else {
            None
        };
        // The invariant of this module: each failed attempt that may be repeated has put the
        // request back.
        let request = call.request.take().expect("an unsent request is put back");
        match await_within(
            &call.deadlines,
            call.admitted_at,
            call.upload_progress.as_ref(),
            connection.send_request(request),
        )
        .await
        {
            Ok(Ok(response)) => {
                return Ok(retry_copy::handle_response(
                    call, endpoint, response, connection, retry_copy,
                )
                .await);
            }
            Ok(Err(mut error)) => {
                call.request = error.take_message();
                let error = error.into_error();
                match call.request {
                    None => {
                        return retry_copy::handle_send_error(
                            call,
                            endpoint,
                            &connection,
                            retry_copy,
                            &error,
                        );
                    }
                    // A new connection that fails at once would fail again: another instance is
                    // tried instead.
                    Some(_) if is_new => return Ok(AttemptOutcome::Unsent(error.to_string())),
                    Some(_) => {} // the pooled connection was closed: open a new one
                }
            }
            Err(reason) => return Err(timeout_error(call, endpoint, reason)),
        }
    }
}

async fn open_connection(
    call: &GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
    tls_mode: TlsMode,
) -> Result<HttpConnection, InstanceConnectError> {
    let connections = call.worker.connections_to(&endpoint.target);
    // A plain connection shows no certificate, so renewals need not close it.
    let caller = if tls_mode == TlsMode::Plain {
        None
    } else {
        connections.quic.current_caller()
    };
    connections
        .tcp
        .open_connection(
            &endpoint.target,
            tls_mode,
            call.options.is_grpc,
            call.worker.connect_timeout,
            caller,
        )
        .await
}
