//! The answer to the call whose handler runs: whole when the handler returns, or piece by piece while it runs.

use bytes::Bytes;
use futures_util::stream;
use nearpath_domain::Incoming;
use nearpath_domain::post::NotWanted;
use nearpath_domain::post::blocking::{Post, Writing};
use tokio::sync::{mpsc, oneshot};

use crate::answer::{Answer, Streaming};
use crate::body::Body;
use crate::far::Piece;
use crate::message::{Request, Response};

/// A request that another thread took, and where its answer goes.
pub(super) type Visitor = (Request, oneshot::Sender<Sent>);

/// What goes back to that thread.
#[derive(Debug)]
pub(super) enum Sent {
    Whole(Response),
    /// The beginning, and the pieces as they are written.
    Begun(Response, mpsc::Receiver<Piece>),
}

impl From<Sent> for Answer {
    fn from(sent: Sent) -> Self {
        match sent {
            Sent::Whole(response) => response.into(),
            Sent::Begun(response, mut pieces) => {
                let body = Body::of_own(Box::pin(stream::poll_fn(move |cx| pieces.poll_recv(cx))));
                Streaming { response, body }.into()
            }
        }
    }
}

/// What has an answer made by a thread that takes visitors from `queue`: it goes away when that thread has taken no more.
pub(super) async fn visit(request: Request, hand: impl FnOnce(Visitor) -> bool) -> Answer {
    let (back, answer) = oneshot::channel();
    let sent = if hand((request, back)) { answer.await.ok() } else { None };
    sent.map_or_else(|| Response::new("the function is stopping\n").with_status(503).into(), Answer::from)
}

/// The call whose handler runs.
#[derive(Debug, Default)]
pub(super) enum Answering {
    /// None does.
    #[default]
    Nothing,
    /// It came through memory, to this thread.
    Near(Box<Incoming>, Progress),
    /// Another thread took it.
    Visitor(Option<oneshot::Sender<Sent>>, Option<mpsc::Sender<Piece>>),
}

/// How far an answer through memory is.
#[derive(Debug)]
pub(super) enum Progress {
    /// Not begun.
    Unbegun,
    Begun(Writing),
    /// Complete; some of it may not have gone yet.
    Finished,
}

impl Answering {
    pub(super) fn near(incoming: Incoming) -> Self {
        Self::Near(Box::new(incoming), Progress::Unbegun)
    }

    pub(super) fn begin(&mut self, post: Option<&mut Post>, head: Response) -> Result<(), NotWanted> {
        match self {
            Self::Near(incoming, progress @ Progress::Unbegun) if !incoming.event => {
                *progress = Progress::Begun(post.ok_or(NotWanted)?.begin_answer(incoming, head.into_answer(), None));
                Ok(())
            }
            Self::Visitor(back, pieces) => {
                let (sender, receiver) = mpsc::channel(1);
                let sent = back.take().ok_or(NotWanted)?.send(Sent::Begun(head, receiver));
                *pieces = Some(sender);
                sent.map_err(|_| NotWanted)
            }
            _ => Err(NotWanted),
        }
    }

    /// Waits for room, then writes.
    pub(super) fn write(&mut self, post: Option<&mut Post>, piece: Bytes) -> Result<(), NotWanted> {
        match self {
            Self::Near(_, Progress::Begun(writing)) => post.ok_or(NotWanted)?.write(writing, piece),
            Self::Visitor(_, Some(pieces)) => pieces.blocking_send(Ok(piece)).map_err(|_| NotWanted),
            _ => Err(NotWanted),
        }
    }

    pub(super) fn finish(&mut self, post: Option<&mut Post>) {
        match self {
            Self::Near(_, progress) => {
                if matches!(progress, Progress::Begun(_))
                    && let (Progress::Begun(writing), Some(post)) =
                        (std::mem::replace(progress, Progress::Finished), post)
                {
                    post.finish(writing);
                }
            }
            Self::Visitor(_, pieces) => *pieces = None,
            Self::Nothing => {}
        }
    }

    /// The handler has returned: what it answered goes, unless an answer had begun; one that was not finished is broken off.
    pub(super) fn end(self, post: Option<&mut Post>, response: Response) {
        match (self, post) {
            (Self::Near(_, Progress::Finished), _) => {} // what has not gone yet goes by itself
            (Self::Near(incoming, _), Some(post)) => post.answer(*incoming, response.into_answer()),
            (Self::Visitor(Some(back), _), _) => drop(back.send(Sent::Whole(response))),
            (Self::Visitor(None, Some(pieces)), _) => {
                let _ = pieces.blocking_send(Err("the handler did not finish its answer".into()));
            }
            _ => {}
        }
    }
}
