//! A call whose body goes, and whose answer comes, piece by piece: one thread does both.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Waiting, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nearpath_domain::clock::Nanos;
use nearpath_domain::post::blocking::{Pending, Post, Writing};
use nearpath_domain::post::{NotWanted, Rest};
use nearpath_domain::{CallError, Reply, To, Unsent, clock};

use super::far::Distance;
use super::party::{LOOK, Party};
use crate::ask::Ask;
use crate::context::Context;
use crate::error::{Error, Kind};
use crate::far;
use crate::home::{function, nobody};
use crate::message::{Path, Response};
use crate::near::asking;

/// A call whose body is being written, or whose answer is being read. Dropping it gives it up: the callee is told when its party
/// is used next, or with [`Party::close`] at once.
#[derive(Debug)]
#[must_use = "an exchange that is dropped is given up"]
pub struct Exchange {
    name: String,
    way: Way,
    context: Context,
    /// How long nothing may come.
    silence: Option<Duration>,
    leftover: Leftover,
}

#[derive(Debug)]
enum Way {
    Near(Near),
    Far(Distance),
    /// It has come to its end.
    Over(Path),
}

/// What came next.
#[derive(Debug)]
pub enum Step {
    /// There is room for a piece of the body.
    Room,
    /// The answer has begun; its body comes in parts.
    Begun(Response),
    /// A part of the answer's body.
    Part(Bytes),
    /// That was all.
    End,
}

#[derive(Debug)]
struct Near {
    /// In which membership.
    joins: u64,
    pending: Option<Pending>,
    writing: Option<Writing>,
    first: Bytes,
    rest: Option<Rest>,
}

/// What was dropped and whose callees have to be told: by the party's thread.
pub(super) type Leftover = Arc<Mutex<Vec<Left>>>;

/// See [`Leftover`].
#[derive(Debug)]
pub(super) struct Left {
    joins: u64,
    pending: Option<Pending>,
    writing: Option<Writing>,
}

impl Near {
    /// What is there now.
    fn look(&mut self, post: &mut Post, name: &str, writes: bool) -> Poll<Result<Step, Error>> {
        if let Some(pending) = &self.pending {
            if let Poll::Ready(outcome) = post.poll(pending) {
                self.pending = None;
                return Poll::Ready(self.begun(name, outcome));
            }
        } else if let Some(part) = self.part(name) {
            return Poll::Ready(part);
        }
        match self.writing.as_ref().map(|writing| post.has_room(writing)) {
            Some(Ok(true)) if writes => return Poll::Ready(Ok(Step::Room)),
            Some(Err(NotWanted)) => self.writing = None,
            _ => {}
        }
        Poll::Pending
    }

    fn begun(&mut self, name: &str, outcome: Result<Reply, CallError>) -> Result<Step, Error> {
        let mut reply = outcome.map_err(|error| Error::near(name, error))?;
        let (response, first) = Response::of_memory(name, &mut reply)?.parted();
        (self.first, self.rest) = (first, reply.rest.take());
        Ok(Step::Begun(response))
    }

    fn part(&mut self, name: &str) -> Option<Result<Step, Error>> {
        if !self.first.is_empty() {
            return Some(Ok(Step::Part(std::mem::take(&mut self.first))));
        }
        let Some(rest) = &self.rest else { return Some(Ok(Step::End)) };
        match rest.poll(&mut Waiting::from_waker(Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(None) => Some(Ok(Step::End)),
            Poll::Ready(Some(part)) => Some(part.map(Step::Part).map_err(|error| Error::near(name, error))),
        }
    }
}

impl Exchange {
    /// Whether more of the body is wanted, as far as is known.
    pub fn is_open(&self) -> bool {
        match &self.way {
            Way::Near(near) => near.writing.is_some(),
            Way::Far(distance) => distance.is_open(),
            Way::Over(_) => false,
        }
    }

    /// When it is too late for what comes next: the deadline, or silence for too long from now; 0: never.
    fn until(&self) -> Nanos {
        let ends = [Some(self.context.deadline).filter(|at| *at != 0), self.silence.map(clock::within)];
        ends.into_iter().flatten().min().unwrap_or(0)
    }

    /// The way that it takes.
    pub fn path(&self) -> Path {
        match &self.way {
            Way::Near(_) => Path::Shm,
            Way::Far(_) => Path::Http,
            Way::Over(path) => *path,
        }
    }

    /// The function that is called.
    pub fn function(&self) -> &str {
        &self.name
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Way::Near(Near { joins, pending, writing, .. }) = &mut self.way
            && (pending.is_some() || writing.is_some())
        {
            let left = Left { joins: *joins, pending: pending.take(), writing: writing.take() };
            self.leftover.lock().unwrap_or_else(PoisonError::into_inner).push(left);
        }
    }
}

impl Party {
    /// Begins a call whose body is written piece by piece, and whose answer is read as it comes. A deadline is for all of it.
    ///
    /// # Errors
    /// When it was not sent.
    pub fn open(&mut self, name: &str, ask: &Ask) -> Result<Exchange, Error> {
        let (to, context) = (function(name)?, self.context.narrowed(ask));
        let way = if self.reaches(&to) {
            let opened = self.patiently(context, |post| {
                asking(ask, &Bytes::new(), context, |request| post.open(To::Function(&to), request, None))
            });
            match opened {
                Ok((pending, writing)) => Some(self.near(pending, writing)),
                Err(why) if ask.near_only => return Err(Error::unsent(name, why)),
                Err(_) => None,
            }
        } else if ask.near_only {
            return Err(nobody(name));
        } else {
            None
        };
        let instead = far::Way::Sync(self.obstacle(&to));
        let far = || self.far.open(name, instead, ask, context).map(Way::Far);
        let way = way.map_or_else(far, Ok)?;
        let (silence, leftover) = (ask.silence, Arc::clone(&self.leftover));
        Ok(Exchange { name: name.to_owned(), way, context, silence, leftover })
    }

    fn near(&mut self, pending: Pending, writing: Writing) -> Way {
        self.post.iter_mut().for_each(|post| post.as_it_comes(&pending));
        let (pending, writing) = (Some(pending), Some(writing));
        Way::Near(Near { joins: self.joins, pending, writing, first: Bytes::new(), rest: None })
    }

    /// Waits for what comes next; with `writes` also for room for a piece of the body.
    ///
    /// # Errors
    /// When there is no answer, or it was broken off: then nothing more comes.
    pub fn step(&mut self, exchange: &mut Exchange, writes: bool) -> Result<Step, Error> {
        let (path, until) = (exchange.path(), exchange.until());
        let step = match &mut exchange.way {
            Way::Over(_) => return Ok(Step::End),
            Way::Far(distance) => self.far.step(&exchange.name, distance, writes, until, self.interrupt),
            Way::Near(near) => self.step_near(&exchange.name, near, writes, until),
        };
        if matches!(step, Err(_) | Ok(Step::End)) {
            self.end(std::mem::replace(&mut exchange.way, Way::Over(path)));
        }
        step
    }

    fn step_near(&mut self, name: &str, near: &mut Near, writes: bool, until: Nanos) -> Result<Step, Error> {
        loop {
            let post = self.post.as_mut().filter(|_| near.joins == self.joins);
            let post = post.ok_or_else(|| Error::near(name, CallError::Died))?;
            if let Poll::Ready(step) = near.look(post, name, writes) {
                return step;
            }
            let left = if until == 0 { LOOK } else { clock::until(until) };
            if left.is_zero() {
                return Err(Error::near(name, CallError::Timeout)); // of a deadline the post may say so before
            }
            post.pause(near.pending.as_ref(), left.min(LOOK).max(Duration::from_micros(1)));
            if let Poll::Ready(step) = near.look(post, name, writes) {
                return step;
            }
            self.look_up(name, Path::Shm)?;
        }
    }

    /// Writes a piece of the body; waits for room. Nobody wants more when there is an answer already, or there will be none:
    /// [`Party::step`] says which.
    ///
    /// # Errors
    /// [`NotWanted`], and nothing was written.
    pub fn write(&mut self, exchange: &mut Exchange, piece: impl Into<Bytes>) -> Result<(), NotWanted> {
        match &mut exchange.way {
            Way::Over(_) => Err(NotWanted),
            Way::Far(distance) => self.far.write(distance, piece.into()),
            Way::Near(near) => {
                let post = self.post.as_mut().filter(|_| near.joins == self.joins).ok_or(NotWanted)?;
                post.write(near.writing.as_ref().ok_or(NotWanted)?, piece.into())
            }
        }
    }

    /// The body is complete.
    pub fn finish(&mut self, exchange: &mut Exchange) {
        match &mut exchange.way {
            Way::Near(near) => {
                let post = self.post.as_mut().filter(|_| near.joins == self.joins);
                if let (Some(writing), Some(post)) = (near.writing.take(), post) {
                    post.finish(writing);
                }
            }
            Way::Far(distance) => distance.finish(),
            Way::Over(_) => {}
        }
    }

    /// Gives the exchange up, if it has not come to its end; the callee is told.
    pub fn close(&mut self, exchange: Exchange) {
        drop(exchange);
        self.tidy();
    }

    fn end(&mut self, way: Way) {
        match way {
            Way::Near(near) => self.give_up(Left { joins: near.joins, pending: near.pending, writing: near.writing }),
            Way::Far(distance) => distance.give_up(),
            Way::Over(_) => {}
        }
    }

    /// Tells the callees of what was dropped.
    pub(super) fn tidy(&mut self) {
        let left = std::mem::take(&mut *self.leftover.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_iter().for_each(|left| self.give_up(left));
    }

    fn give_up(&mut self, left: Left) {
        let Some(post) = self.post.as_mut().filter(|_| left.joins == self.joins) else { return };
        left.writing.into_iter().for_each(|writing| post.abort(writing));
        left.pending.into_iter().for_each(|pending| post.cancel(pending));
    }

    /// Sends; when every instance has as many calls as it may have, waits for answers: they bring credit, sooner than another
    /// way would be.
    pub(super) fn patiently<T>(
        &mut self,
        context: Context,
        mut send: impl FnMut(&mut Post) -> Result<T, Unsent>,
    ) -> Result<T, Unsent> {
        let end = if context.deadline == 0 { clock::within(crate::near::PATIENCE) } else { context.deadline };
        loop {
            let post = self.post.as_mut().ok_or(Unsent::NoPeer)?;
            let sent = send(post);
            let left = clock::until(end);
            if !matches!(sent, Err(Unsent::NoCredit)) || left.is_zero() || self.interrupt.is_some_and(|stop| stop()) {
                return sent;
            }
            post.pause(None, left.min(LOOK));
        }
    }

    /// An error when whoever waits is to do something else.
    pub(super) fn look_up(&self, name: &str, path: Path) -> Result<(), Error> {
        match self.interrupt.is_some_and(|stop| stop()) {
            true => Err(Error::new(name, Some(path), Kind::Died("it was given up here".into()))),
            false => Ok(()),
        }
    }
}
