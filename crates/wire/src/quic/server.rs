//! The worker's side: takes connections, and hands each stream to a handler.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::{Notify, watch};

use super::body_writer::{self, StreamBodyWriter};
use super::close_code;
use super::connection_limit::ConnectionLimit;
use super::dialer::peer_certificates;
use super::frame::{RequestOpening, ResponseOpening, UNKNOWN_LENGTH};
use super::http_heads;
use super::stream_body::{StreamBody, StreamBodyError};
use crate::BoxError;
use crate::identity::{PeerIdentity, PeerRefusal, Trust};

/// A call that came.
#[derive(Debug)]
pub struct ServedCall {
    /// As HTTP has it.
    pub request: Request<StreamBody<RequestOpening>>,
    /// What was said beside HTTP's head.
    pub opening: RequestOpening,
    /// Who calls.
    pub peer: Arc<PeerIdentity>,
    /// It came in a first flight, before the handshake was complete.
    pub early: bool,
}

/// Who may call, and what answers.
#[derive(Debug)]
pub struct CallServer<H> {
    trust: RefCell<Trust>,
    handler: H,
    /// Changes with the trust, and when the server stops.
    pub(super) changes: watch::Sender<ServingStage>,
    open_calls: Cell<usize>,
    call_ended: Notify,
    pub(super) limit: ConnectionLimit,
    refusals: watch::Sender<RefusalStats>,
}

/// Who was not let in: for whoever writes it down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusalStats {
    /// How many so far.
    pub count: u64,
    /// Who the last was, and why.
    pub last: String,
}

impl RefusalStats {
    pub(crate) fn record(&mut self, from: SocketAddr, why: &dyn std::fmt::Display) {
        *self = Self {
            count: self.count + 1,
            last: format!("{from}: {why}"),
        };
    }
}

/// What connections are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServingStage {
    /// Whom to admit, by its number.
    Serving(u64),
    Stopping,
}

impl<H, F, B> CallServer<H>
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    /// Answers whom `trust` admits.
    pub fn new(trust: Trust, handler: H) -> Rc<Self> {
        let (trust, changes) = (
            RefCell::new(trust),
            watch::Sender::new(ServingStage::Serving(0)),
        );
        let (room, refused) = (ConnectionLimit::default(), watch::Sender::default());
        Rc::new(Self {
            trust,
            handler,
            changes,
            open_calls: Cell::new(0),
            call_ended: Notify::new(),
            limit: room,
            refusals: refused,
        })
    }

    /// Takes so many connections at a time from now on; callers beyond that are told, and go elsewhere. [`MAX_CONNECTIONS`](super::MAX_CONNECTIONS) at first.
    pub fn set_max_connections(&self, max: usize) {
        self.limit.max.set(max);
    }

    /// Who was not let in; changes with each.
    pub fn refusals(&self) -> watch::Receiver<RefusalStats> {
        self.refusals.subscribe()
    }

    /// Admits others from now on. Connections of those who are not admitted any more are closed.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.borrow_mut() = trust;
        self.changes.send_modify(|stage| {
            if let ServingStage::Serving(number) = stage {
                *number += 1;
            }
        });
    }

    /// Takes no more calls; done when those that are open have ended.
    pub async fn drain_calls(&self) {
        self.changes.send_replace(ServingStage::Stopping);
        loop {
            let call_ended = self.call_ended.notified();
            if self.open_calls.get() == 0 {
                return;
            }
            call_ended.await;
        }
    }

    /// A handshake that came to nothing, or a peer that is not wanted.
    pub(super) fn note_refusal(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        self.refusals
            .send_modify(|refused| refused.record(from, why));
    }

    /// Looks at what the peer showed: a session may be older than what the controller took back.
    pub(super) fn admit_peer(
        &self,
        connection: &Connection,
    ) -> Result<Arc<PeerIdentity>, PeerRefusal> {
        self.trust
            .borrow()
            .admit_peer(&peer_certificates(connection), SystemTime::now())
            .map(Arc::new)
    }

    /// One call, from its stream's opening to its end.
    pub(super) async fn serve_call(
        self: Rc<Self>,
        send: SendStream,
        receive: RecvStream,
        peer: Arc<PeerIdentity>,
        early: bool,
    ) {
        let (mut out, mut incoming) = (
            StreamBodyWriter::new(send),
            StreamBody::<RequestOpening>::new(receive),
        );
        if *self.changes.borrow() == ServingStage::Stopping {
            return out.reset_with(close_code::NOT_RUN);
        }
        let _one = OpenCallGuard::start(&self);
        let call = match read_request(&mut incoming).await {
            Ok((request, asked)) => ServedCall {
                request: request.map(|()| incoming),
                opening: asked,
                peer,
                early,
            },
            Err(_) => return out.reset_with(close_code::PROTOCOL_FAULT),
        };
        let cancelled = out.stream().stopped();
        let answer = tokio::select! {
            answer = (self.handler)(call) => answer,
            _ = cancelled => return, // nobody waits: the handler's work is dropped
        };
        if send_response(&mut out, answer).await.is_ok() {
            let _ = out.stream().stopped().await; // the caller has all of it: only then may the connection end
        }
    }
}

/// One call that is under way.
struct OpenCallGuard<'a, H>(&'a CallServer<H>);

impl<'a, H> OpenCallGuard<'a, H> {
    fn start(server: &'a CallServer<H>) -> Self {
        server.open_calls.set(server.open_calls.get() + 1);
        Self(server)
    }
}

impl<H> Drop for OpenCallGuard<'_, H> {
    fn drop(&mut self) {
        self.0.open_calls.set(self.0.open_calls.get() - 1);
        self.0.call_ended.notify_waiters();
    }
}

async fn read_request(
    incoming: &mut StreamBody<RequestOpening>,
) -> Result<(Request<()>, RequestOpening), StreamBodyError> {
    let (opening, head) = incoming.read_opening().await?;
    let mut request = http_heads::parse_request(&head)?;
    *request.version_mut() = http::Version::HTTP_2; // the nearest that HTTP has: streams, trailers, no upgrade
    Ok((request, opening))
}

async fn send_response<B>(
    out: &mut StreamBodyWriter,
    answer: Response<B>,
) -> Result<(), body_writer::BodySendError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (head, body) = answer.into_parts();
    let total = body_writer::announced_length(&body, &head.headers);
    let mut opening = ResponseOpening {
        is_platform: false,
        status: head.status.as_u16(),
        reason_number: 0,
        body_length: total,
    };
    if let Some(given_opening) = head.extensions.get::<ResponseOpening>() {
        (opening.is_platform, opening.reason_number) =
            (given_opening.is_platform, given_opening.reason_number);
    }
    let mut first = BytesMut::with_capacity(512);
    http_heads::write_response_head(&opening, &head.headers, &mut first)?;
    out.send_body(first, body, total != UNKNOWN_LENGTH).await
}
