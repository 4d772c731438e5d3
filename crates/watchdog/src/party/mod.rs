//! The watchdog as a party of its function's domain, for code that speaks HTTP only.
//!
//! It joins once the instance is ready, so that no start waits for it, and *stands in*: the node gives it calls only while
//! no party of the tenant's own takes them, so code that joins with an SDK is found by its own words and needs no setting
//! (`docs/adr/0014-watchdog-party.md`). A call becomes the request that the instance's HTTP port would have made of it and
//! walks the same way, [`crate::serve::answer`]; limits, metrics and the drain know no difference.

mod reply;
mod words;

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

use crate::arrival::Parts;
use crate::drain::{Open, Watch};
use crate::logs::say;
use crate::patience::Busy;
use crate::refusal::error;
use crate::serve::{App, answer};

use reply::Beginning;
pub(crate) use words::{fields, response, tell_limit, traced};

/// The party, once there is one. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Membership(Rc<OnceCell<AsyncEndpoint>>);

impl Membership {
    /// The party, if the watchdog is one by now.
    pub(crate) fn post(&self) -> Option<&AsyncEndpoint> {
        self.0.get()
    }
}

/// Joins through the door at `path` and takes calls until the node hangs up. Whoever is no party is called over HTTP.
pub(crate) async fn join(app: Arc<App>, membership: Membership, path: std::path::PathBuf, watch: Watch) {
    if let Err(fault) = take_part(app, &membership, &path, watch).await {
        say!("calls go over HTTP, not through the chain's memory: {fault}");
    }
}

async fn take_part(app: Arc<App>, membership: &Membership, path: &Path, watch: Watch) -> Result<(), JoinError> {
    let settings = EndpointSettings { is_standby: true, stream_bodies: true, ..EndpointSettings::default() };
    let (post, driver) = AsyncEndpoint::dial(path, settings).await?;
    spawn_local(driver);
    post.announce_ready()?;
    let post = membership.0.get_or_init(|| post);
    serve(app, post, watch).await;
    Ok(())
}

/// Takes calls. Once the instance is closing, those that still come are told so.
async fn serve(app: Arc<App>, post: &AsyncEndpoint, watch: Watch) {
    let mut watch = Some(watch);
    loop {
        let received = match &mut watch {
            Some(open) => tokio::select! {
                received = post.next_incoming() => received,
                () = open.closed() => {
                    watch = None; // the drain waits for those who hold it
                    continue;
                }
            },
            None => post.next_incoming().await,
        };
        match (received, &watch) {
            (None, _) => return,
            (Some(received), Some(watch)) => drop(spawn_local(call(Arc::clone(&app), received, watch.open.clone()))),
            (Some(received), None) => {
                received.send_response(words::refusal(&error(Reason::Draining, "the instance stops")))
            }
        }
    }
}

/// Answers one call, or gives it up when its caller does. An event has nobody who waits: its answer is let go.
async fn call(app: Arc<App>, mut received: ReceivedCall, open: Open) {
    let rest = received.take_reader();
    let begun = tokio::select! {
        biased;
        begun = walk(app, &received, rest, open) => begun,
        () = received.given_up(), if !received.is_event => {
            return received.send_response(CallResponse::platform_error(Reason::CallerGone, "the caller has gone\n"));
        }
    };
    match begun {
        Ok((head, beginning)) => reply::send(received, head, beginning).await,
        Err(fault) => received.send_response(words::refusal(&fault)),
    }
}

/// What a caller is told whose body is larger than its callee takes.
pub(crate) fn too_large(limit: usize) -> PlatformError {
    let text = format!("the request's body is larger than {limit} bytes");
    error(Reason::BodyTooLarge, text).governed_by("nearpath.io/max-body")
}

async fn walk(
    app: Arc<App>,
    received: &ReceivedCall,
    rest: Option<BodyReader>,
    open: Open,
) -> Result<(http::response::Parts, Beginning), PlatformError> {
    let body = Parts::new(received.body.clone(), rest);
    let limit = app.config.premises.max_body;
    if let Some(limit) = limit.filter(|limit| body.size_hint().lower() > *limit as u64) {
        return Err(too_large(limit));
    }
    let mut request = words::request(received, body)?;
    if received.caller.function.is_some() {
        words::tell_limit(request.headers_mut(), app.config.exec_timeout); // as the gateway tells it
    }
    reply::begin(answer(app, request, Busy::default().enter(), open).await).await
}
