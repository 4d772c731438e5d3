//! Serving on a thread that waits: calls from memory and from HTTP, one after the other.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::Incoming;
use nearpath_domain::post::NotWanted;

use super::answering::{Answering, Visitor};
use super::beside::{Beside, Between};
use super::party::Party;
use crate::body::Source;
use crate::error::{Error, Kind};
use crate::message::{Request, Response};

/// How long to wait for HTTP before looking for the domain, or for a signal, again.
const LOOK: Duration = Duration::from_millis(200);

/// What came in.
enum Came {
    Memory(Incoming),
    Http(Visitor),
    Nothing,
}

impl Party {
    /// Serves until the process is told to stop (SIGTERM, SIGINT). The handler may make calls with the party that it gets.
    ///
    /// # Errors
    /// [`crate::Kind::Listen`] when the port for HTTP is taken.
    pub fn serve(&mut self, handler: impl FnMut(&mut Self, Request) -> Response) -> Result<(), Error> {
        self.serve_while(true, handler, || true)
    }

    /// As [`Party::serve`]; `signals` says whether SIGTERM and SIGINT end it, `on` is asked between calls and after each
    /// wake-up.
    ///
    /// # Errors
    /// As [`Party::serve`].
    pub fn serve_while(
        &mut self,
        signals: bool,
        mut handler: impl FnMut(&mut Self, Request) -> Response,
        mut on: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let beside = Beside::start(self.environment.listen, self.streams, signals)?;
        self.post = None; // one that only called; the next one serves
        self.serves = true;
        while on() && !beside.between.stopped() {
            match self.next(&beside.between, &beside.visitors, &mut on) {
                Came::Memory(incoming) => self.answer(incoming, &mut handler),
                Came::Http(visitor) => self.receive(visitor, &mut handler),
                Came::Nothing => {}
            }
        }
        beside.between.at(None);
        self.drain(&mut handler);
        self.serves = false;
        self.post = None; // the node tells others that this function takes no more calls
        Ok(())
    }

    /// Answers what has come already.
    fn drain(&mut self, handler: &mut impl FnMut(&mut Self, Request) -> Response) {
        while let Some(incoming) = self.post.as_mut().and_then(|post| post.next(Some(Duration::ZERO))) {
            self.answer(incoming, handler);
        }
    }

    /// The next call, or nothing when it is time to look at the rest.
    fn next(&mut self, between: &Between, visitors: &Receiver<Visitor>, on: &mut impl FnMut() -> bool) -> Came {
        if let Ok(visitor) = visitors.try_recv() {
            return Came::Http(visitor);
        }
        let fresh = self.post.as_ref().is_none_or(|post| post.hung_up());
        let member = self.enter();
        let post = self.post.as_mut().filter(|post| member && !post.hung_up());
        let Some(post) = post else {
            between.at(None);
            return match visitors.recv_timeout(LOOK) {
                Ok(visitor) => Came::Http(visitor),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Came::Nothing,
            };
        };
        if fresh {
            between.at(Some(post.knocker()));
            if let Err(error) = post.ready() {
                eprintln!("nearpath: the node does not hear that this function is ready: {error}");
            }
        }
        let mut visitor = None;
        let incoming = post.next_unless(None, || {
            visitor = visitors.try_recv().ok();
            visitor.is_some() || between.stopped() || !on()
        });
        match (incoming, visitor) {
            (Some(incoming), _) => Came::Memory(incoming),
            (None, Some(visitor)) => Came::Http(visitor),
            (None, None) => Came::Nothing,
        }
    }

    fn answer(&mut self, mut incoming: Incoming, handler: &mut impl FnMut(&mut Self, Request) -> Response) {
        let request = Request::of_memory(&mut incoming);
        self.handle(request, Answering::near(incoming), handler);
    }

    /// Answers what another thread took.
    pub(super) fn receive(
        &mut self,
        (request, back): Visitor,
        handler: &mut impl FnMut(&mut Self, Request) -> Response,
    ) {
        if !back.is_closed() {
            self.handle(request, Answering::Visitor(Some(back), None), handler);
        }
    }

    fn handle(
        &mut self,
        request: Request,
        answering: Answering,
        handler: &mut impl FnMut(&mut Self, Request) -> Response,
    ) {
        (self.context, self.answering) = (request.context, answering);
        let response = handler(self, request);
        self.context = Default::default();
        std::mem::take(&mut self.answering).end(self.post.as_mut(), response);
    }

    /// In a handler: begins its answer, of which more is written. What the handler returns is not sent then.
    ///
    /// # Errors
    /// [`NotWanted`] when nobody waits for it, or it had begun.
    pub fn begin_answer(&mut self, head: Response) -> Result<(), NotWanted> {
        self.answering.begin(self.post.as_mut(), head)
    }

    /// Writes a piece of the answer that was begun; it goes at once. Waits while eight parts are unread.
    ///
    /// # Errors
    /// [`NotWanted`] when the caller has gone: what else is written goes nowhere.
    pub fn write_answer(&mut self, piece: impl Into<Bytes>) -> Result<(), NotWanted> {
        self.answering.write(self.post.as_mut(), piece.into())
    }

    /// The answer that was begun is complete. Without this it is broken off when the handler returns: its reader gets an error.
    pub fn finish_answer(&mut self) {
        self.answering.finish(self.post.as_mut());
    }

    /// The next part of a request's body; nothing at the end. For a party that is [`Party::streaming`]; else the body is there,
    /// and is the only part.
    pub fn part(&mut self, request: &mut Request) -> Option<Result<Bytes, Error>> {
        if !request.body.is_empty() {
            return Some(Ok(std::mem::take(&mut request.body).into()));
        }
        let (path, left) = (request.path, request.time_left());
        let part = match (&self.answering, self.post.as_mut(), request.rest.as_mut()?) {
            (Answering::Near(..), Some(post), Source::Near(rest)) => {
                post.part(rest, left).map(|part| part.map_err(Kind::of))
            }
            (_, _, source) => waiting(source, left),
        };
        if !matches!(part, Some(Ok(_))) {
            request.rest = None; // nothing comes after the end
        }
        part.map(|part| part.map_err(|kind| Error::new("", Some(path), kind)))
    }
}

/// Reads a body that another thread takes care of.
fn waiting(source: &mut Source, left: Option<Duration>) -> Option<Result<Bytes, Kind>> {
    let end = left.map(|left| Instant::now() + left);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(part) = source.poll(&mut Context::from_waker(&waker)) {
            return part;
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(Duration::ZERO) => return Some(Err(Kind::Timeout)),
            Some(left) => thread::park_timeout(left),
        }
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
