//! Handling of requests that an instance declares not to have run.
//!
//! hyper keeps what it sends. A copy is kept where a refusal is likely: for an instance that
//! refused the last request, or that may reject the gateway's certificate. Elsewhere a copy costs
//! more (0.6 µs per call) than a rare forwarded refusal.

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
use crate::function::FunctionEndpoint;
use crate::request::RequestUpload;
use crate::transport::HttpConnection;

/// Copies the call's request if its body is complete. `collect_body` collects a small body first.
///
/// # Errors
/// See [`BufferedRequest::take_from`].
pub(super) async fn copy_request(
    call: &mut GatewayCall,
    endpoint: &FunctionEndpoint,
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

/// Returns whether a refused request may run elsewhere. A full instance answers the caller
/// directly: the gate chooses others.
pub(crate) fn may_run_elsewhere(reason: Reason) -> bool {
    reason != Reason::Overload
}

/// Handles a response over HTTP. If it declares that the request did not run, the copy goes back
/// into the call.
pub(super) async fn handle_response(
    call: &mut GatewayCall,
    endpoint: &std::sync::Arc<FunctionEndpoint>,
    mut response: Response<Incoming>,
    connection: HttpConnection,
    retry_copy: Option<Request<RequestUpload>>,
) -> AttemptOutcome {
    connection.mark_accepted();
    // Removed in any case: the field is between platform and gateway, and no caller may see it.
    let refusal = not_run_header::take_not_run(response.headers_mut())
        .filter(|reason| may_run_elsewhere(*reason));
    endpoint.note_answer(refusal.is_none());
    let (Some(reason), Some(request)) = (refusal, retry_copy) else {
        return AttemptOutcome::Answered(response.map(InstanceBody::Http), Some(connection));
    };
    let why = read_refusal_text(reason, response.into_body()).await;
    // hyper reports a connection as not ready if its body was not read completely, so this one is
    // taken again only if it can serve.
    call.worker
        .connections_to(&endpoint.target)
        .tcp
        .put_connection(&endpoint.target, connection, call.worker.current_tick());
    call.request = Some(request);
    AttemptOutcome::Refused(why)
}

/// Handles a broken connection. Only an instance that rejected the gateway's certificate has
/// provably run nothing.
///
/// # Errors
/// If the request may have run or is gone.
pub(super) fn handle_send_error(
    call: &mut GatewayCall,
    endpoint: &FunctionEndpoint,
    connection: &HttpConnection,
    retry_copy: Option<Request<RequestUpload>>,
    error: &hyper::Error,
) -> Result<AttemptOutcome, PlatformError> {
    let at_fault = call
        .upload_progress
        .as_ref()
        .is_some_and(|progress| progress.fault().is_some());
    let Some(why) = connection.refusal().filter(|_| !at_fault) else {
        return Err(broken_call_error(call, endpoint, Some(error)));
    };
    call.request = retry_copy;
    if call.request.is_some() {
        return Ok(AttemptOutcome::Unsent(why));
    }
    Err(unsent_error(call, endpoint, &why))
}

/// Reads the text of a platform refusal; returns the name of its reason if it is empty.
pub(super) async fn read_refusal_text<B>(reason: Reason, body: B) -> String
where
    B: Body,
    B::Error: Into<BoxError>,
{
    // The text only explains an error. A slow or long one must not delay the retry.
    const MAX_REFUSAL_BYTES: usize = 4096;
    const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
    let text = tokio::time::timeout(
        REFUSAL_TIMEOUT,
        Limited::new(body, MAX_REFUSAL_BYTES).collect(),
    )
    .await;
    let text = text
        .ok()
        .and_then(Result::ok)
        .map(|collected| collected.to_bytes())
        .unwrap_or_default();
    match String::from_utf8_lossy(&text).trim_end() {
        "" => reason.name().to_owned(),
        text => text.to_owned(),
    }
}
