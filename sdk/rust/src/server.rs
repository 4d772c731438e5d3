//! Serving calls: through shared memory in a domain, and over HTTP where the watchdog connects.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_local;

use crate::context::CONTEXT;
use crate::environment::Environment;
use crate::error::{Error, ErrorKind};
use crate::handler_response::{HandlerResponse, IntoResponse, StreamingResponse};
use crate::http_listener;
use crate::message::{Request, Response};
use crate::thread_context;

/// Default time limit for open calls after a stop request.
const DEFAULT_DRAIN_GRACE: Duration = Duration::from_secs(30);

/// Handler of calls: every `async` function or closure from [`Request`] to a type that is [`IntoResponse`].
pub trait Handler: 'static {
    /// Answers one call. The future is dropped when the caller gives up.
    fn handle(&self, request: Request) -> impl Future<Output = HandlerResponse>;
}

impl<H, F> Handler for H
where
    H: Fn(Request) -> F + 'static,
    F: Future<Output: IntoResponse>,
{
    async fn handle(&self, request: Request) -> HandlerResponse {
        self(request).await.into_response()
    }
}

/// Serves a function.
#[derive(Debug)]
pub struct FunctionServer<H> {
    handler: H,
    environment: Environment,
    drain_grace: Duration,
    streams: bool,
}

impl<H: Handler> FunctionServer<H> {
    /// Creates a server with the environment of the process.
    pub fn new(handler: H) -> Self {
        Self {
            handler,
            environment: Environment::from_process(),
            drain_grace: DEFAULT_DRAIN_GRACE,
            streams: false,
        }
    }

    /// Listens for HTTP there instead of at `upstream_url`, `PORT` or port 5000, whichever is set first.
    pub fn listen_on(mut self, address: SocketAddr) -> Self {
        self.environment.listen = address;
        self
    }

    /// The handler is called when a request begins, and reads its body as it comes: [`Request::into_stream`].
    pub fn streaming(mut self) -> Self {
        self.streams = true;
        self
    }

    /// Uses a given environment instead of the process's own.
    pub fn with_environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Sets the time limit for open calls after a stop request; default 30 s.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.drain_grace = grace;
        self
    }

    /// Serves until SIGTERM or SIGINT, and finishes open calls.
    ///
    /// # Errors
    /// [`ErrorKind::Listen`] when the port for HTTP is taken.
    pub fn run(self) -> Result<(), Error> {
        self.serve_until(async {
            let told = |kind| {
                signal(kind)
                    .map_err(|error| setup_error(format!("cannot wait for signals: {error}")))
            };
            let (mut term, mut int) = (
                told(SignalKind::terminate())?,
                told(SignalKind::interrupt())?,
            );
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            Ok(())
        })
    }

    /// Serves until the future ends, and finishes calls that are open.
    ///
    /// # Errors
    /// As [`FunctionServer::run`].
    pub fn run_until(self, end: impl Future<Output = ()>) -> Result<(), Error> {
        self.serve_until(async {
            end.await;
            Ok(())
        })
    }

    fn serve_until(self, end: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let address = self.environment.listen;
        let listener = bind_listener(address).map_err(|error| listen_error(address, &error))?;
        let role = thread_context::EndpointRole {
            serves: true,
            streams: self.streams,
        };
        let service = Rc::new(HandlerService::new(self.handler, self.streams));
        let member = Rc::clone(&service);
        let member = async move |post: AsyncEndpoint| serve_from_memory(&post, &member).await;
        thread_context::run_thread(self.environment, role, member, async || {
            let listener =
                TcpListener::from_std(listener).map_err(|error| listen_error(address, &error))?;
            let http = spawn_local(http_listener::accept_connections(
                listener,
                Rc::clone(&service),
            ));
            let ended = end.await;
            http.abort();
            let _ = tokio::time::timeout(self.drain_grace, service.open_work.drain_all()).await;
            ended
        })?
    }
}

pub(crate) fn bind_listener(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The handler and the calls that it has open.
pub(crate) struct HandlerService<H> {
    pub(crate) handler: H,
    pub(crate) open_work: OpenWork,
    /// Bodies are handed over as they come.
    pub(crate) is_streaming: bool,
}

impl<H> HandlerService<H> {
    pub(crate) fn new(handler: H, is_streaming: bool) -> Self {
        Self {
            handler,
            open_work: OpenWork::default(),
            is_streaming,
        }
    }
}

/// Takes calls from memory until the node hangs up.
async fn serve_from_memory<H: Handler>(post: &AsyncEndpoint, service: &Rc<HandlerService<H>>) {
    if let Err(error) = post.announce_ready() {
        return eprintln!("nearpath: the node does not hear that this function is ready: {error}");
    }
    while let Some(received) = post.next_incoming().await {
        poll_then_spawn(Box::pin(handle_call(received, Rc::clone(service))));
    }
}

/// Runs a handler until it waits for something; only then it becomes a task. One that answers at once needs none. A panic
/// ends its own call alone, as it would in a task.
fn poll_then_spawn(mut handler: Pin<Box<impl Future<Output = ()> + 'static>>) {
    let mut cx = task::Context::from_waker(Waker::noop()); // the task polls it once more, with a waker of its own
    let first = catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(&mut cx)));
    if let Ok(Poll::Pending) = first {
        spawn_local(handler);
    }
}

async fn handle_call<H: Handler>(mut received: ReceivedCall, service: Rc<HandlerService<H>>) {
    let _open = service.open_work.acquire_guard();
    let request = Request::from_incoming(&mut received);
    let context = request.context;
    let answer = tokio::select! {
        biased;
        answer = CONTEXT.scope(context, service.handler.handle(request)) => answer,
        // The response goes nowhere, but the call has to end. An event has no waiting caller that could cancel it.
        () = received.given_up(), if !received.is_event => Response::default().into(),
    };
    match answer {
        HandlerResponse::Whole(response) => received.send_response(response.into_call_response()),
        HandlerResponse::Streaming(streaming) => {
            CONTEXT
                .scope(context, write_stream(received, streaming))
                .await
        }
    }
}

/// Writes a streamed response until no more is wanted. A failing stream aborts it.
async fn write_stream(
    received: ReceivedCall,
    StreamingResponse { response, mut body }: StreamingResponse,
) {
    if received.is_event {
        return received.send_response(response.into_call_response()); // an event's caller reads no response
    }
    let mut writer = received.begin_response(response.into_call_response(), None);
    while poll_fn(|cx| writer.poll_ready(cx)).await.is_ok() {
        let piece = tokio::select! {
            biased;
            piece = body.next_part() => piece,
            () = writer.given_up() => return,
        };
        match piece {
            Some(Ok(piece)) => {
                let _ = writer.push_chunk(piece); // not wanted: the next look says so
            }
            Some(Err(error)) => return eprintln!("nearpath: an answer is broken off: {error}"),
            None => return writer.finish_body(),
        }
    }
}

pub(crate) fn listen_error(address: SocketAddr, error: &std::io::Error) -> Error {
    setup_error(format!(
        "cannot listen on {address}: {error}; set another port with `upstream_url` or `PORT`"
    ))
}

pub(crate) fn setup_error(text: String) -> Error {
    Error::new("", None, ErrorKind::Listen(text))
}

/// Counts calls that are being answered, and connections; ends them in good order.
#[derive(Debug, Default)]
pub(crate) struct OpenWork {
    count: Cell<usize>,
    none: Notify,
    ending: watch::Sender<bool>,
}

/// Guard of one open call or connection.
pub(crate) struct OpenWorkGuard<'a>(&'a OpenWork);

impl OpenWork {
    pub(crate) fn acquire_guard(&self) -> OpenWorkGuard<'_> {
        self.count.set(self.count.get() + 1);
        OpenWorkGuard(self)
    }

    /// Resolves when the function stops.
    pub(crate) async fn wait_for_stop(&self) {
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await; // the sender is here
    }

    /// Tells connections to end, and waits until nothing is open.
    pub(crate) async fn drain_all(&self) {
        self.ending.send_replace(true);
        while self.count.get() > 0 {
            self.none.notified().await;
        }
    }
}

impl Drop for OpenWorkGuard<'_> {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0 {
            self.0.none.notify_one();
        }
    }
}
