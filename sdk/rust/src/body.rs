//! Bodies that come, or go, bit by bit.
//!
//! A part that came through memory lies in its sender's slot until it is dropped, and the sender stops at eight of them: so
//! whoever reads slowly stops whoever writes.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use hyper::body::Body as _;
use nearpath_domain::clock::{self, Nanos};
use nearpath_domain::post::Rest;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::context::{CONTEXT, Context as Handed};
use crate::error::{Error, Kind};
use crate::far::LARGEST_BODY;
use crate::message::Path;

/// Where parts come from. It can be read on any thread.
#[derive(Debug)]
pub(crate) enum Source {
    Near(Rest),
    Far(hyper::body::Incoming),
}

impl Source {
    /// The next part; nothing at the end.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Kind>>> {
        let incoming = match self {
            Self::Near(rest) => return rest.poll(cx).map(|part| part.map(|part| part.map_err(Kind::of))),
            Self::Far(incoming) => incoming,
        };
        loop {
            match ready!(Pin::new(&mut *incoming).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(Kind::Cut(error.to_string())))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Poll::Ready(Some(Ok(data))),
                    _ => {} // trailers say nothing here
                },
            }
        }
    }
}

/// What a stream of somebody's own yields: a piece, or why there is no more.
pub(crate) type Own = Pin<Box<dyn Stream<Item = Result<Bytes, String>>>>;

/// Any stream of pieces as one.
pub(crate) fn own<S, B, E>(stream: S) -> Own
where
    S: Stream<Item = Result<B, E>> + 'static,
    B: Into<Bytes>,
    E: fmt::Display,
{
    Box::pin(stream.map(|piece| piece.map(Into::into).map_err(|error| error.to_string())))
}

/// A body as it comes: a stream of parts. Dropping it before its end tells its writer that nobody reads.
#[must_use = "a body that is dropped is given up"]
pub struct Body {
    pub(crate) name: String,
    pub(crate) path: Option<Path>,
    /// What is there already.
    first: Bytes,
    parts: Parts,
    /// What sends the body of the call that this answers.
    sending: Option<Sending>,
    deadline: Nanos,
    alarm: Option<Pin<Box<Sleep>>>,
    context: Option<Handed>,
}

enum Parts {
    None,
    Source(Source),
    Own(Own),
}

/// What sends the body of a call while its answer is read.
pub(crate) enum Sending {
    /// A task of this thread.
    Task(Task),
    /// Where there can be none: it goes on when the answer is waited for.
    Along(Pin<Box<dyn Future<Output = ()>>>),
}

/// A task that ends with its owner.
pub(crate) struct Task(pub(crate) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Sending {
    /// Goes on with it.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Task(task) => Pin::new(&mut task.0).poll(cx).map(drop),
            Self::Along(future) => future.as_mut().poll(cx),
        }
    }
}

impl Body {
    /// That of a message that came.
    pub(crate) fn of(name: &str, path: Path, first: Bytes, source: Option<Source>) -> Self {
        let parts = source.map_or(Parts::None, Parts::Source);
        Self { name: name.to_owned(), path: Some(path), first, parts, ..Self::empty() }
    }

    pub(crate) fn of_own(own: Own) -> Self {
        Self { parts: Parts::Own(own), ..Self::empty() }
    }

    fn empty() -> Self {
        let (name, first) = (String::new(), Bytes::new());
        Self { name, path: None, first, parts: Parts::None, sending: None, deadline: 0, alarm: None, context: None }
    }

    pub(crate) fn until(mut self, deadline: Nanos) -> Self {
        self.deadline = deadline;
        self
    }

    pub(crate) fn while_sending(mut self, sending: Option<Sending>) -> Self {
        self.sending = sending;
        self
    }

    /// Calls that its stream makes hand on what the handler had.
    pub(crate) fn within(mut self, context: Handed) -> Self {
        self.context = Some(context);
        self
    }

    /// The next part; nothing at the end. An error is the last thing that comes: what was read is not all.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        StreamExt::next(self).await
    }

    /// All of it, up to 64 MB.
    ///
    /// # Errors
    /// When it was broken off, or is larger ([`Kind::TooLarge`]).
    pub async fn whole(mut self) -> Result<Bytes, Error> {
        let first = match self.next().await {
            None => return Ok(Bytes::new()),
            Some(part) => part?,
        };
        let Some(second) = self.next().await else { return Ok(first) };
        let mut all = BytesMut::from(&first[..]);
        let mut next = Some(second);
        while let Some(part) = next {
            let part = part?;
            if all.len() + part.len() > LARGEST_BODY {
                return Err(Error::new(&self.name, self.path, Kind::TooLarge(LARGEST_BODY)));
            }
            all.extend_from_slice(&part);
            next = self.next().await;
        }
        Ok(all.freeze())
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Kind>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        let part = match (&mut self.parts, self.context) {
            (Parts::None, _) => return Poll::Ready(None),
            (Parts::Source(source), _) => source.poll(cx),
            (Parts::Own(own), None) => own.as_mut().poll_next(cx).map_err(Kind::Cut),
            (Parts::Own(own), Some(context)) => {
                CONTEXT.sync_scope(context, || own.as_mut().poll_next(cx)).map_err(Kind::Cut)
            }
        };
        if part.is_pending() && self.is_late(cx) { Poll::Ready(Some(Err(Kind::Timeout))) } else { part }
    }

    /// Whether the deadline has passed; else the task is woken when it does.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        if self.deadline == 0 {
            return false;
        }
        let left = clock::until(self.deadline);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
        alarm.as_mut().poll(cx).is_ready()
    }
}

impl Stream for Body {
    type Item = Result<Bytes, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.sending.as_mut().is_some_and(|sending| sending.poll(cx).is_ready()) {
            this.sending = None;
        }
        let part = ready!(this.poll_part(cx));
        if !matches!(part, Some(Ok(_))) {
            (this.parts, this.sending) = (Parts::None, None); // nothing comes after the end
        }
        Poll::Ready(part.map(|part| part.map_err(|kind| Error::new(&this.name, this.path, kind))))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("name", &self.name).field("path", &self.path).finish_non_exhaustive()
    }
}

/// A body as hyper sends it; one that breaks off breaks the connection.
pub(crate) struct OverHttp(pub(crate) Body);

impl hyper::body::Body for OverHttp {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Error>>> {
        Pin::new(&mut self.0).poll_next(cx).map(|part| part.map(|part| part.map(hyper::body::Frame::data)))
    }
}
