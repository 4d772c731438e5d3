//! The requests of one client's connection, and the responses that keep it busy.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::ALT_SVC;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_types::Reason;
use nearpath_wire::BoxError;

use super::conn_state::{Busy, Life};
use super::stream_resets::{Resets, Verdict};
use crate::context::WorkerContext;
use crate::deliver::Content;
use crate::pipeline;
use crate::record::Completion;
use crate::request::{Arriving, Peer};

/// One connection's requests.
pub(super) struct Visit {
    pub(super) lane: Rc<WorkerContext>,
    pub(super) peer: Rc<Peer>,
    pub(super) life: Arc<Life>,
    /// Where else the same is served.
    pub(super) alt_svc: Option<HeaderValue>,
    pub(super) resets: Rc<Resets>,
}

impl Visit {
    /// Says where else the same is served.
    pub(super) fn advertise(&self, headers: &mut HeaderMap) {
        advertise(headers, self.alt_svc.clone());
    }

    /// Looks at the request at once, so that the future need not hold it.
    pub(super) fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Reply>, Infallible>> + use<> {
        let busy = self.life.begin(request.body().is_end_stream());
        let begun = pipeline::begin(&self.lane, &self.peer, request.map(Arriving::Http));
        let alt_svc = self.alt_svc.clone();
        async move {
            let mut response = pipeline::answer(begun).await;
            advertise(response.headers_mut(), alt_svc);
            Ok(response.map(|content| Reply::new(content, busy)))
        }
    }

    pub(super) fn answer_stream(
        self: &Rc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Reply>, Infallible>> + use<> {
        let stream = Stream::new(self);
        let answer = self.answer(request);
        async move {
            let response = answer.await;
            stream.answered();
            response
        }
    }

    /// Drives the connection until it ends; once drained, it takes no new requests.
    pub(super) async fn to_its_end<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        shut: impl Fn(Pin<&mut C>),
    ) -> C::Output {
        let mut draining = false;
        poll_fn(|cx| {
            if !draining && self.life.is_draining() {
                draining = true;
                shut(connection.as_mut());
            }
            connection.as_mut().poll(cx)
        })
        .await
    }

    /// A head that hyper could not read is answered already ([`super::http1_errors`]); here it is recorded.
    pub(super) fn judged(&self, served: hyper::Result<()>, protocol: &'static str) -> Result<(), BoxError> {
        let Err(error) = served else { return Ok(()) };
        if error.is_parse() {
            let reason = if error.is_parse_too_large() { Reason::HeadersTooLarge } else { Reason::BadRequest };
            Completion::unread(&self.lane.recorder, protocol).refused(reason);
        }
        Err(error.into())
    }
}

fn advertise(headers: &mut HeaderMap, alt_svc: Option<HeaderValue>) {
    if let Some(alt_svc) = alt_svc {
        headers.insert(ALT_SVC, alt_svc);
    }
}

/// One request of HTTP/2 or 3: dropped unanswered, it was reset.
pub(super) struct Stream {
    visit: Rc<Visit>,
    answered: Cell<bool>,
}

impl Stream {
    pub(super) fn new(visit: &Rc<Visit>) -> Self {
        Self { visit: visit.clone(), answered: Cell::new(false) }
    }

    /// Its answer is there.
    pub(super) fn answered(&self) {
        self.answered.set(true);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Visit { resets, life, lane, .. } = &*self.visit;
        if self.answered.get() {
            return resets.answered();
        }
        match resets.abandoned(lane.now()) {
            Verdict::Fine => {}
            Verdict::Leave => life.drain(),
            Verdict::Cut => life.cut(),
        }
    }
}

/// An answer's body, which keeps the connection busy until its end.
pub(super) struct Reply {
    content: Content,
    busy: Busy,
}

impl Reply {
    pub(super) fn new(content: Content, mut busy: Busy) -> Self {
        busy.gives();
        Self { content, busy }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { content, busy } = self.get_mut();
        let polled = Pin::new(content).poll_frame(cx);
        match polled {
            Poll::Ready(_) => busy.gives(),
            Poll::Pending => busy.waits(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
