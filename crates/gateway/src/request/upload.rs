//! Request bodies on their way to an instance: counted and limited.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::BoxError;

use super::caller_body::CallerBody;
use super::upload_progress::UploadProgress;
use crate::spool::FrameQueue;

/// Request body on its way to an instance.
#[derive(Debug)]
pub(crate) enum RequestUpload {
    /// No body.
    Empty,
    /// Complete in memory.
    Complete {
        /// The body.
        body: Bytes,
        /// Its progress.
        progress: Rc<UploadProgress>,
    },
    /// A first chunk that was read but not sent, and the rest.
    Prefixed {
        /// The chunk, counted already.
        first: Bytes,
        /// The rest.
        rest: Box<Self>,
    },
    /// A part that was read but not sent, in memory or in a file, and the rest.
    Spooled {
        /// The part, counted already.
        frames: Box<FrameQueue>,
        /// Progress of the whole body.
        progress: Rc<UploadProgress>,
        /// The rest.
        rest: Box<Self>,
    },
    /// Trailers that were read but not sent.
    Trailers(Option<HeaderMap>),
    /// Arriving from the caller.
    Streaming {
        /// The caller's body.
        body: CallerBody,
        /// Its progress.
        progress: Rc<UploadProgress>,
        /// Maximum length in bytes.
        limit: u64,
    },
}

impl RequestUpload {
    /// Wraps an arriving body. No [`UploadProgress`] without a body.
    pub(crate) fn new(body: CallerBody, limit: Option<u64>) -> (Self, Option<Rc<UploadProgress>>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let progress = UploadProgress::new(Instant::now());
        (
            Self::Streaming {
                body,
                progress: progress.clone(),
                limit: limit.unwrap_or(u64::MAX),
            },
            Some(progress),
        )
    }

    /// Wraps a complete body. No [`UploadProgress`] if it is empty.
    pub(crate) fn from_bytes(body: Bytes) -> (Self, Option<Rc<UploadProgress>>) {
        if body.is_empty() {
            return (Self::Empty, None);
        }
        let progress = UploadProgress::new(Instant::now());
        (
            Self::Complete {
                body,
                progress: progress.clone(),
            },
            Some(progress),
        )
    }

    /// Wraps the trailers that ended a body.
    pub(crate) fn from_trailers(frame: Frame<Bytes>) -> Self {
        let trailers = frame.into_trailers().ok();
        Self::Trailers(trailers.filter(|trailers| !trailers.is_empty()))
    }

    /// Copies a complete body; `None` for others. The copy is not counted again.
    pub(crate) fn try_copy(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Complete { body, progress } => Some(Self::Complete {
                body: body.clone(),
                progress: progress.clone(),
            }),
            Self::Prefixed { first, rest } if rest.is_end_stream() => {
                Some(Self::Empty.with_first_chunk(first.clone()))
            }
            Self::Prefixed { .. }
            | Self::Spooled { .. }
            | Self::Trailers(_)
            | Self::Streaming { .. } => None,
        }
    }

    /// Returns whether a part of the body was not read yet.
    pub(crate) fn is_arriving(&self) -> bool {
        match self {
            Self::Empty | Self::Complete { .. } | Self::Trailers(_) => false,
            Self::Prefixed { rest, .. } | Self::Spooled { rest, .. } => rest.is_arriving(),
            Self::Streaming { body, .. } => !body.is_end_stream(),
        }
    }

    /// Lets [`Self::poll_spool`] keep what it reads in `frames`.
    pub(crate) fn with_spool(self, frames: FrameQueue, progress: &Rc<UploadProgress>) -> Self {
        progress.has_unsent_part.set(true);
        Self::Spooled {
            frames: Box::new(frames),
            progress: progress.clone(),
            rest: Box::new(self),
        }
    }

    /// Reads a frame and keeps it. False: the body is complete, or there is no room for more.
    /// The progress holds the cause of an error.
    pub(crate) fn poll_spool(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ()>> {
        let Self::Spooled {
            frames,
            progress,
            rest,
        } = self
        else {
            return Poll::Ready(Ok(false));
        };
        let written = frames.poll_write(cx);
        if !frames.has_room() {
            return written.map(|()| Ok(false)); // a write in progress makes room
        }
        let Poll::Ready(frame) = Pin::new(&mut **rest).poll_frame(cx) else {
            return Poll::Pending;
        };
        match frame {
            Some(Ok(frame)) => frames.push_frame(Ok(frame)),
            Some(Err(_)) => return Poll::Ready(Err(())),
            None => **rest = Self::Empty,
        }
        // Begins the write of the last frame too.
        let _ = frames.poll_write(cx);
        progress.note_pause(Instant::now());
        Poll::Ready(Ok(rest.is_arriving()))
    }

    /// Reads the beginning of the body and keeps it: to its end, until more than `max_bytes` or the
    /// first message of gRPC have come, or until `stop` ends. Returns whether `stop` ended it. The
    /// progress holds the cause of an error.
    pub(crate) async fn read_beginning(
        &mut self,
        max_bytes: usize,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<bool, ()> {
        let (mut collected, mut is_stopped) = (BytesMut::new(), false);
        while collected.len() <= max_bytes && !self.is_end_stream() && !self.has_first_message() {
            let next = poll_fn(|cx| match Pin::new(&mut *self).poll_frame(cx) {
                Poll::Ready(frame) => Poll::Ready(Some(frame)),
                Poll::Pending => stop.as_mut().poll(cx).map(|()| None),
            });
            match next.await {
                None => {
                    is_stopped = true;
                    break;
                }
                Some(None) => *self = Self::Empty,
                Some(Some(frame)) => match frame.map_err(drop)?.into_data() {
                    // Most bodies are one chunk, which is not copied.
                    Ok(data) if collected.is_empty() => {
                        collected = data
                            .try_into_mut()
                            .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
                    }
                    Ok(data) => collected.extend_from_slice(&data),
                    Err(frame) => *self = Self::from_trailers(frame),
                },
            }
            if matches!(self, Self::Trailers(_)) {
                break;
            }
        }
        if let Self::Streaming { progress, .. } = self {
            progress.note_pause(Instant::now());
        }
        let rest = std::mem::replace(self, Self::Empty);
        *self = rest.with_first_chunk(collected.freeze());
        Ok(is_stopped)
    }

    fn has_first_message(&self) -> bool {
        matches!(self, Self::Streaming { progress, .. } if progress.has_first_message())
    }

    /// Returns the trailers that were read and that nothing but data precedes.
    pub(crate) fn known_trailers(&self) -> Option<&HeaderMap> {
        match self {
            Self::Trailers(trailers) => trailers.as_ref(),
            Self::Prefixed { rest, .. } => rest.known_trailers(),
            Self::Spooled { frames, rest, .. } => {
                frames.trailers().or_else(|| rest.known_trailers())
            }
            Self::Empty | Self::Complete { .. } | Self::Streaming { .. } => None,
        }
    }

    /// Notes that the body ended in trailers which the chosen path does not carry.
    pub(crate) fn refuse_trailers(&self) {
        match self {
            Self::Streaming { progress, .. }
            | Self::Complete { progress, .. }
            | Self::Spooled { progress, .. } => {
                progress.fault.set(Some(Reason::NotImplemented));
            }
            Self::Prefixed { rest, .. } => rest.refuse_trailers(),
            Self::Empty | Self::Trailers(_) => {}
        }
    }

    /// Puts back a chunk that was read but not sent.
    pub(crate) fn with_first_chunk(self, first: Bytes) -> Self {
        if first.is_empty() {
            self
        } else {
            Self::Prefixed {
                first,
                rest: Box::new(self),
            }
        }
    }
}

/// Returns the whole body as one frame, once.
fn take_frame(body: &mut Bytes, progress: &UploadProgress) -> Option<Frame<Bytes>> {
    if body.is_empty() {
        return None;
    }
    if !progress.has_ended() {
        progress
            .byte_count
            // Not again if a copy is sent elsewhere.
            .set(progress.byte_count.get() + body.len() as u64);
        progress.mark_ended();
    }
    Some(Frame::data(std::mem::take(body)))
}

/// Returns the next frame of the part in the spool, then those of the rest.
fn poll_spooled(
    frames: &mut FrameQueue,
    progress: &UploadProgress,
    rest: &mut RequestUpload,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    // The queue waits for a write that has begun.
    let _ = frames.poll_write(cx);
    let taken = std::task::ready!(frames.poll_take(cx));
    let frame = taken.inspect_err(|_| progress.fault.set(Some(Reason::Internal)));
    progress.note_sent_part(frames.is_empty());
    match frame {
        Ok(None) => Pin::new(rest).poll_frame(cx),
        Ok(frame) => Poll::Ready(frame),
        Err(error) => Poll::Ready(Some(Err(error.into()))),
    }
}

impl Body for RequestUpload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let (body, progress, limit) = match self.get_mut() {
            Self::Empty => return Poll::Ready(None),
            Self::Complete { body, progress } => {
                return Poll::Ready(take_frame(body, progress).map(Ok));
            }
            Self::Prefixed { first, rest } => {
                return match first.is_empty() {
                    true => Pin::new(&mut **rest).poll_frame(cx),
                    false => Poll::Ready(Some(Ok(Frame::data(std::mem::take(first))))),
                };
            }
            Self::Spooled {
                frames,
                progress,
                rest,
            } => return poll_spooled(frames, progress, rest, cx),
            Self::Trailers(trailers) => {
                return Poll::Ready(
                    trailers
                        .take()
                        .map(|trailers| Ok(Frame::trailers(trailers))),
                );
            }
            Self::Streaming {
                body,
                progress,
                limit,
            } => (body, progress, limit),
        };
        let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) else {
            progress.note_pending();
            return Poll::Pending;
        };
        match &frame {
            Some(Ok(frame)) => {
                progress.note_frame(frame.data_ref().map_or(&[], |data| data));
                // Checked on every frame: a chunked body announces no length.
                if progress.byte_count.get() > *limit {
                    progress.fault.set(Some(Reason::BodyTooLarge));
                    return Poll::Ready(Some(Err(
                        "the request's body is larger than the limit".into()
                    )));
                }
                // hyper does not poll a body again whose end it knows, and the stage must change.
                if body.is_end_stream() {
                    progress.mark_ended();
                }
            }
            // Kept here, because hyper reports only that the body failed, not why.
            Some(Err(error)) => progress.fault.set(Some(error.refusal_reason())),
            None => progress.mark_ended(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Complete { body, .. } => body.is_empty(),
            Self::Prefixed { first, rest } => first.is_empty() && rest.is_end_stream(),
            Self::Spooled { frames, rest, .. } => frames.is_empty() && rest.is_end_stream(),
            Self::Trailers(trailers) => trailers.is_none(),
            Self::Streaming { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Complete { body, .. } => SizeHint::with_exact(body.len() as u64),
            Self::Prefixed { first, rest } => {
                let rest = rest.size_hint().exact();
                rest.map_or_else(SizeHint::new, |rest| {
                    SizeHint::with_exact(first.len() as u64 + rest)
                })
            }
            Self::Spooled { frames, rest, .. } => {
                let known = frames.data_bytes().zip(rest.size_hint().exact());
                known.map_or_else(SizeHint::new, |(in_spool, rest)| {
                    SizeHint::with_exact(in_spool + rest)
                })
            }
            Self::Trailers(_) => SizeHint::new(), // a known length would drop them
            Self::Streaming { body, .. } => body.size_hint(),
        }
    }
}
