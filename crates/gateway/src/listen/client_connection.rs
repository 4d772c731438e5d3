//! Requests of one client connection, and the responses that keep it busy.

use std::cell::{Cell, RefCell};
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
use nearpath_wire::{BoxError, not_run_header};

use super::conn_state::{ActiveRequest, ConnState};
use super::stream_resets::{ResetBudget, ResetVerdict};
use crate::context::{ServiceGuard, WorkerContext};
use crate::deliver::ResponseContent;
use crate::pipeline::{self, PlatformRefusal, RoutedRequest};
use crate::record::CompletionRecord;
use crate::request::{CallerBody, ListenerZone, PeerInfo};

/// Context of a client connection for its requests.
pub(super) struct ClientConnection {
    pub(super) worker: Rc<WorkerContext>,
    pub(super) peer: Rc<PeerInfo>,
    pub(super) state: Arc<ConnState>,
    /// Alternative service for `Alt-Svc`.
    pub(super) alt_svc: Option<HeaderValue>,
    pub(super) reset_budget: Rc<ResetBudget>,
    /// Set while the connection serves another node's view of this one.
    pub(super) service: RefCell<Option<ServiceGuard>>,
}

impl ClientConnection {
    /// Adds the fields that belong to this connection, to the response of a plain request.
    pub(super) fn complete_head<B>(&self, response: &mut Response<B>) {
        insert_alt_svc(response.headers_mut(), self.alt_svc.clone());
        if self.peer.zone == ListenerZone::Node {
            declare_refusal(response);
        }
    }

    /// Routes the request at once, so that the future does not hold it.
    pub(super) fn answer_request(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<TrackedBody>, Infallible>> + use<> {
        // Not in the future: the head is complete now, and the guard also ends a request that
        // hyper never polls.
        let active = self.state.begin_request(request.body().is_end_stream());
        let request = self.state.unread_input.watch_request(request);
        let routed =
            pipeline::route_request(&self.worker, &self.peer, request.map(CallerBody::Http));
        self.leave_reserve(&routed);
        if self.peer.zone == ListenerZone::Node {
            self.note_service(matches!(routed, RoutedRequest::Admin { .. }));
        }
        let (alt_svc, unread) = (self.alt_svc.clone(), self.state.unread_input.clone());
        let is_for_node = self.peer.zone == ListenerZone::Node;
        async move {
            let mut response = pipeline::answer_request(routed).await;
            if unread.is_unread() {
                // hyper looks at the dropped body first: it reads a short rest, or announces with
                // the head that the connection closes.
                tokio::task::yield_now().await;
            }
            insert_alt_svc(response.headers_mut(), alt_svc);
            if is_for_node {
                declare_refusal(&mut response);
            }
            Ok(response.map(|content| TrackedBody::new(content, active)))
        }
    }

    /// Notes what a connection of another node is for. The drain does not wait for the state of this
    /// node, which never ends.
    fn note_service(&self, is_service: bool) {
        self.state.set_service(is_service);
        let guard = is_service.then(|| self.worker.count_service());
        self.service.replace(guard);
    }

    /// Ends a connection of the reserve after a refused call. Over HTTP/2 and HTTP/3, `Connection:
    /// close` does not exist, and the client would send every later call here.
    pub(super) fn leave_reserve(&self, routed: &RoutedRequest) {
        if self.peer.is_on_reserve && routed.closes_connection() {
            self.state.drain_connection();
        }
    }

    pub(super) fn answer_stream_request(
        self: &Rc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<TrackedBody>, Infallible>> + use<> {
        let stream = StreamGuard::new(self);
        let answer = self.answer_request(request);
        async move {
            let response = answer.await;
            stream.mark_answered();
            response
        }
    }

    /// Drives the connection until it ends. After the drain began, it takes no new requests.
    pub(super) async fn run_until_end<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        start_shutdown: impl Fn(Pin<&mut C>),
    ) -> C::Output {
        let mut is_draining = false;
        poll_fn(|cx| {
            if !is_draining && self.state.is_draining() {
                is_draining = true;
                start_shutdown(connection.as_mut());
            }
            connection.as_mut().poll(cx)
        })
        .await
    }

    /// Records a head that hyper could not parse. [`super::http1_errors`] has answered it.
    pub(super) fn record_parse_error(
        &self,
        served: hyper::Result<()>,
        protocol: &'static str,
    ) -> Result<(), BoxError> {
        let Err(error) = served else { return Ok(()) };
        if error.is_parse() {
            let reason = if error.is_parse_too_large() {
                Reason::HeadersTooLarge
            } else {
                Reason::BadRequest
            };
            CompletionRecord::start_unreadable(&self.worker.recorder, &self.peer, protocol)
                .mark_refused(reason);
        }
        Err(error.into())
    }
}

fn insert_alt_svc(headers: &mut HeaderMap, alt_svc: Option<HeaderValue>) {
    if let Some(alt_svc) = alt_svc {
        headers.insert(ALT_SVC, alt_svc);
    }
}

/// Tells another node whether the platform refused the request before it ran.
fn declare_refusal<B>(response: &mut Response<B>) {
    let refusal = response.extensions().get::<PlatformRefusal>();
    let not_run = refusal
        .map(|refusal| refusal.0)
        .filter(|reason| reason.did_not_run());
    not_run_header::set_not_run(response.headers_mut(), not_run);
}

/// Guard of one request over HTTP/2 or HTTP/3. Dropping it before the response counts as a reset.
pub(super) struct StreamGuard {
    connection: Rc<ClientConnection>,
    is_answered: Cell<bool>,
}

impl StreamGuard {
    pub(super) fn new(connection: &Rc<ClientConnection>) -> Self {
        Self {
            connection: connection.clone(),
            is_answered: Cell::new(false),
        }
    }

    /// Marks the request as answered.
    pub(super) fn mark_answered(&self) {
        self.is_answered.set(true);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let ClientConnection {
            reset_budget,
            state,
            worker,
            ..
        } = &*self.connection;
        if self.is_answered.get() {
            return reset_budget.note_answered();
        }
        match reset_budget.note_abandoned(worker.current_tick()) {
            ResetVerdict::Allowed => {}
            // GOAWAY first: an honest client with many deadlines only has to open another
            // connection.
            ResetVerdict::Drain => state.drain_connection(),
            ResetVerdict::Cut => state.cut_connection(),
        }
    }
}

/// Response body that keeps the connection busy until its end.
pub(super) struct TrackedBody {
    content: ResponseContent,
    active: ActiveRequest,
}

impl TrackedBody {
    pub(super) fn new(content: ResponseContent, mut active: ActiveRequest) -> Self {
        active.mark_untaken();
        Self { content, active }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { content, active } = self.get_mut();
        let polled = Pin::new(content).poll_frame(cx);
        match polled {
            // hyper asks for a frame only when it has room for it, so a poll means progress.
            Poll::Ready(_) => active.mark_untaken(),
            Poll::Pending => active.mark_taken(),
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
