//! Serving on a thread that waits: calls from memory and from HTTP, one after the other.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use nearpath_domain::Incoming;

use super::beside::{Beside, Between, Visitor};
use super::party::Party;
use crate::error::Error;
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
        let beside = Beside::start(self.environment.listen, signals)?;
        self.post = None; // one that only called; the next one serves
        self.serves = true;
        while on() && !beside.between.stopped() {
            match self.next(&beside.between, &beside.visitors, &mut on) {
                Came::Memory(incoming) => self.answer(incoming, &mut handler),
                Came::Http((request, back)) => drop(back.send(self.handle(request, &mut handler))),
                Came::Nothing => {}
            }
        }
        beside.between.at(None);
        self.finish(&mut handler);
        self.serves = false;
        self.post = None; // the node tells others that this function takes no more calls
        Ok(())
    }

    /// Answers what has come already.
    fn finish(&mut self, handler: &mut impl FnMut(&mut Self, Request) -> Response) {
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
        let answer = self.handle(request, handler).into_answer();
        if let Some(post) = &mut self.post {
            post.answer(incoming, answer);
        }
    }

    fn handle(&mut self, request: Request, handler: &mut impl FnMut(&mut Self, Request) -> Response) -> Response {
        self.context = request.context;
        let response = handler(self, request);
        self.context = Default::default();
        response
    }
}
