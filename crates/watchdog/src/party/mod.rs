//! The watchdog as a party of its function's domain, for code that speaks HTTP only.
//!
//! It joins once the instance is ready, so that no start waits for it, and *stands in*: the node gives it calls only while
//! no party of the tenant's own takes them, so code that joins with an SDK is found by its own words and needs no setting
//! (`docs/adr/0014-watchdog-party.md`). A call becomes the request that the instance's HTTP port would have made of it and
//! walks the same way, [`crate::serve::answer`]; limits, metrics and the drain know no difference.

mod words;

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use nearpath_domain::Answer;
use nearpath_domain::post::polled::{Post, Received};
use nearpath_domain::post::{JoinError, Settings};
use nearpath_types::{PlatformError, Reason};
use tokio::task::spawn_local;

use crate::body::{Body, BoxError, DeadlinePassed};
use crate::listen::{Open, Watch};
use crate::logs::say;
use crate::patience::Busy;
use crate::refusal::error;
use crate::serve::{App, answer, is_endless};

pub(crate) use words::{fields, response};

/// Largest answer that is sent through memory; it is held whole.
const LARGEST: usize = 64 << 20;

/// The party, once there is one. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Membership(Rc<OnceCell<Post>>);

impl Membership {
    /// The party, if the watchdog is one by now.
    pub(crate) fn post(&self) -> Option<&Post> {
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
    let settings = Settings { stands_in: true, largest_body: LARGEST, ..Settings::default() };
    let (post, driver) = Post::dial(path, settings).await?;
    spawn_local(driver);
    post.ready()?;
    let post = membership.0.get_or_init(|| post);
    serve(app, post, watch).await;
    Ok(())
}

/// Takes calls. Once the instance is closing, those that still come are told so.
async fn serve(app: Arc<App>, post: &Post, watch: Watch) {
    let mut watch = Some(watch);
    loop {
        let received = match &mut watch {
            Some(open) => tokio::select! {
                received = post.next() => received,
                () = open.closed() => {
                    watch = None; // the drain waits for those who hold it
                    continue;
                }
            },
            None => post.next().await,
        };
        match (received, &watch) {
            (None, _) => return,
            (Some(received), Some(watch)) => drop(spawn_local(call(Arc::clone(&app), received, watch.open.clone()))),
            (Some(received), None) => received.answer(words::refusal(&error(Reason::Draining, "the instance stops"))),
        }
    }
}

/// Answers one call, or gives it up when its caller does.
async fn call(app: Arc<App>, received: Received, open: Open) {
    let answer = tokio::select! {
        biased;
        answer = walk(app, &received, open) => answer,
        () = received.given_up() => Answer::platform(Reason::CallerGone.status(), "the caller has gone\n"),
    };
    received.answer(answer);
}

async fn walk(app: Arc<App>, received: &Received, open: Open) -> Answer {
    if let Some(limit) = app.config.premises.max_body.filter(|limit| received.body.len() > *limit) {
        let text = format!("the request's body is larger than {limit} bytes");
        return words::refusal(&error(Reason::BodyTooLarge, text).governed_by("nearpath.io/max-body"));
    }
    let request = match words::request(received) {
        Ok(request) => request,
        Err(fault) => return words::refusal(&fault),
    };
    let (head, body) = answer(app, request, Busy::default().enter(), open).await.into_parts();
    if is_endless(&head.headers) {
        let text = "the function answers with a stream, which needs HTTP: ask for one with Accept: text/event-stream";
        return words::refusal(&error(Reason::FunctionFailed, text));
    }
    match whole(body).await {
        Ok(body) => words::answer(head, body),
        Err(fault) => words::refusal(&fault),
    }
}

/// The seam for answers in parts: here an answer becomes one piece.
async fn whole(body: Body) -> Result<bytes::Bytes, PlatformError> {
    let collected = Limited::new(body, LARGEST).collect().await;
    collected.map(|all| all.to_bytes()).map_err(|fault| cut(&fault))
}

fn cut(fault: &BoxError) -> PlatformError {
    if fault.is::<LengthLimitError>() {
        return error(Reason::FunctionFailed, format!("the answer is larger than {LARGEST} bytes"));
    }
    if fault.is::<DeadlinePassed>() {
        return error(Reason::ExecTimeout, "the answer was not complete in time").governed_by("exec_timeout");
    }
    error(Reason::FunctionFailed, format!("the answer broke off: {fault}"))
}
