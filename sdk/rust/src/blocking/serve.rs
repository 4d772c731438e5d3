//! Serving on a thread that waits: calls from memory and from HTTP, one after the other.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::IncomingCall;
use nearpath_domain::endpoint::BodyUnwanted;

use super::active_response::{ActiveResponse, HttpRequest};
use super::http_thread::{HttpThread, ThreadLink};
use super::thread_endpoint::ThreadEndpoint;
use crate::body_stream::BodySource;
use crate::error::{Error, ErrorKind};
use crate::message::{Request, Response};

/// How long to wait for HTTP before looking for the domain, or for a signal, again.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Next request to handle.
enum NextRequest {
    Memory(IncomingCall),
    Http(HttpRequest),
    Idle,
}

impl ThreadEndpoint {
    /// Serves until SIGTERM or SIGINT. The handler may make calls with the endpoint that it gets.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Listen`] when the port for HTTP is taken.
    pub fn serve_calls(
        &mut self,
        handler: impl FnMut(&mut Self, Request) -> Response,
    ) -> Result<(), Error> {
        self.serve_while(true, handler, || true)
    }

    /// As [`ThreadEndpoint::serve_calls`]; `signals` says whether SIGTERM and SIGINT end it, `on` is asked between calls and after each
    /// wake-up.
    ///
    /// # Errors
    /// As [`ThreadEndpoint::serve_calls`].
    pub fn serve_while(
        &mut self,
        signals: bool,
        mut handler: impl FnMut(&mut Self, Request) -> Response,
        mut on: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let beside = HttpThread::start(self.environment.listen, self.streams, signals)?;
        self.endpoint = None; // one that only called; the next one serves
        self.serves = true;
        while on() && !beside.link.is_stopped() {
            match self.next_request(&beside.link, &beside.requests, &mut on) {
                NextRequest::Memory(incoming) => self.handle_incoming(incoming, &mut handler),
                NextRequest::Http(visitor) => self.handle_http(visitor, &mut handler),
                NextRequest::Idle => {}
            }
        }
        beside.link.set_signal(None);
        self.drain_received(&mut handler);
        self.serves = false;
        self.endpoint = None; // the node tells others that this function takes no more calls
        Ok(())
    }

    /// Answers what has come already.
    fn drain_received(&mut self, handler: &mut impl FnMut(&mut Self, Request) -> Response) {
        while let Some(incoming) = self
            .endpoint
            .as_mut()
            .and_then(|post| post.next_incoming(Some(Duration::ZERO)))
        {
            self.handle_incoming(incoming, handler);
        }
    }

    /// The next call, or nothing when it is time to look at the rest.
    fn next_request(
        &mut self,
        between: &ThreadLink,
        visitors: &Receiver<HttpRequest>,
        on: &mut impl FnMut() -> bool,
    ) -> NextRequest {
        if let Ok(visitor) = visitors.try_recv() {
            return NextRequest::Http(visitor);
        }
        let fresh = self.endpoint.as_ref().is_none_or(|post| post.hung_up());
        let member = self.ensure_joined();
        let post = self
            .endpoint
            .as_mut()
            .filter(|post| member && !post.hung_up());
        let Some(post) = post else {
            between.set_signal(None);
            return match visitors.recv_timeout(IDLE_CHECK_INTERVAL) {
                Ok(visitor) => NextRequest::Http(visitor),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    NextRequest::Idle
                }
            };
        };
        if fresh {
            between.set_signal(Some(post.wakeup_signal()));
            if let Err(error) = post.announce_ready() {
                eprintln!("nearpath: the node does not hear that this function is ready: {error}");
            }
        }
        let mut visitor = None;
        let incoming = post.next_incoming_unless(None, || {
            visitor = visitors.try_recv().ok();
            visitor.is_some() || between.is_stopped() || !on()
        });
        match (incoming, visitor) {
            (Some(incoming), _) => NextRequest::Memory(incoming),
            (None, Some(visitor)) => NextRequest::Http(visitor),
            (None, None) => NextRequest::Idle,
        }
    }

    fn handle_incoming(
        &mut self,
        mut incoming: IncomingCall,
        handler: &mut impl FnMut(&mut Self, Request) -> Response,
    ) {
        let request = Request::from_incoming(&mut incoming);
        self.run_handler(request, ActiveResponse::from_incoming(incoming), handler);
    }

    /// Answers what another thread took.
    pub(super) fn handle_http(
        &mut self,
        (request, back): HttpRequest,
        handler: &mut impl FnMut(&mut Self, Request) -> Response,
    ) {
        if !back.is_closed() {
            self.run_handler(request, ActiveResponse::Visitor(Some(back), None), handler);
        }
    }

    fn run_handler(
        &mut self,
        request: Request,
        answering: ActiveResponse,
        handler: &mut impl FnMut(&mut Self, Request) -> Response,
    ) {
        (self.context, self.response) = (request.context, answering);
        let response = handler(self, request);
        self.context = Default::default();
        std::mem::take(&mut self.response).send_response(self.endpoint.as_mut(), response);
    }

    /// In a handler: begins its answer, of which more is written. What the handler returns is not sent then.
    ///
    /// # Errors
    /// [`BodyUnwanted`] when its caller is gone, or the response had begun.
    pub fn begin_response(&mut self, head: Response) -> Result<(), BodyUnwanted> {
        self.response.begin_response(self.endpoint.as_mut(), head)
    }

    /// Writes a piece of the answer that was begun; it goes at once. Waits while eight parts are unread.
    ///
    /// # Errors
    /// [`BodyUnwanted`] when the caller has gone: what else is written goes nowhere.
    pub fn write_response(&mut self, piece: impl Into<Bytes>) -> Result<(), BodyUnwanted> {
        self.response
            .write_chunk(self.endpoint.as_mut(), piece.into())
    }

    /// The answer that was begun is complete. Without this it is aborted when the handler returns: its reader gets an error.
    pub fn finish_response(&mut self) {
        self.response.finish_response(self.endpoint.as_mut());
    }

    /// The next part of a request's body; nothing at the end. For an endpoint that is [`ThreadEndpoint::streaming`]; else the body is there,
    /// and is the only part.
    pub fn next_part(&mut self, request: &mut Request) -> Option<Result<Bytes, Error>> {
        if !request.body.is_empty() {
            return Some(Ok(std::mem::take(&mut request.body).into()));
        }
        let (path, left) = (request.path, request.time_left());
        let part = match (
            &self.response,
            self.endpoint.as_mut(),
            request.source.as_mut()?,
        ) {
            (ActiveResponse::Near(..), Some(post), BodySource::Shm(rest)) => post
                .next_part(rest, left)
                .map(|part| part.map_err(ErrorKind::from_call_error)),
            (_, _, source) => wait_part(source, left),
        };
        if !matches!(part, Some(Ok(_))) {
            request.source = None; // nothing comes after the end
        }
        part.map(|part| part.map_err(|kind| Error::new("", Some(path), kind)))
    }
}

/// Reads a body that another thread takes care of.
fn wait_part(source: &mut BodySource, left: Option<Duration>) -> Option<Result<Bytes, ErrorKind>> {
    let end = left.map(|left| Instant::now() + left);
    let waker = Waker::from(Arc::new(UnparkWaker(thread::current())));
    loop {
        if let Poll::Ready(part) = source.poll_part(&mut Context::from_waker(&waker)) {
            return part;
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(Duration::ZERO) => return Some(Err(ErrorKind::Timeout)),
            Some(left) => thread::park_timeout(left),
        }
    }
}

/// Wakes a thread.
struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
