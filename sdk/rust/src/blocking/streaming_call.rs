//! A call whose body goes, and whose answer comes, piece by piece: one thread does both.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Waiting, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nearpath_domain::clock::MonotonicNanos;
use nearpath_domain::endpoint::blocking::{BlockingEndpoint, OpenBody, PendingCall};
use nearpath_domain::endpoint::{BodyReader, BodyUnwanted};
use nearpath_domain::{CallDestination, CallError, CallReply, UnsentReason, clock};

use super::http_calls::HttpStream;
use super::thread_endpoint::{INTERRUPT_CHECK_INTERVAL, ThreadEndpoint};
use crate::call_options::CallOptions;
use crate::context::CallContext;
use crate::error::{Error, ErrorKind};
use crate::http_client;
use crate::message::{Path, Response};
use crate::shm_client::with_request;
use crate::thread_context::{parse_function, unreachable_error};

/// A call whose body is being written, or whose answer is being read. Dropping it gives it up: the callee is told when its endpoint
/// is used next, or with [`ThreadEndpoint::close_call`] at once.
#[derive(Debug)]
#[must_use = "an exchange that is dropped is given up"]
pub struct StreamingCall {
    name: String,
    way: StreamingPath,
    context: CallContext,
    /// How long nothing may come.
    idle_timeout: Option<Duration>,
    abandoned: AbandonedCalls,
}

#[derive(Debug)]
enum StreamingPath {
    Shm(ShmStream),
    Http(HttpStream),
    /// The call has ended.
    Ended(Path),
}

/// Next event of a streaming call.
#[derive(Debug)]
pub enum StreamEvent {
    /// There is room for a piece of the body.
    Writable,
    /// The answer has begun; its body comes in parts.
    Begun(Response),
    /// A part of the answer's body.
    Part(Bytes),
    /// That was all.
    End,
}

#[derive(Debug)]
struct ShmStream {
    /// In which membership.
    join_number: u64,
    pending: Option<PendingCall>,
    writing: Option<OpenBody>,
    first: Bytes,
    reader: Option<BodyReader>,
}

/// Abandoned calls, whose callees the endpoint's thread must tell.
pub(super) type AbandonedCalls = Arc<Mutex<Vec<AbandonedCall>>>;

/// See [`AbandonedCalls`].
#[derive(Debug)]
pub(super) struct AbandonedCall {
    join_number: u64,
    pending: Option<PendingCall>,
    writing: Option<OpenBody>,
}

impl ShmStream {
    /// Polls for the next event.
    fn poll_event(
        &mut self,
        post: &mut BlockingEndpoint,
        name: &str,
        writes: bool,
    ) -> Poll<Result<StreamEvent, Error>> {
        if let Some(pending) = &self.pending {
            if let Poll::Ready(outcome) = post.poll_response(pending) {
                self.pending = None;
                return Poll::Ready(self.begin_response(name, outcome));
            }
        } else if let Some(part) = self.next_part(name) {
            return Poll::Ready(part);
        }
        match self
            .writing
            .as_ref()
            .map(|writing| post.is_writable(writing))
        {
            Some(Ok(true)) if writes => return Poll::Ready(Ok(StreamEvent::Writable)),
            Some(Err(BodyUnwanted)) => self.writing = None,
            _ => {}
        }
        Poll::Pending
    }

    fn begin_response(
        &mut self,
        name: &str,
        outcome: Result<CallReply, CallError>,
    ) -> Result<StreamEvent, Error> {
        let mut reply = outcome.map_err(|error| Error::from_call_error(name, error))?;
        let (response, first) = Response::from_reply(name, &mut reply)?.into_parts();
        (self.first, self.reader) = (first, reply.reader.take());
        Ok(StreamEvent::Begun(response))
    }

    fn next_part(&mut self, name: &str) -> Option<Result<StreamEvent, Error>> {
        if !self.first.is_empty() {
            return Some(Ok(StreamEvent::Part(std::mem::take(&mut self.first))));
        }
        let Some(rest) = &self.reader else {
            return Some(Ok(StreamEvent::End));
        };
        match rest.poll(&mut Waiting::from_waker(Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(None) => Some(Ok(StreamEvent::End)),
            Poll::Ready(Some(part)) => Some(
                part.map(StreamEvent::Part)
                    .map_err(|error| Error::from_call_error(name, error)),
            ),
        }
    }
}

impl StreamingCall {
    /// Returns true if more of the body is wanted, as far as is known.
    pub fn is_open(&self) -> bool {
        match &self.way {
            StreamingPath::Shm(near) => near.writing.is_some(),
            StreamingPath::Http(distance) => distance.is_open(),
            StreamingPath::Ended(_) => false,
        }
    }

    /// When it is too late for what comes next: the deadline, or silence for too long from now; 0: never.
    fn step_deadline(&self) -> MonotonicNanos {
        let ends = [
            Some(self.context.deadline).filter(|at| *at != 0),
            self.idle_timeout.map(clock::deadline_after),
        ];
        ends.into_iter().flatten().min().unwrap_or(0)
    }

    /// The way that it takes.
    pub fn path(&self) -> Path {
        match &self.way {
            StreamingPath::Shm(_) => Path::Shm,
            StreamingPath::Http(_) => Path::Http,
            StreamingPath::Ended(path) => *path,
        }
    }

    /// The function that is called.
    pub fn function(&self) -> &str {
        &self.name
    }
}

impl Drop for StreamingCall {
    fn drop(&mut self) {
        if let StreamingPath::Shm(ShmStream {
            join_number: joins,
            pending,
            writing,
            ..
        }) = &mut self.way
            && (pending.is_some() || writing.is_some())
        {
            let left = AbandonedCall {
                join_number: *joins,
                pending: pending.take(),
                writing: writing.take(),
            };
            self.abandoned
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(left);
        }
    }
}

impl ThreadEndpoint {
    /// Begins a call whose body is written piece by piece, and whose answer is read as it comes. A deadline is for all of it.
    ///
    /// # Errors
    /// When it was not sent.
    pub fn open_call(&mut self, name: &str, ask: &CallOptions) -> Result<StreamingCall, Error> {
        let (to, context) = (parse_function(name)?, self.context.with_options(ask));
        let way = if self.has_function(&to) {
            let opened = self.send_with_credit(context, |post| {
                with_request(ask, &Bytes::new(), context, |request| {
                    post.open_call(CallDestination::Function(&to), request, None)
                })
            });
            match opened {
                Ok((pending, writing)) => Some(self.start_shm_stream(pending, writing)),
                Err(why) if ask.shm_only => return Err(Error::from_unsent(name, why)),
                Err(_) => None,
            }
        } else if ask.shm_only {
            return Err(unreachable_error(name));
        } else {
            None
        };
        let instead = http_client::GatewayMode::Sync(self.shm_obstacle(&to));
        let far = || {
            self.http
                .open_call(name, instead, ask, context)
                .map(StreamingPath::Http)
        };
        let way = way.map_or_else(far, Ok)?;
        let (silence, leftover) = (ask.idle_timeout, Arc::clone(&self.abandoned));
        Ok(StreamingCall {
            name: name.to_owned(),
            way,
            context,
            idle_timeout: silence,
            abandoned: leftover,
        })
    }

    fn start_shm_stream(&mut self, pending: PendingCall, writing: OpenBody) -> StreamingPath {
        self.endpoint
            .iter_mut()
            .for_each(|post| post.stream_response(&pending));
        let (pending, writing) = (Some(pending), Some(writing));
        StreamingPath::Shm(ShmStream {
            join_number: self.join_number,
            pending,
            writing,
            first: Bytes::new(),
            reader: None,
        })
    }

    /// Waits for what comes next; with `writes` also for room for a piece of the body.
    ///
    /// # Errors
    /// When there is no answer, or it was aborted: then nothing more comes.
    pub fn next_event(
        &mut self,
        exchange: &mut StreamingCall,
        writes: bool,
    ) -> Result<StreamEvent, Error> {
        let (path, until) = (exchange.path(), exchange.step_deadline());
        let step = match &mut exchange.way {
            StreamingPath::Ended(_) => return Ok(StreamEvent::End),
            StreamingPath::Http(distance) => {
                self.http
                    .next_event(&exchange.name, distance, writes, until, self.interrupt)
            }
            StreamingPath::Shm(near) => self.next_shm_event(&exchange.name, near, writes, until),
        };
        if matches!(step, Err(_) | Ok(StreamEvent::End)) {
            self.end_stream(std::mem::replace(
                &mut exchange.way,
                StreamingPath::Ended(path),
            ));
        }
        step
    }

    fn next_shm_event(
        &mut self,
        name: &str,
        near: &mut ShmStream,
        writes: bool,
        until: MonotonicNanos,
    ) -> Result<StreamEvent, Error> {
        loop {
            let post = self
                .endpoint
                .as_mut()
                .filter(|_| near.join_number == self.join_number);
            let post = post.ok_or_else(|| Error::from_call_error(name, CallError::PeerDied))?;
            if let Poll::Ready(step) = near.poll_event(post, name, writes) {
                return step;
            }
            let left = if until == 0 {
                INTERRUPT_CHECK_INTERVAL
            } else {
                clock::time_until(until)
            };
            if left.is_zero() {
                return Err(Error::from_call_error(name, CallError::Timeout)); // of a deadline the endpoint may say so before
            }
            post.sleep_for(
                near.pending.as_ref(),
                left.min(INTERRUPT_CHECK_INTERVAL)
                    .max(Duration::from_micros(1)),
            );
            if let Poll::Ready(step) = near.poll_event(post, name, writes) {
                return step;
            }
            self.check_interrupt(name, Path::Shm)?;
        }
    }

    /// Writes a part of the body; waits for room. No more is wanted when the response is there already, or will not come:
    /// [`ThreadEndpoint::next_event`] says which.
    ///
    /// # Errors
    /// [`BodyUnwanted`], and nothing was written.
    pub fn write_chunk(
        &mut self,
        exchange: &mut StreamingCall,
        piece: impl Into<Bytes>,
    ) -> Result<(), BodyUnwanted> {
        match &mut exchange.way {
            StreamingPath::Ended(_) => Err(BodyUnwanted),
            StreamingPath::Http(distance) => self.http.write_chunk(distance, piece.into()),
            StreamingPath::Shm(near) => {
                let post = self
                    .endpoint
                    .as_mut()
                    .filter(|_| near.join_number == self.join_number)
                    .ok_or(BodyUnwanted)?;
                post.write_chunk(near.writing.as_ref().ok_or(BodyUnwanted)?, piece.into())
            }
        }
    }

    /// The body is complete.
    pub fn finish_body(&mut self, exchange: &mut StreamingCall) {
        match &mut exchange.way {
            StreamingPath::Shm(near) => {
                let post = self
                    .endpoint
                    .as_mut()
                    .filter(|_| near.join_number == self.join_number);
                if let (Some(writing), Some(post)) = (near.writing.take(), post) {
                    post.finish_body(writing);
                }
            }
            StreamingPath::Http(distance) => distance.finish_body(),
            StreamingPath::Ended(_) => {}
        }
    }

    /// Closes the call. If it has not ended, it is cancelled, and the callee is told.
    pub fn close_call(&mut self, exchange: StreamingCall) {
        drop(exchange);
        self.cancel_abandoned();
    }

    fn end_stream(&mut self, way: StreamingPath) {
        match way {
            StreamingPath::Shm(near) => self.cancel_one(AbandonedCall {
                join_number: near.join_number,
                pending: near.pending,
                writing: near.writing,
            }),
            StreamingPath::Http(distance) => distance.give_up(),
            StreamingPath::Ended(_) => {}
        }
    }

    /// Tells the callees of what was dropped.
    pub(super) fn cancel_abandoned(&mut self) {
        let left = std::mem::take(
            &mut *self
                .abandoned
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        left.into_iter().for_each(|left| self.cancel_one(left));
    }

    fn cancel_one(&mut self, left: AbandonedCall) {
        let Some(post) = self
            .endpoint
            .as_mut()
            .filter(|_| left.join_number == self.join_number)
        else {
            return;
        };
        left.writing
            .into_iter()
            .for_each(|writing| post.abort_body(writing));
        left.pending
            .into_iter()
            .for_each(|pending| post.cancel_call(pending));
    }

    /// Sends; when every instance has as many calls as it may have, waits for answers: they bring credit, sooner than another
    /// way would be.
    pub(super) fn send_with_credit<T>(
        &mut self,
        context: CallContext,
        mut send: impl FnMut(&mut BlockingEndpoint) -> Result<T, UnsentReason>,
    ) -> Result<T, UnsentReason> {
        let end = if context.deadline == 0 {
            clock::deadline_after(crate::shm_client::CREDIT_TIMEOUT)
        } else {
            context.deadline
        };
        loop {
            let post = self.endpoint.as_mut().ok_or(UnsentReason::NoPeer)?;
            let sent = send(post);
            let left = clock::time_until(end);
            if !matches!(sent, Err(UnsentReason::NoCredit))
                || left.is_zero()
                || self.interrupt.is_some_and(|stop| stop())
            {
                return sent;
            }
            post.sleep_for(None, left.min(INTERRUPT_CHECK_INTERVAL));
        }
    }

    /// An error when whoever waits is to do something else.
    pub(super) fn check_interrupt(&self, name: &str, path: Path) -> Result<(), Error> {
        match self.interrupt.is_some_and(|stop| stop()) {
            true => Err(Error::new(
                name,
                Some(path),
                ErrorKind::Died("it was given up here".into()),
            )),
            false => Ok(()),
        }
    }
}
