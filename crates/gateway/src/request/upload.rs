//! Request bodies on their way to an instance: counted, limited, and timed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use nearpath_types::Reason;
use nearpath_wire::BoxError;

use super::caller_body::CallerBody;
use super::deadlines::RequestStage;
use super::grpc::FirstMessage;
use super::min_rate::{MinRate, RateAllowance};
use crate::spool::FrameQueue;

/// Side that a request body waits for, and since when.
#[derive(Debug, Clone, Copy)]
enum UploadTurn {
    /// The gateway has asked for more.
    Caller(Instant),
    /// The instance does not take more, or the request waits for a place.
    Function(Instant),
}

/// Place at a function with a limit, which a request holds while its body arrives.
#[derive(Debug, Clone, Copy)]
struct HeldPlace {
    since: Instant,
    /// Time left to the caller while others wait for the place.
    allowance: RateAllowance,
}

/// Progress of a request body. Shared by the body, which another task may send, and the request
/// that awaits its response.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    byte_count: Cell<u64>,
    turn: Cell<UploadTurn>,
    allowance: Cell<Option<RateAllowance>>,
    /// Of a gRPC body.
    first_message: Cell<Option<FirstMessage>>,
    held_place: Cell<Option<HeldPlace>>,
    lost_place: Cell<bool>,
    ended_at: Cell<Option<Instant>>,
    /// A part of what was read is in the spool and not sent yet.
    has_unsent_part: Cell<bool>,
    fault: Cell<Option<Reason>>,
    waker: RefCell<Option<Waker>>,
}

impl UploadProgress {
    fn new(now: Instant) -> Rc<Self> {
        Rc::new(Self {
            byte_count: Cell::new(0),
            turn: Cell::new(UploadTurn::Function(now)),
            allowance: Cell::new(None),
            first_message: Cell::new(None),
            held_place: Cell::new(None),
            lost_place: Cell::new(false),
            ended_at: Cell::new(None),
            has_unsent_part: Cell::new(false),
            fault: Cell::new(None),
            waker: RefCell::new(None),
        })
    }

    /// Returns the bytes so far.
    pub(crate) fn byte_count(&self) -> u64 {
        self.byte_count.get()
    }

    /// Returns why the body was not sent completely, if the caller or a limit is the cause.
    pub(crate) fn fault(&self) -> Option<Reason> {
        self.fault.get()
    }

    /// Requires a minimum rate of the caller; of a gRPC body until its first message has arrived.
    /// Later messages are slow by nature.
    pub(crate) fn require_rate(&self, min: MinRate, is_grpc: bool) {
        self.allowance.set(Some(RateAllowance::new(min)));
        self.first_message.set(is_grpc.then(FirstMessage::default));
    }

    /// Notes that the request holds a place since `now`. A caller that has sent nothing has no
    /// grace while others wait.
    pub(crate) fn hold_place(&self, min: MinRate, now: Instant) {
        let mut min = min.while_contended();
        if self.byte_count.get() == 0 {
            min.grace = Duration::ZERO;
        }
        let held = HeldPlace {
            since: now,
            allowance: RateAllowance::new(min),
        };
        self.held_place
            .set((!self.has_first_message()).then_some(held));
    }

    /// Notes that no request waits for the held place: slowness until `now` does not count.
    pub(crate) fn note_uncontended(&self, now: Instant) {
        if let Some(mut held) = self.held_place.get() {
            held.since = now;
            held.allowance.reset();
            self.held_place.set(Some(held));
        }
    }

    /// Returns by how much the caller is too slow for a place that others wait for.
    pub(crate) fn lateness(&self, now: Instant) -> Option<Duration> {
        let UploadTurn::Caller(since) = self.turn.get() else {
            return None;
        };
        let HeldPlace {
            since: held_since,
            mut allowance,
        } = self
            .held_place
            .get()
            .filter(|_| !self.has_ended() && !self.lost_place.get())?;
        allowance.note_wait(now.saturating_duration_since(since.max(held_since)));
        allowance.lateness()
    }

    /// Takes the place away: the request ends as too slow.
    pub(crate) fn lose_place(&self) {
        self.lost_place.set(true);
        self.wake_waiting();
    }

    /// Returns whether the first message of a gRPC body has arrived.
    pub(crate) fn has_first_message(&self) -> bool {
        self.first_message
            .get()
            .is_some_and(|message| message.is_complete())
    }

    /// Returns the stage of a request before its response. The function can answer since
    /// `admitted`.
    pub(crate) fn current_stage(&self, admitted: Instant) -> RequestStage {
        if self.lost_place.get() {
            return RequestStage::Uploading {
                since: admitted,
                rate_limit: Some(Duration::ZERO),
            };
        }
        // Time in the queue is neither the caller's nor the function's.
        if let Some(ended_at) = self.ended_at.get().filter(|_| self.has_ended()) {
            return RequestStage::Awaiting(ended_at.max(admitted));
        }
        match self.turn.get() {
            UploadTurn::Function(since) => RequestStage::Awaiting(since.max(admitted)),
            UploadTurn::Caller(since) => RequestStage::Uploading {
                since: since.max(admitted),
                rate_limit: self.allowance.get().and_then(|rate| rate.time_left()),
            },
        }
    }

    /// Notes that the gateway waits for the caller.
    fn note_pending(&self) {
        if let UploadTurn::Function(_) = self.turn.get() {
            self.turn.set(UploadTurn::Caller(Instant::now()));
            self.wake_waiting(); // the limit of the caller may be shorter
        }
    }

    /// Notes that the gateway asks for no more until the request has a place.
    fn note_pause(&self, now: Instant) {
        if let UploadTurn::Caller(since) = self.turn.get() {
            self.note_wait(since, now);
            self.turn.set(UploadTurn::Function(now));
        }
    }

    /// Notes that the gateway waited for the caller until `now`.
    fn note_wait(&self, since: Instant, now: Instant) {
        if let Some(mut rate) = self.allowance.get() {
            rate.note_wait(now.saturating_duration_since(since));
            self.allowance.set(Some(rate));
        }
        if let Some(mut held) = self.held_place.get() {
            let since = since.max(held.since);
            held.allowance
                .note_wait(now.saturating_duration_since(since));
            self.held_place.set(Some(held));
        }
    }

    fn note_frame(&self, data: &[u8]) {
        self.byte_count
            .set(self.byte_count.get() + data.len() as u64);
        let now = Instant::now();
        if let UploadTurn::Caller(since) = self.turn.get() {
            self.note_wait(since, now);
        }
        if let Some(mut rate) = self.allowance.get() {
            rate.note_bytes(data.len());
            self.allowance.set(Some(rate));
        }
        if let Some(mut held) = self.held_place.get() {
            held.allowance.note_bytes(data.len());
            self.held_place.set(Some(held));
        }
        self.note_message(data);
        self.turn.set(UploadTurn::Function(now));
    }

    /// Lifts the minimum rates when the first message of a gRPC body has arrived.
    fn note_message(&self, data: &[u8]) {
        let Some(mut message) = self.first_message.get() else {
            return;
        };
        message.note_data(data);
        self.first_message.set(Some(message));
        if message.is_complete() {
            self.allowance.set(None);
            self.held_place.set(None);
        }
    }

    /// Returns whether all of the body was sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.get().is_some() && !self.has_unsent_part.get()
    }

    /// Notes that the instance takes a part of the body that was in the spool. `is_last`: no more
    /// is there.
    fn note_sent_part(&self, is_last: bool) {
        self.turn.set(UploadTurn::Function(Instant::now()));
        if is_last && self.has_unsent_part.take() && self.ended_at.get().is_some() {
            self.mark_ended();
        }
    }

    /// Registers `waker` for a change of the stage.
    pub(crate) fn wake_on_change(&self, waker: &Waker) {
        let mut waiting = self.waker.borrow_mut();
        if !waiting.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *waiting = Some(waker.clone());
        }
    }

    fn mark_ended(&self) {
        self.ended_at.set(Some(Instant::now()));
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowness_counts_only_while_others_wait_for_the_place() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let min = MinRate {
            bytes_per_second: 240,
            grace: Duration::from_secs(10),
        };
        let progress = UploadProgress::new(start);
        progress.note_frame(b"x");
        progress.hold_place(min, start);
        progress.turn.set(UploadTurn::Caller(start));
        assert_eq!(progress.lateness(at(60)), Some(Duration::from_secs(58)));
        progress.note_uncontended(at(60));
        assert_eq!(progress.lateness(at(61)), None, "the grace begins again");
        assert_eq!(progress.lateness(at(65)), Some(Duration::from_secs(3)));
    }
}
