//! Bodies on their way through.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::HttpSession;
use super::backend::HttpBackend;
use super::cache_exchange::BodyCopy;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::UsedConnection;

/// Longest wait for a destination to ask for a body, as curl does it; it may know nothing of `100-continue`.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the client sends.
#[derive(Debug)]
pub(super) enum HttpRequestBody {
    /// Nothing.
    Empty,
    /// A body, once it is asked for.
    Body {
        body: Incoming,
        gate: Option<ContinueGate>,
        ledger: Rc<DestinationCounters>,
    },
}

/// Opens when the destination says `100 Continue`, or nothing for a while. When it answers without having asked, the body never flows, and the connection
/// ends with the answer.
#[derive(Debug)]
pub(super) struct ContinueGate {
    requested: oneshot::Receiver<()>,
    response_end: oneshot::Receiver<()>,
    timeout: Pin<Box<Sleep>>,
}

/// Dropped when the answer has ended.
pub(super) type ResponseEndGuard = oneshot::Sender<()>;

impl ContinueGate {
    /// A closed one, what opens it, and what is dropped when the answer has ended.
    pub(super) fn new() -> (Self, oneshot::Sender<()>, ResponseEndGuard) {
        let ((opens, asked), (ends, over)) = (oneshot::channel(), oneshot::channel());
        (
            Self {
                requested: asked,
                response_end: over,
                timeout: Box::pin(tokio::time::sleep(CONTINUE_TIMEOUT)),
            },
            opens,
            ends,
        )
    }

    /// An error when the body is not wanted any more.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answered = match self.requested.is_terminated() {
            true => true,
            false => match Pin::new(&mut self.requested).poll(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            },
        };
        if !answered {
            return self.timeout.as_mut().poll(cx).map(Ok);
        }
        let _ = ready!(Pin::new(&mut self.response_end).poll(cx));
        Poll::Ready(Err(io::Error::other(
            "answered before its body was asked for",
        )))
    }
}

impl Body for HttpRequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Body { body, gate, ledger } => {
                if let Some(closed) = gate {
                    ready!(closed.poll_open(cx))?;
                    *gate = None;
                }
                let frame = ready!(Pin::new(body).poll_frame(cx))
                    .transpose()
                    .map_err(io::Error::other)?;
                count_bytes(&ledger.sent_bytes, frame.as_ref());
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Body { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Body { body, .. } => body.size_hint(),
        }
    }
}

/// What the client gets.
pub(super) enum HttpResponseBody {
    /// From the destination; its connection goes back when it has ended. Dropped before, it takes the connection along.
    Body {
        body: Incoming,
        guest: Rc<HttpSession>,
        line: Option<UsedConnection<HttpBackend>>,
        over: Option<ResponseEndGuard>,
        copying: Option<BodyCopy>,
    },
    /// From the pool.
    Local(Full<Bytes>),
}

impl HttpResponseBody {
    /// The body of a response that came over `line`.
    pub(super) fn new(
        body: Incoming,
        guest: Rc<HttpSession>,
        line: UsedConnection<HttpBackend>,
        over: Option<ResponseEndGuard>,
        copying: Option<BodyCopy>,
    ) -> Self {
        let mut new = Self::Body {
            body,
            guest,
            line: Some(line),
            over,
            copying,
        };
        new.release_if_ended(false);
        new
    }

    /// Gives the connection back, if nothing more comes; then the copy is whole.
    fn release_if_ended(&mut self, ended: bool) {
        let Self::Body {
            body,
            guest,
            line,
            over,
            copying,
        } = self
        else {
            return;
        };
        if (ended || body.is_end_stream())
            && let Some(line) = line.take()
        {
            drop(over.take());
            copying.take().into_iter().for_each(BodyCopy::finish);
            tokio::task::spawn_local(return_backend(guest.clone(), line));
        }
    }
}

fn count_bytes(counter: &Cell<u64>, frame: Option<&Frame<Bytes>>) {
    let data = frame.and_then(Frame::data_ref);
    DestinationCounters::increase(counter, data.map_or(0, |data| data.len() as u64));
}

/// Gives a connection back once its request, too, is written.
async fn return_backend(guest: Rc<HttpSession>, mut line: UsedConnection<HttpBackend>) {
    if line.connection.sender.ready().await.is_ok() {
        guest.release_backend(line);
    }
}

impl Body for HttpResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (body, guest, copying) = match &mut *self {
            Self::Local(full) => {
                return Pin::new(full)
                    .poll_frame(cx)
                    .map_err(|never| match never {});
            }
            Self::Body {
                body,
                guest,
                copying,
                ..
            } => (body, guest, copying),
        };
        let frame = ready!(Pin::new(body).poll_frame(cx))
            .transpose()
            .map_err(io::Error::other)?;
        count_bytes(
            &guest.context.upstream.counters.received_bytes,
            frame.as_ref(),
        );
        if let Some(frame) = &frame {
            *copying = copying.take().and_then(|copying| copying.push_frame(frame));
        }
        // After trailers nothing comes, and nobody asks whether it does.
        self.release_if_ended(frame.as_ref().is_none_or(Frame::is_trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Body { body, .. } => body.is_end_stream(),
            Self::Local(full) => full.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Body { body, .. } => body.size_hint(),
            Self::Local(full) => full.size_hint(),
        }
    }
}
