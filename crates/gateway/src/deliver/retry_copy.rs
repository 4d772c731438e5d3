//! What becomes of a request that an instance did not run, and said so.
//!
//! hyper keeps what it sends. So where it is likely that a request comes back, a copy is kept: to an instance that refused the last one, or that
//! may turn the gateway's certificate down. Elsewhere a copy would cost more (0.6 µs of each call) than the rare answer that is passed on as it came.

use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::{BoxError, not_run_header};

use super::attempt_outcome::AttemptOutcome;
use super::buffered_request::BufferedRequest;
use super::delivery_errors::{broken_call_error, unsent_error};
use super::instance_body::InstanceBody;
use crate::call::GatewayCall;
use crate::function::InstanceEndpoint;
use crate::request::RequestUpload;
use crate::transport::HttpConnection;

/// A copy of the call's request, if all of it is here. With `careful` a small body is collected first.
///
/// # Errors
/// See [`BufferedRequest::take_from`].
pub(super) async fn copy_request(
    call: &mut GatewayCall,
    endpoint: &InstanceEndpoint,
    collect_body: bool,
) -> Result<Option<Request<RequestUpload>>, PlatformError> {
    if collect_body {
        BufferedRequest::take_from(call, endpoint)
            .await?
            .put_back_into(call);
    }
    let request = call
        .request
        .as_ref()
        .expect("an unsent request is put back");
    Ok(request.body().try_copy().map(|body| {
        let mut copy = Request::new(body);
        request.method().clone_into(copy.method_mut());
        request.uri().clone_into(copy.uri_mut());
        request.headers().clone_into(copy.headers_mut());
        *copy.version_mut() = request.version();
        copy
    }))
}

/// Whether a request that was not run for this reason may run elsewhere. An instance that is full says so to the caller: others are chosen by the gate.
pub(super) fn may_run_elsewhere(reason: Reason) -> bool {
    reason != Reason::Overload
}

/// What came over HTTP: an answer; or the word that the request has not run, and then it is the call's again.
pub(super) async fn handle_response(
    call: &mut GatewayCall,
    endpoint: &std::sync::Arc<InstanceEndpoint>,
    mut response: Response<Incoming>,
    connection: HttpConnection,
    retry_copy: Option<Request<RequestUpload>>,
) -> AttemptOutcome {
    connection.mark_accepted();
    let refusal = not_run_header::take_not_run(response.headers_mut())
        .filter(|reason| may_run_elsewhere(*reason));
    endpoint.note_answer(refusal.is_none());
    let (Some(reason), Some(request)) = (refusal, retry_copy) else {
        return AttemptOutcome::Answered(response.map(InstanceBody::Http), Some(connection));
    };
    let why = read_refusal_text(reason, response.into_body()).await;
    call.worker
        .tcp_pools
        .put_connection(endpoint, connection, call.worker.current_tick());
    call.request = Some(request);
    AttemptOutcome::Refused(why)
}

/// After a line broke: only an instance that turned the gateway's certificate down has provably run nothing.
///
/// # Errors
/// When the request may have run, or is not there any more.
pub(super) fn handle_send_error(
    call: &mut GatewayCall,
    endpoint: &InstanceEndpoint,
    connection: &HttpConnection,
    retry_copy: Option<Request<RequestUpload>>,
    error: &hyper::Error,
) -> Result<AttemptOutcome, PlatformError> {
    let at_fault = call
        .upload_progress
        .as_ref()
        .is_some_and(|flow| flow.fault().is_some());
    let Some(why) = connection.refusal().filter(|_| !at_fault) else {
        return Err(broken_call_error(call, endpoint, Some(error)));
    };
    call.request = retry_copy;
    if call.request.is_some() {
        return Ok(AttemptOutcome::Unsent(why));
    }
    Err(unsent_error(call, endpoint, &why))
}

/// The text of a refusal, which the platform wrote; or its reason, when it has none.
pub(super) async fn read_refusal_text<B>(reason: Reason, body: B) -> String
where
    B: Body,
    B::Error: Into<BoxError>,
{
    const MAX_REFUSAL: (usize, Duration) = (4096, Duration::from_secs(1));
    let text =
        tokio::time::timeout(MAX_REFUSAL.1, Limited::new(body, MAX_REFUSAL.0).collect()).await;
    let text = text
        .ok()
        .and_then(Result::ok)
        .map(|said| said.to_bytes())
        .unwrap_or_default();
    match String::from_utf8_lossy(&text).trim_end() {
        "" => reason.name().to_owned(),
        text => text.to_owned(),
    }
}
