//! A call straight to an instance of its callee, over QUIC, and what it means when it does not come to an answer.
//!
//! What provably did not run goes to the gateway, which queues, wakes and tries others; anything else is never repeated. A body that is
//! held whole goes in the first flight where there is a session; one that is still coming waits for the handshake.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, Uri, request};
use http_body::{Frame, SizeHint};
use nearpath_types::policy::ZeroRtt;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::quic::{Answer, CallError, Early, Line, Terms};
use tokio::time::timeout;

use super::call_target::{CallTarget, X_TIMEOUT};
use super::identity::Asked;
use super::{Pickup, Sent};
use crate::body::Body;
use crate::edges::{Callee, Counted};
use crate::inbound::Inbound;
use crate::refusal::{self, error};
use crate::{hop, party};

/// What came of one try. With the body, where it was not sent.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, for a moment")]
pub(super) enum Tried<B> {
    Answered(Response<Answer>),
    Unseen(B),
    Lost(CallError),
}

/// A body, and how it is sent.
pub(super) trait Sendable: Sized {
    /// One try.
    fn send(self, line: &Line, head: &request::Parts, terms: Terms, early: Early) -> impl Future<Output = Tried<Self>>;
}

/// The whole of one call.
pub(super) async fn call<B: Sendable>(
    pickup: &Pickup,
    callee: &Callee,
    asked: &Asked,
    wish: &CallTarget,
    request: Request<B>,
) -> Result<Sent<B>, PlatformError> {
    let mut counted = callee.count();
    let line = match within(left(asked, wish), pickup.edges.line(callee)).await {
        Some(Some(line)) => line,
        Some(None) => {
            counted.elsewhere();
            return Ok(Sent::Not(later(request, asked, wish)));
        }
        None => return Err(late(wish)),
    };
    let (mut head, body) = request.into_parts();
    let before = readdress(&mut head, asked, wish, pickup);
    let left = left(asked, wish);
    let terms = Terms { patience: left, trace: party::traced(&head.headers) };
    let early = early(callee.zero_rtt(), &head.method);
    let tried = within(left, body.send(&line, &head, terms, early)).await;
    head.uri = before;
    match tried {
        None => Err(late(wish)),
        Some(Tried::Unseen(body)) => {
            counted.elsewhere();
            Ok(Sent::Not(later(Request::from_parts(head, body), asked, wish)))
        }
        Some(Tried::Answered(response)) => {
            counted.answered(response.status().as_u16());
            Ok(Sent::Answered(answer(response, counted, asked, pickup)))
        }
        Some(Tried::Lost(CallError::Head(fault))) => {
            Err(error(Reason::HeadersTooLarge, format!("the request's header fields: {fault}")))
        }
        Some(Tried::Lost(fault)) => Err(lost(wish, &fault.to_string())),
    }
}

/// How long its caller still waits, if it said.
fn left(asked: &Asked, wish: &CallTarget) -> Option<Duration> {
    wish.timeout.map(|limit| limit.saturating_sub(asked.took()))
}

/// A request for the gateway, which would begin to count anew.
fn later<B>(mut request: Request<B>, asked: &Asked, wish: &CallTarget) -> Request<B> {
    if let Some(left) = left(asked, wish) {
        let left = format!("{}ms", left.as_millis().max(1));
        request.headers_mut().insert(X_TIMEOUT, HeaderValue::from_str(&left).expect("a number and two letters"));
    }
    request
}

/// Gives the head the function's own path; returns what was there.
fn readdress(head: &mut request::Parts, asked: &Asked, wish: &CallTarget, pickup: &Pickup) -> Uri {
    let authority = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    asked.to_function(&mut head.headers, authority, pickup);
    let path = wish.path(head.uri.path_and_query().map_or("", PathAndQuery::as_str));
    let path = Uri::try_from(path).expect("the end of a URI's path is a path");
    std::mem::replace(&mut head.uri, path)
}

/// `contract/quic.md`, "The first flight": what is sent again is not run again, so any call may go there, unless its function asks for less.
fn early(setting: ZeroRtt, method: &Method) -> Early {
    match setting {
        ZeroRtt::Always => Early::Allowed,
        ZeroRtt::Idempotent if method.is_idempotent() => Early::Allowed,
        ZeroRtt::Idempotent | ZeroRtt::Never => Early::Never,
    }
}

async fn within<F: Future>(limit: Option<Duration>, call: F) -> Option<F::Output> {
    match limit {
        Some(limit) => timeout(limit, call).await.ok(),
        None => Some(call.await),
    }
}

impl Sendable for Bytes {
    async fn send(self, line: &Line, head: &request::Parts, terms: Terms, early: Early) -> Tried<Self> {
        match line.call_whole_of(head, self.clone(), early, terms).await {
            Ok(response) if did_not_run(&response) => Tried::Unseen(self),
            Ok(response) => Tried::Answered(response),
            Err(CallError::Unseen(_)) => Tried::Unseen(self),
            Err(fault) => Tried::Lost(fault),
        }
    }
}

impl Sendable for Inbound {
    async fn send(self, line: &Line, head: &request::Parts, terms: Terms, _: Early) -> Tried<Self> {
        if line.settled().await.is_err() {
            return Tried::Unseen(self);
        }
        match line.call_of(head, self, terms).await {
            Ok(response) => Tried::Answered(response),
            Err((CallError::Unseen(_), Some(body))) => Tried::Unseen(body),
            Err((fault, _)) => Tried::Lost(fault),
        }
    }
}

/// Whether the callee's platform says that its code has not seen the call, because it is full or stops.
fn did_not_run(response: &Response<Answer>) -> bool {
    response.body().answered().refusal().is_some_and(Reason::did_not_run)
}

fn answer(response: Response<Answer>, counted: Counted, asked: &Asked, pickup: &Pickup) -> Response<Body> {
    let platform = response.body().answered().platform;
    let mut response = response.map(|body| Body::stream(Open { body, _until_its_end: counted }));
    let headers = response.headers_mut();
    hop::strip(headers, false);
    if !asked.head {
        headers.remove(CONTENT_LENGTH); // who wrote it may be wrong; the body's length is known
    }
    if platform {
        headers.entry(refusal::INTERNAL).or_insert(HeaderValue::from_static("function"));
    }
    asked.to_caller(headers, pickup, "quic");
    response
}

/// The body of an answer, whose call is open as long as there is more of it.
#[derive(Debug)]
struct Open {
    body: Answer,
    _until_its_end: Counted,
}

impl http_body::Body for Open {
    type Data = Bytes;
    type Error = <Answer as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn late(wish: &CallTarget) -> PlatformError {
    let text = format!("the instance of {} had not answered when the deadline passed", wish.function);
    error(Reason::TotalTimeout, text).governed_by("X-Timeout")
}

fn lost(wish: &CallTarget, why: &str) -> PlatformError {
    error(Reason::InstanceDied, format!("an instance of {}: {why}", wish.function))
}
