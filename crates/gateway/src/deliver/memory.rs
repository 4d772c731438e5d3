//! The path `shm`: a request goes to an instance through the memory of its chain, and its answer comes back there.
//!
//! This thread is a party of every domain of the node ([`Domains`]). The request's head and body are written once, into a
//! slot; the answer's body is sent to the caller out of the slot in which the function wrote it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use nearpath_domain::post::Settings;
use nearpath_domain::post::polled::Post;
use nearpath_domain::trace::{TRACEPARENT, Trace};
use nearpath_domain::{CallError, Reply, To, clock};
use nearpath_path::{self as path, Facts, Path};
use nearpath_types::{PlatformError, Reason};
use tokio::sync::mpsc::UnboundedReceiver;

use super::attempt::{Attempt, broken, too_late, within};
use super::source::Source;
use crate::COMPONENT;
use crate::call::{Call, Upload};
use crate::lane::Lane;
use crate::refusal::X_OPENFAAS_INTERNAL;
use crate::route::Endpoint;

/// Largest request body that is collected to go through memory; larger ones and those of unknown length are streamed.
const LARGEST: u64 = 1 << 20;

/// The domains in which this thread is a party, by name.
#[derive(Default)]
pub(crate) struct Domains(RefCell<HashMap<String, Post>>);

impl Domains {
    /// The party that may call an instance of the call's function.
    fn post(&self, call: &Call) -> Option<Post> {
        self.0.borrow().get(call.route.domain.as_deref()?).cloned()
    }
}

/// Joins each domain whose socket comes, for as long as the node gives any.
pub(crate) async fn join_all(lane: Rc<Lane>, mut sockets: UnboundedReceiver<OwnedFd>) {
    while let Some(socket) = sockets.recv().await {
        tokio::task::spawn_local(join(lane.clone(), socket));
    }
}

async fn join(lane: Rc<Lane>, socket: OwnedFd) {
    match Post::join(socket, Settings { serves: false, ..Settings::default() }).await {
        Ok((post, driver)) => {
            let name = post.place().domain.clone();
            lane.domains.0.borrow_mut().insert(name.clone(), post);
            let ended = driver.await;
            lane.domains.0.borrow_mut().remove(&name);
            tracing::debug!(domain = name, ?ended, "left a domain");
        }
        Err(error) => tracing::warn!(%error, "cannot join a domain; its functions are called over HTTP"),
    }
}

/// Decides for one instance; the party when the way through memory is open.
pub(super) fn way(call: &mut Call, endpoint: &Endpoint) -> Option<Post> {
    let post = call.lane.domains.post(call);
    let known = post.as_ref().filter(|post| post.reaches(endpoint.id));
    let facts = Facts {
        edge: path::Edge {
            same_node: true,
            callee_in_domain: call.route.domain.is_some(),
            same_domain: true,
            caller_is_party: post.is_some(),
            callee_is_party: known.is_some(),
        },
        call: path::Call { upgrade: call.asked.upgrade, grpc: call.asked.grpc, streams: streams(call) },
    };
    let choice = path::choose(&facts);
    call.record.went(choice);
    known.filter(|_| choice.path == Path::Shm).cloned()
}

fn streams(call: &Call) -> bool {
    let size = call.request.as_ref().map(|request| request.body().size_hint());
    size.is_none_or(|size| size.exact().is_none_or(|bytes| bytes > LARGEST)) || call.asked.stream
}

/// Sends the call's request and waits for its answer.
///
/// # Errors
/// As [`super::attempt::attempt`]; [`Attempt::Unsent`] leaves the request whole for another path.
pub(super) async fn attempt(call: &mut Call, endpoint: &Arc<Endpoint>, post: Post) -> Result<Attempt, PlatformError> {
    let request = call.request.take().expect("an unsent request is put back");
    let (head, body) = request.into_parts();
    let collected = within(&call.clock, call.admitted, call.flow.as_ref(), collect(body)).await;
    let body = match collected {
        Ok(Ok(body)) => body,
        Ok(Err(())) => return Err(broken(call, endpoint, None)),
        Err(reason) => return Err(too_late(call, endpoint, reason)),
    };
    let asked = {
        let fields = fields(&head);
        let left = call.clock.deadline().saturating_duration_since(Instant::now());
        let deadline = clock::within(left);
        let (trace, span) = traced(&head);
        let request = nearpath_domain::Request { fields: &fields, body: body.clone(), deadline, trace, span };
        post.call(To::Instance(endpoint.id), &request)
    };
    let answer = match asked {
        Ok(answer) => answer,
        Err(unsent) => {
            let (upload, flow) = Upload::whole(body);
            (call.request, call.flow) = (Some(Request::from_parts(head, upload)), flow);
            return Ok(Attempt::Unsent(unsent.to_string()));
        }
    };
    match within(&call.clock, call.admitted, call.flow.as_ref(), answer).await {
        Ok(Ok(reply)) => Ok(Attempt::Answered(response(reply), None)),
        Ok(Err(CallError::Timeout)) => Err(too_late(call, endpoint, Reason::TotalTimeout)),
        Ok(Err(error)) => Err(lost(call, endpoint, error)),
        Err(reason) => Err(too_late(call, endpoint, reason)),
    }
}

/// The whole body. What went wrong is in the call's flow.
async fn collect(mut body: Upload) -> Result<Bytes, ()> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(drop)?.into_data() {
            if body.is_end_stream() && whole.is_empty() {
                return Ok(data); // most come in one piece
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}

fn fields(head: &http::request::Parts) -> Vec<(&str, &[u8])> {
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(head.headers.len() + 2);
    fields.push((":method", head.method.as_str().as_bytes()));
    fields.push((":path", head.uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes()));
    fields.extend(head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())));
    fields
}

/// What the envelope says of the request's trace; its `traceparent` goes along as a field too.
fn traced(head: &http::request::Parts) -> ([u8; 16], [u8; 8]) {
    let told = head.headers.get(TRACEPARENT).and_then(|text| Trace::parse(text.as_bytes()));
    told.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

/// The answer as HTTP. Fields that HTTP does not know are left out: who wrote them may be hostile.
fn response(reply: Reply) -> Response<Source> {
    let mut response = Response::new(());
    *response.status_mut() = match reply.status {
        0 => StatusCode::OK,
        status => StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    for field in reply.fields().flatten().filter(|field| !field.name.starts_with(':')) {
        let (name, value) = (HeaderName::from_bytes(field.name.as_bytes()), HeaderValue::from_bytes(field.value));
        if let (Ok(name), Ok(value)) = (name, value) {
            response.headers_mut().append(name, value);
        }
    }
    if reply.platform {
        response.headers_mut().insert(X_OPENFAAS_INTERNAL, HeaderValue::from_static("function"));
    }
    response.map(|()| Source::Memory(reply.body))
}

fn lost(call: &Call, endpoint: &Endpoint, error: CallError) -> PlatformError {
    let message = format!("instance {} of {}: {error}", endpoint.id, call.function.name);
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}
