//! Endpoint of the watchdog in its function's domain, for code that speaks only HTTP.
//!
//! Joins once the instance is ready, so that no start waits for it, and as a standby: the node
//! routes calls to it only while no endpoint of the tenant's own takes them. So code that joins
//! with an SDK needs no setting (ADR 14). A call becomes the request that the HTTP port would have
//! made of it, for [`crate::serve::handle_request`]; limits, metrics and the drain are the same.

mod message;
mod response;

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use http_body::Body;
use nearpath_domain::CallResponse;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use nearpath_domain::endpoint::{BodyReader, EndpointSettings, JoinError};
use nearpath_types::{PlatformError, Reason};
use tokio::task::spawn_local;

use crate::drain::{CloseWatch, DrainToken};
use crate::errors::watchdog_error;
use crate::incoming_body::SharedMemoryBody;
use crate::logs::log_line;
use crate::serve::{WatchdogState, handle_request};
use crate::stream_timeouts::BusyCount;

pub(crate) use message::{http_response, request_fields, set_caller, set_time_limit, trace_ids};
use response::ResponseStart;

/// Endpoint of the watchdog, once it has joined. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShmMembership(Rc<OnceCell<AsyncEndpoint>>);

impl ShmMembership {
    /// Returns the endpoint, if the watchdog has joined.
    pub(crate) fn endpoint(&self) -> Option<&AsyncEndpoint> {
        self.0.get()
    }
}

/// Joins the domain at the socket `path` and serves calls until the node closes. Without an
/// endpoint, calls come over HTTP.
pub(crate) async fn join_domain(
    app: Arc<WatchdogState>,
    membership: ShmMembership,
    path: std::path::PathBuf,
    watch: CloseWatch,
) {
    if let Err(fault) = dial_and_serve(app, &membership, &path, watch).await {
        log_line!("shared memory: not joined, so calls go over HTTP: {fault}");
    }
}

async fn dial_and_serve(
    app: Arc<WatchdogState>,
    membership: &ShmMembership,
    path: &Path,
    watch: CloseWatch,
) -> Result<(), JoinError> {
    // A standby gives way to endpoints of the tenant's own (ADR 14).
    let settings = EndpointSettings {
        is_standby: true,
        // Without a listener for the tenant's calls it never calls: the gateway takes them (ADR 96).
        serves_only: app.config.instance_env.outbound.is_none(),
        stream_bodies: true,
        ..EndpointSettings::default()
    };
    let (endpoint, driver) = AsyncEndpoint::dial(path, settings).await?;
    spawn_local(driver);
    // Only now: the node sends callers as soon as it has this message.
    endpoint.announce_ready()?;
    let endpoint = membership.0.get_or_init(|| endpoint);
    serve_calls(app, endpoint, watch).await;
    Ok(())
}

/// Serves calls. Those that come during the drain are refused as `draining`.
async fn serve_calls(app: Arc<WatchdogState>, endpoint: &AsyncEndpoint, watch: CloseWatch) {
    let mut watch = Some(watch);
    loop {
        let received = match &mut watch {
            Some(open) => tokio::select! {
                received = endpoint.next_incoming() => received,
                () = open.wait_close_requested() => {
                    watch = None; // dropped, because the drain waits for every token
                    continue;
                }
            },
            None => endpoint.next_incoming().await,
        };
        match (received, &watch) {
            (None, _) => return,
            (Some(received), Some(watch)) => drop(spawn_local(handle_call(
                Arc::clone(&app),
                received,
                watch.token.clone(),
            ))),
            // Still served, because callers learn of the drain only by a refusal.
            (Some(received), None) => received.send_response(message::error_call_response(
                &watchdog_error(Reason::Draining, "the instance stops"),
            )),
        }
    }
}

/// Handles one call, or cancels it when its caller does. An event has no caller that waits, so its
/// response is dropped.
async fn handle_call(app: Arc<WatchdogState>, mut received: ReceivedCall, token: DrainToken) {
    let reader = received.take_reader();
    let outcome = tokio::select! {
        // The result first: a finished call counts even if its caller left in the same moment.
        biased;
        ended = run_call(app, &received, reader, token) => ended,
        () = received.given_up(), if !received.is_event => {
            return received.send_response(CallResponse::platform_error(Reason::CallerGone, "the caller has gone\n"));
        }
    };
    match outcome {
        Ok((head, beginning)) => response::send_response(received, head, beginning).await,
        Err(fault) => received.send_response(message::error_call_response(&fault)),
    }
}

/// Returns the error for a body that is larger than the callee takes.
pub(crate) fn body_too_large(limit: usize) -> PlatformError {
    let text = format!("the request's body is larger than {limit} bytes");
    watchdog_error(Reason::BodyTooLarge, text).governed_by("nearpath.io/max-body")
}

async fn run_call(
    app: Arc<WatchdogState>,
    received: &ReceivedCall,
    reader: Option<BodyReader>,
    token: DrainToken,
) -> Result<(http::response::Parts, ResponseStart), PlatformError> {
    let body = SharedMemoryBody::new(received.body.clone(), reader);
    let limit = app.config.instance_env.max_body_bytes;
    // The declared length alone may be above the limit, so nothing has to be read.
    if let Some(limit) = limit.filter(|limit| body.size_hint().lower() > *limit as u64) {
        return Err(body_too_large(limit));
    }
    let mut request = message::http_request(received, body)?;
    if received.caller.function.is_some() {
        message::set_time_limit(request.headers_mut(), app.config.exec_timeout); // as the gateway does for its calls
    }
    response::begin_response(
        handle_request(app, request, BusyCount::default().begin_request(), token).await,
    )
    .await
}
