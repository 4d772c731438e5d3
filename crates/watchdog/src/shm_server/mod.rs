//! The watchdog as a party of its function's domain, for code that speaks HTTP only.
//!
//! It joins once the instance is ready, so that no start waits for it, and *stands in*: the node gives it calls only while
//! no party of the tenant's own takes them, so code that joins with an SDK is found by its own words and needs no setting
//! (`docs/adr/0014-watchdog-party.md`). A call becomes the request that the instance's HTTP port would have made of it and
//! walks the same way, [`crate::serve::answer`]; limits, metrics and the drain know no difference.

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
use crate::logs::say;
use crate::serve::{WatchdogState, handle_request};
use crate::stream_timeouts::BusyCount;

pub(crate) use message::{http_response, request_fields, set_time_limit, trace_ids};
use response::ResponseStart;

/// The party, once there is one. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShmMembership(Rc<OnceCell<AsyncEndpoint>>);

impl ShmMembership {
    /// The party, if the watchdog is one by now.
    pub(crate) fn endpoint(&self) -> Option<&AsyncEndpoint> {
        self.0.get()
    }
}

/// Joins through the door at `path` and takes calls until the node hangs up. Whoever is no party is called over HTTP.
pub(crate) async fn join_domain(
    app: Arc<WatchdogState>,
    membership: ShmMembership,
    path: std::path::PathBuf,
    watch: CloseWatch,
) {
    if let Err(fault) = dial_and_serve(app, &membership, &path, watch).await {
        say!("calls go over HTTP, not through the chain's memory: {fault}");
    }
}

async fn dial_and_serve(
    app: Arc<WatchdogState>,
    membership: &ShmMembership,
    path: &Path,
    watch: CloseWatch,
) -> Result<(), JoinError> {
    let settings = EndpointSettings {
        is_standby: true,
        stream_bodies: true,
        ..EndpointSettings::default()
    };
    let (endpoint, driver) = AsyncEndpoint::dial(path, settings).await?;
    spawn_local(driver);
    endpoint.announce_ready()?;
    let endpoint = membership.0.get_or_init(|| endpoint);
    serve_calls(app, endpoint, watch).await;
    Ok(())
}

/// Takes calls. Once the instance is closing, those that still come are told so.
async fn serve_calls(app: Arc<WatchdogState>, endpoint: &AsyncEndpoint, watch: CloseWatch) {
    let mut watch = Some(watch);
    loop {
        let received = match &mut watch {
            Some(open) => tokio::select! {
                received = endpoint.next_incoming() => received,
                () = open.wait_close_requested() => {
                    watch = None; // the drain waits for those who hold it
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
            (Some(received), None) => received.send_response(message::error_call_response(
                &watchdog_error(Reason::Draining, "the instance stops"),
            )),
        }
    }
}

/// Answers one call, or gives it up when its caller does. An event has nobody who waits: its answer is let go.
async fn handle_call(app: Arc<WatchdogState>, mut received: ReceivedCall, token: DrainToken) {
    let reader = received.take_reader();
    let outcome = tokio::select! {
        biased;
        begun = run_call(app, &received, reader, token) => begun,
        () = received.given_up(), if !received.is_event => {
            return received.send_response(CallResponse::platform_error(Reason::CallerGone, "the caller has gone\n"));
        }
    };
    match outcome {
        Ok((head, beginning)) => response::send_response(received, head, beginning).await,
        Err(fault) => received.send_response(message::error_call_response(&fault)),
    }
}

/// What a caller is told whose body is larger than its callee takes.
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
    if let Some(limit) = limit.filter(|limit| body.size_hint().lower() > *limit as u64) {
        return Err(body_too_large(limit));
    }
    let mut request = message::http_request(received, body)?;
    if received.caller.function.is_some() {
        message::set_time_limit(request.headers_mut(), app.config.exec_timeout); // as the gateway tells it
    }
    response::begin_response(
        handle_request(app, request, BusyCount::default().begin_request(), token).await,
    )
    .await
}
