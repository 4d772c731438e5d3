//! Request bodies on their way to the destination.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use nearpath_connpool::counters::DestinationCounters;

/// Time to wait for `100 Continue` before the body is sent anyway, as curl does: the destination
/// may not support it (RFC 9110 section 10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Body of a request that goes to the destination.
#[derive(Debug)]
pub(super) enum HttpRequestBody {
    /// No body.
    Empty,
    /// A body; `gate` holds it back until the destination asks for it.
    Body {
        body: Incoming,
        gate: Option<ContinueGate>,
        counters: Rc<DestinationCounters>,
    },
}

/// Holds a request body back until the destination says `100 Continue`, or nothing for
/// [`CONTINUE_TIMEOUT`].
///
/// If the destination answers without asking for the body, the body is never sent. The connection
/// then ends with the response.
#[derive(Debug)]
pub(super) struct ContinueGate {
    requested: oneshot::Receiver<()>,
    response_end: oneshot::Receiver<()>,
    timeout: Pin<Box<Sleep>>,
}

/// Dropped when the response has ended.
pub(super) type ResponseEndGuard = oneshot::Sender<()>;

impl ContinueGate {
    /// Creates a closed gate, the sender that opens it, and the guard that is dropped after the
    /// response.
    pub(super) fn new() -> (Self, oneshot::Sender<()>, ResponseEndGuard) {
        let ((opens, requested), (ends, response_end)) = (oneshot::channel(), oneshot::channel());
        (
            Self {
                requested,
                response_end,
                timeout: Box::pin(tokio::time::sleep(CONTINUE_TIMEOUT)),
            },
            opens,
            ends,
        )
    }

    /// Polls until the body may be sent. Fails when the destination no longer wants it.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Polling a terminated oneshot receiver panics, so its state is checked first.
        let answered = match self.requested.is_terminated() {
            true => true,
            false => match Pin::new(&mut self.requested).poll(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            },
        };
        if !answered {
            // The timeout only applies while no answer has come: after a final response the body
            // must not be sent.
            return self.timeout.as_mut().poll(cx).map(Ok);
        }
        // The error waits for the end of the response. An earlier error would make hyper close the
        // connection and cut the response off.
        let _ = ready!(Pin::new(&mut self.response_end).poll(cx));
        Poll::Ready(Err(io::Error::other(
            "the destination answered without requesting the body",
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
            Self::Body {
                body,
                gate,
                counters,
            } => {
                if let Some(closed) = gate {
                    // An error aborts the request's body, and with it the connection: the server
                    // still expects the announced bytes.
                    ready!(closed.poll_open(cx))?;
                    *gate = None;
                }
                let frame = ready!(Pin::new(body).poll_frame(cx))
                    .transpose()
                    .map_err(io::Error::other)?;
                count_bytes(&counters.sent_bytes, frame.as_ref());
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

/// Counts the data bytes of a frame.
pub(super) fn count_bytes(counter: &Cell<u64>, frame: Option<&Frame<Bytes>>) {
    let data = frame.and_then(Frame::data_ref);
    DestinationCounters::increase(counter, data.map_or(0, |data| data.len() as u64));
}
