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

use super::Guest;
use super::backend::Line;
use super::cached::Copying;
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::Kept;

/// Longest wait for a destination to ask for a body, as curl does it; it may know nothing of `100-continue`.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the client sends.
#[derive(Debug)]
pub(super) enum Upload {
    /// Nothing.
    Empty,
    /// A body, once it is asked for.
    Body { body: Incoming, gate: Option<Gate>, ledger: Rc<Ledger> },
}

/// Opens when the destination says `100 Continue`, or nothing for a while. When it answers without having asked, the body never flows, and the connection
/// ends with the answer.
#[derive(Debug)]
pub(super) struct Gate {
    asked: oneshot::Receiver<()>,
    over: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
}

/// Dropped when the answer has ended.
pub(super) type Over = oneshot::Sender<()>;

impl Gate {
    /// A closed one, what opens it, and what is dropped when the answer has ended.
    pub(super) fn new() -> (Self, oneshot::Sender<()>, Over) {
        let ((opens, asked), (ends, over)) = (oneshot::channel(), oneshot::channel());
        (Self { asked, over, patience: Box::pin(tokio::time::sleep(PATIENCE)) }, opens, ends)
    }

    /// An error when the body is not wanted any more.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answered = match self.asked.is_terminated() {
            true => true,
            false => match Pin::new(&mut self.asked).poll(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            },
        };
        if !answered {
            return self.patience.as_mut().poll(cx).map(Ok);
        }
        let _ = ready!(Pin::new(&mut self.over).poll(cx));
        Poll::Ready(Err(io::Error::other("answered before its body was asked for")))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Body { body, gate, ledger } => {
                if let Some(closed) = gate {
                    ready!(closed.poll_open(cx))?;
                    *gate = None;
                }
                let frame = ready!(Pin::new(body).poll_frame(cx)).transpose().map_err(io::Error::other)?;
                count(&ledger.sent, frame.as_ref());
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
pub(super) enum Download {
    /// From the destination; its connection goes back when it has ended. Dropped before, it takes the connection along.
    Body { body: Incoming, guest: Rc<Guest>, line: Option<Kept<Line>>, over: Option<Over>, copying: Option<Copying> },
    /// From the pool.
    Own(Full<Bytes>),
}

impl Download {
    /// The body of a response that came over `line`.
    pub(super) fn new(
        body: Incoming,
        guest: Rc<Guest>,
        line: Kept<Line>,
        over: Option<Over>,
        copying: Option<Copying>,
    ) -> Self {
        let mut new = Self::Body { body, guest, line: Some(line), over, copying };
        new.pass_on(false);
        new
    }

    /// Gives the connection back, if nothing more comes; then the copy is whole.
    fn pass_on(&mut self, ended: bool) {
        let Self::Body { body, guest, line, over, copying } = self else { return };
        if (ended || body.is_end_stream())
            && let Some(line) = line.take()
        {
            drop(over.take());
            copying.take().into_iter().for_each(Copying::end);
            tokio::task::spawn_local(back(guest.clone(), line));
        }
    }
}

fn count(counter: &Cell<u64>, frame: Option<&Frame<Bytes>>) {
    let data = frame.and_then(Frame::data_ref);
    Ledger::count(counter, data.map_or(0, |data| data.len() as u64));
}

/// Gives a connection back once its request, too, is written.
async fn back(guest: Rc<Guest>, mut line: Kept<Line>) {
    if line.item.sender.ready().await.is_ok() {
        guest.give_back(line);
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (body, guest, copying) = match &mut *self {
            Self::Own(full) => return Pin::new(full).poll_frame(cx).map_err(|never| match never {}),
            Self::Body { body, guest, copying, .. } => (body, guest, copying),
        };
        let frame = ready!(Pin::new(body).poll_frame(cx)).transpose().map_err(io::Error::other)?;
        count(&guest.visit.upstream.ledger.received, frame.as_ref());
        if let Some(frame) = &frame {
            *copying = copying.take().and_then(|copying| copying.with(frame));
        }
        // After trailers nothing comes, and nobody asks whether it does.
        self.pass_on(frame.as_ref().is_none_or(Frame::is_trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Body { body, .. } => body.is_end_stream(),
            Self::Own(full) => full.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Body { body, .. } => body.size_hint(),
            Self::Own(full) => full.size_hint(),
        }
    }
}
