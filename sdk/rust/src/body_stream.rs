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
use nearpath_domain::clock::{self, MonotonicNanos};
use nearpath_domain::endpoint::BodyReader;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use nearpath_path::Path;

use crate::context::{CONTEXT, CallContext as Handed};
use crate::error::{Error, ErrorKind};

/// Largest body that is collected, the same over HTTP as through memory.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 20;

/// Source of body parts, readable on any thread.
#[derive(Debug)]
pub(crate) enum BodySource {
    Shm(BodyReader),
    Http(hyper::body::Incoming),
}

impl BodySource {
    /// The next part; nothing at the end.
    pub(crate) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ErrorKind>>> {
        let incoming = match self {
            Self::Shm(rest) => {
                return rest
                    .poll(cx)
                    .map(|part| part.map(|part| part.map_err(ErrorKind::from_call_error)));
            }
            Self::Http(incoming) => incoming,
        };
        loop {
            match ready!(Pin::new(&mut *incoming).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => {
                    return Poll::Ready(Some(Err(ErrorKind::Truncated(error.to_string()))));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Poll::Ready(Some(Ok(data))),
                    _ => {} // trailers say nothing here
                },
            }
        }
    }
}

/// A boxed stream of the caller: chunks, or the reason of an abort.
pub(crate) type OwnStream = Pin<Box<dyn Stream<Item = Result<Bytes, String>>>>;

/// Any stream of pieces as one.
pub(crate) fn boxed_stream<S, B, E>(stream: S) -> OwnStream
where
    S: Stream<Item = Result<B, E>> + 'static,
    B: Into<Bytes>,
    E: fmt::Display,
{
    Box::pin(stream.map(|piece| piece.map(Into::into).map_err(|error| error.to_string())))
}

/// A body as a stream of parts. Dropping it early tells its writer that the reader is gone.
#[must_use = "a body that is dropped is given up"]
pub struct BodyStream {
    pub(crate) name: String,
    pub(crate) path: Option<Path>,
    /// Data that is available already.
    first: Bytes,
    parts: PartSource,
    /// Upload of the call's body, while its response is read.
    sending: Option<UploadTask>,
    deadline: MonotonicNanos,
    alarm: Option<Pin<Box<Sleep>>>,
    context: Option<Handed>,
}

enum PartSource {
    None,
    Source(BodySource),
    Own(OwnStream),
}

/// Upload of a call's body, while its response is read.
pub(crate) enum UploadTask {
    /// A task of this thread.
    Spawned(AbortOnDrop),
    /// Without an event loop: it is polled while the response is awaited.
    Inline(Pin<Box<dyn Future<Output = ()>>>),
}

/// A task that ends with its owner.
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl UploadTask {
    /// Goes on with it.
    pub(crate) fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Spawned(task) => Pin::new(&mut task.0).poll(cx).map(drop),
            Self::Inline(future) => future.as_mut().poll(cx),
        }
    }
}

impl BodyStream {
    /// That of a message that came.
    pub(crate) fn from_source(
        name: &str,
        path: Path,
        first: Bytes,
        source: Option<BodySource>,
    ) -> Self {
        let parts = source.map_or(PartSource::None, PartSource::Source);
        Self {
            name: name.to_owned(),
            path: Some(path),
            first,
            parts,
            ..Self::empty()
        }
    }

    pub(crate) fn from_stream(own: OwnStream) -> Self {
        Self {
            parts: PartSource::Own(own),
            ..Self::empty()
        }
    }

    fn empty() -> Self {
        let (name, first) = (String::new(), Bytes::new());
        Self {
            name,
            path: None,
            first,
            parts: PartSource::None,
            sending: None,
            deadline: 0,
            alarm: None,
            context: None,
        }
    }

    pub(crate) fn with_deadline(mut self, deadline: MonotonicNanos) -> Self {
        self.deadline = deadline;
        self
    }

    pub(crate) fn while_sending(mut self, sending: Option<UploadTask>) -> Self {
        self.sending = sending;
        self
    }

    /// Runs the stream in the handler's context, which its calls pass on.
    pub(crate) fn with_context(mut self, context: Handed) -> Self {
        self.context = Some(context);
        self
    }

    /// The next part; nothing at the end. An error is the last thing that comes: what was read is not all.
    pub async fn next_part(&mut self) -> Option<Result<Bytes, Error>> {
        StreamExt::next(self).await
    }

    /// All of it, up to 64 MB.
    ///
    /// # Errors
    /// When it was aborted, or is larger ([`ErrorKind::TooLarge`]).
    pub async fn collect_all(mut self) -> Result<Bytes, Error> {
        let first = match self.next_part().await {
            None => return Ok(Bytes::new()),
            Some(part) => part?,
        };
        let Some(second) = self.next_part().await else {
            return Ok(first);
        };
        let mut all = BytesMut::from(&first[..]);
        let mut next = Some(second);
        while let Some(part) = next {
            let part = part?;
            if all.len() + part.len() > MAX_BODY_BYTES {
                return Err(Error::new(
                    &self.name,
                    self.path,
                    ErrorKind::TooLarge(MAX_BODY_BYTES),
                ));
            }
            all.extend_from_slice(&part);
            next = self.next_part().await;
        }
        Ok(all.freeze())
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ErrorKind>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        let part = match (&mut self.parts, self.context) {
            (PartSource::None, _) => return Poll::Ready(None),
            (PartSource::Source(source), _) => source.poll_part(cx),
            (PartSource::Own(own), None) => {
                own.as_mut().poll_next(cx).map_err(ErrorKind::Truncated)
            }
            (PartSource::Own(own), Some(context)) => CONTEXT
                .sync_scope(context, || own.as_mut().poll_next(cx))
                .map_err(ErrorKind::Truncated),
        };
        if part.is_pending() && self.poll_deadline(cx) {
            Poll::Ready(Some(Err(ErrorKind::Timeout)))
        } else {
            part
        }
    }

    /// Returns true if the deadline has passed; otherwise the task is woken then.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> bool {
        if self.deadline == 0 {
            return false;
        }
        let left = clock::time_until(self.deadline);
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
        alarm.as_mut().poll(cx).is_ready()
    }
}

impl Stream for BodyStream {
    type Item = Result<Bytes, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this
            .sending
            .as_mut()
            .is_some_and(|sending| sending.poll_upload(cx).is_ready())
        {
            this.sending = None;
        }
        let part = ready!(this.poll_part(cx));
        if !matches!(part, Some(Ok(_))) {
            (this.parts, this.sending) = (PartSource::None, None); // nothing comes after the end
        }
        Poll::Ready(part.map(|part| part.map_err(|kind| Error::new(&this.name, this.path, kind))))
    }
}

impl fmt::Debug for BodyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("name", &self.name)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A body as hyper sends it; one that aborts breaks the connection.
pub(crate) struct HttpBody(pub(crate) BodyStream);

impl hyper::body::Body for HttpBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Error>>> {
        Pin::new(&mut self.0)
            .poll_next(cx)
            .map(|part| part.map(|part| part.map(hyper::body::Frame::data)))
    }
}
