//! Taking calls: through shared memory where there is a door, and over HTTP where the watchdog looks for its tenant.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

use nearpath_domain::post::polled::{Post, Received};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_local;

use crate::answer::{Answer, IntoAnswer, Streaming};
use crate::context::CONTEXT;
use crate::environment::Environment;
use crate::error::{Error, Kind};
use crate::home;
use crate::listen;
use crate::message::{Request, Response};

/// How long open calls may take when the process is told to stop.
const GRACE: Duration = Duration::from_secs(30);

/// What answers calls: every `async` function or closure from [`Request`] to what can be an [`Answer`].
pub trait Handler: 'static {
    /// Answers one call. The future is dropped when the caller gives up.
    fn answer(&self, request: Request) -> impl Future<Output = Answer>;
}

impl<H, F> Handler for H
where
    H: Fn(Request) -> F + 'static,
    F: Future<Output: IntoAnswer>,
{
    async fn answer(&self, request: Request) -> Answer {
        self(request).await.into_answer()
    }
}

/// Serves a function.
#[derive(Debug)]
pub struct Server<H> {
    handler: H,
    environment: Environment,
    grace: Duration,
    streams: bool,
}

impl<H: Handler> Server<H> {
    /// With everything as the surroundings say.
    pub fn new(handler: H) -> Self {
        Self { handler, environment: Environment::own(), grace: GRACE, streams: false }
    }

    /// Listens for HTTP there instead of at `upstream_url`, `PORT` or port 5000, whichever is set first.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.environment.listen = address;
        self
    }

    /// The handler is called when a request begins, and reads its body as it comes: [`Request::into_stream`].
    pub fn streaming(mut self) -> Self {
        self.streams = true;
        self
    }

    /// In other surroundings than the process's own.
    pub fn within(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// How long open calls may take when the process is told to stop; 30 s unless told.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Serves until the process is told to stop (SIGTERM, SIGINT), and finishes calls that are open.
    ///
    /// # Errors
    /// [`Kind::Listen`] when the port for HTTP is taken.
    pub fn run(self) -> Result<(), Error> {
        self.until(async {
            let told = |kind| signal(kind).map_err(|error| fault(format!("cannot wait for signals: {error}")));
            let (mut term, mut int) = (told(SignalKind::terminate())?, told(SignalKind::interrupt())?);
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            Ok(())
        })
    }

    /// Serves until the future ends, and finishes calls that are open.
    ///
    /// # Errors
    /// As [`Server::run`].
    pub fn run_until(self, end: impl Future<Output = ()>) -> Result<(), Error> {
        self.until(async {
            end.await;
            Ok(())
        })
    }

    fn until(self, end: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let address = self.environment.listen;
        let listener = listener(address).map_err(|error| taken(address, &error))?;
        let role = home::Role { serves: true, streams: self.streams };
        let service = Rc::new(Service::new(self.handler, self.streams));
        let member = Rc::clone(&service);
        let member = async move |post: Post| take(&post, &member).await;
        home::run(self.environment, role, member, async || {
            let listener = TcpListener::from_std(listener).map_err(|error| taken(address, &error))?;
            let http = spawn_local(listen::accept(listener, Rc::clone(&service)));
            let ended = end.await;
            http.abort();
            let _ = tokio::time::timeout(self.grace, service.open.end()).await;
            ended
        })?
    }
}

pub(crate) fn listener(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The handler and the calls that it has open.
pub(crate) struct Service<H> {
    pub(crate) handler: H,
    pub(crate) open: Open,
    /// Bodies are handed over as they come.
    pub(crate) streams: bool,
}

impl<H> Service<H> {
    pub(crate) fn new(handler: H, streams: bool) -> Self {
        Self { handler, open: Open::default(), streams }
    }
}

/// Takes calls from memory until the node hangs up.
async fn take<H: Handler>(post: &Post, service: &Rc<Service<H>>) {
    if let Err(error) = post.ready() {
        return eprintln!("nearpath: the node does not hear that this function is ready: {error}");
    }
    while let Some(received) = post.next().await {
        begin(Box::pin(attend(received, Rc::clone(service))));
    }
}

/// Runs a handler until it waits for something; only then it becomes a task. One that answers at once needs none. A panic
/// ends its own call alone, as it would in a task.
fn begin(mut handler: Pin<Box<impl Future<Output = ()> + 'static>>) {
    let mut cx = task::Context::from_waker(Waker::noop()); // the task polls it once more, with a waker of its own
    let first = catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(&mut cx)));
    if let Ok(Poll::Pending) = first {
        spawn_local(handler);
    }
}

async fn attend<H: Handler>(mut received: Received, service: Rc<Service<H>>) {
    let _open = service.open.one();
    let request = Request::of_memory(&mut received);
    let context = request.context;
    let answer = tokio::select! {
        biased;
        answer = CONTEXT.scope(context, service.handler.answer(request)) => answer,
        // Goes nowhere, but the call has to end. Nobody waits for an event: so nobody gives it up.
        () = received.given_up(), if !received.event => Response::default().into(),
    };
    match answer {
        Answer::Whole(response) => received.answer(response.into_answer()),
        Answer::Streaming(streaming) => CONTEXT.scope(context, write(received, streaming)).await,
    }
}

/// Writes an answer as it is made, until nobody wants more of it. One that fails is broken off.
async fn write(received: Received, Streaming { response, mut body }: Streaming) {
    if received.event {
        return received.answer(response.into_answer()); // nobody reads it
    }
    let mut writer = received.begin(response.into_answer(), None);
    while poll_fn(|cx| writer.poll_ready(cx)).await.is_ok() {
        let piece = tokio::select! {
            biased;
            piece = body.next() => piece,
            () = writer.given_up() => return,
        };
        match piece {
            Some(Ok(piece)) => {
                let _ = writer.hand(piece); // not wanted: the next look says so
            }
            Some(Err(error)) => return eprintln!("nearpath: an answer is broken off: {error}"),
            None => return writer.finish(),
        }
    }
}

pub(crate) fn taken(address: SocketAddr, error: &std::io::Error) -> Error {
    fault(format!("cannot listen on {address}: {error}; `upstream_url` or `PORT` names the port for HTTP"))
}

pub(crate) fn fault(text: String) -> Error {
    Error::new("", None, Kind::Listen(text))
}

/// Counts calls that are being answered, and connections; ends them in good order.
#[derive(Debug, Default)]
pub(crate) struct Open {
    count: Cell<usize>,
    none: Notify,
    ending: watch::Sender<bool>,
}

/// One of them.
pub(crate) struct One<'a>(&'a Open);

impl Open {
    pub(crate) fn one(&self) -> One<'_> {
        self.count.set(self.count.get() + 1);
        One(self)
    }

    /// Resolves when the function stops.
    pub(crate) async fn ending(&self) {
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await; // the sender is here
    }

    /// Tells connections to end, and waits until nothing is open.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(true);
        while self.count.get() > 0 {
            self.none.notified().await;
        }
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0 {
            self.0.none.notify_one();
        }
    }
}
