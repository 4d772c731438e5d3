//! The worker's side: accepts connections, and passes each stream to a handler.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;
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
use crate::identity::{PeerIdentity, PeerRefusal, RefusalReason, Trust};

/// A call that a worker received.
#[derive(Debug)]
pub struct ServedCall {
    /// The request as HTTP has it.
    pub request: Request<StreamBody<RequestOpening>>,
    /// Opening of the request.
    pub opening: RequestOpening,
    /// Identity of the caller.
    pub peer: Arc<PeerIdentity>,
    /// Address of the caller.
    pub remote_addr: SocketAddr,
    /// Received in a first flight, before the handshake was complete.
    pub early: bool,
}

/// Trust and handler of a worker.
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

/// Refused peers, for logs and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusalStats {
    /// Number of refused peers.
    pub count: u64,
    /// Numbers by reason, whose sum is the count.
    pub by_reason: BTreeMap<&'static str, u64>,
    /// Address of the last one, and the reason.
    pub last: String,
}

impl RefusalStats {
    /// Counts a refused peer.
    pub fn record(&mut self, from: &dyn Display, reason: RefusalReason, why: &dyn Display) {
        self.count += 1;
        *self.by_reason.entry(reason.name()).or_default() += 1;
        self.last = format!("{from}: {why}");
    }
}

/// State of the server, which its connections watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServingStage {
    /// Serving with the trust of this number.
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
    /// Creates a server for callers that `trust` admits.
    pub fn new(trust: Trust, handler: H) -> Rc<Self> {
        Rc::new(Self::create(trust, watch::Sender::default(), handler))
    }

    fn create(trust: Trust, refusals: watch::Sender<RefusalStats>, handler: H) -> Self {
        Self {
            trust: RefCell::new(trust),
            handler,
            changes: watch::Sender::new(ServingStage::Serving(0)),
            open_calls: Cell::new(0),
            call_ended: Notify::new(),
            limit: ConnectionLimit::default(),
            refusals,
        }
    }

    /// Creates a server that counts refused peers in `refusals`, which several servers may share.
    #[must_use]
    pub fn with_refusals(
        trust: Trust,
        refusals: watch::Sender<RefusalStats>,
        handler: H,
    ) -> Rc<Self> {
        Rc::new(Self::create(trust, refusals, handler))
    }

    /// Limits the number of connections from now on. Callers above it are refused and go elsewhere.
    /// The default is [`MAX_CONNECTIONS`](super::MAX_CONNECTIONS).
    pub fn set_max_connections(&self, max: usize) {
        self.limit.max.set(max);
    }

    /// Counts refused peers; changes with each of them.
    pub fn refusals(&self) -> watch::Receiver<RefusalStats> {
        self.refusals.subscribe()
    }

    /// Replaces the trust. Connections of peers that are not admitted any more, or whose root is not
    /// accepted any more, are closed.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.borrow_mut() = trust;
        self.changes.send_modify(|stage| {
            if let ServingStage::Serving(number) = stage {
                // Any change of the value wakes the connections, which then check their peers
                // again.
                *number += 1;
            }
        });
    }

    /// Accepts no more calls, and returns when the open ones have ended.
    pub async fn drain_calls(&self) {
        self.changes.send_replace(ServingStage::Stopping);
        loop {
            // Created before the count is read: an end in between is not missed.
            let call_ended = self.call_ended.notified();
            if self.open_calls.get() == 0 {
                return;
            }
            call_ended.await;
        }
    }

    /// Counts a failed handshake or a refused peer.
    pub(super) fn note_refusal(&self, from: SocketAddr, reason: RefusalReason, why: &dyn Display) {
        self.refusals
            .send_modify(|refused| refused.record(&from, reason, why));
    }

    /// Checks the peer's certificate: a session may be older than a revocation.
    pub(super) fn admit_peer(
        &self,
        connection: &Connection,
    ) -> Result<Arc<PeerIdentity>, PeerRefusal> {
        self.trust
            .borrow()
            .admit_peer(&peer_certificates(connection), SystemTime::now())
            .map(Arc::new)
    }

    /// Checks the peer of an open connection again: the roots may be others.
    pub(super) fn readmit_peer(&self, connection: &Connection) -> Result<(), PeerRefusal> {
        self.trust
            .borrow()
            .readmit_peer(&peer_certificates(connection), SystemTime::now())
            .map(drop)
    }

    /// Serves one call, from the opening of its stream to its end.
    pub(super) async fn serve_call(
        self: Rc<Self>,
        send: SendStream,
        receive: RecvStream,
        (peer, remote_addr): (Arc<PeerIdentity>, SocketAddr),
        early: bool,
    ) {
        let (mut out, mut incoming) = (
            StreamBodyWriter::new(send),
            StreamBody::<RequestOpening>::new(receive),
        );
        // Rejected before the call is read, so the caller can repeat it elsewhere.
        if *self.changes.borrow() == ServingStage::Stopping {
            return out.reset_with(close_code::NOT_RUN);
        }
        // Counted before the first await: `drain_calls` must see the call.
        let _one = OpenCallGuard::start(&self);
        let call = match read_request(&mut incoming).await {
            Ok((request, opening)) => ServedCall {
                request: request.map(|()| incoming),
                opening,
                peer,
                remote_addr,
                early,
            },
            Err(_) => return out.reset_with(close_code::PROTOCOL_FAULT),
        };
        // Resolves when the caller resets or stops the stream, while the handler runs.
        let cancelled = out.stream().stopped();
        let answer = tokio::select! {
            answer = (self.handler)(call) => answer,
            // the caller cancelled: dropping the handler's future stops its work
            _ = cancelled => return,
        };
        if send_response(&mut out, answer).await.is_ok() {
            // counts as open until everything is acknowledged: `drain_calls` waits for it
            let _ = out.stream().stopped().await;
        }
    }
}

/// Counts a call as open until it is dropped.
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
    // the closest version: streams and trailers, but no upgrade
    *request.version_mut() = http::Version::HTTP_2;
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
    // Handlers of the platform mark their own responses; tenants cannot set extensions.
    if let Some(given_opening) = head.extensions.get::<ResponseOpening>() {
        (opening.is_platform, opening.reason_number) =
            (given_opening.is_platform, given_opening.reason_number);
    }
    let mut first = BytesMut::with_capacity(512);
    http_heads::write_response_head(&opening, &head.headers, &mut first)?;
    out.send_body(first, body, total != UNKNOWN_LENGTH).await
}
