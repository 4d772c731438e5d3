//! Functions that take calls and make them, over the nearest path there is.
//!
//! ```no_run
//! fn main() -> Result<(), nearpath::Error> {
//!     nearpath::serve(async |request: nearpath::Request| nearpath::call("currency", request.into_body()).await)
//! }
//! ```
//!
//! Inside a domain a call goes through shared memory, everywhere else over HTTP through the gateway; [`Response::path`] tells
//! which. The same program runs inside nearpath, beside a plain OpenFaaS gateway, and alone. [`serve`] takes calls, [`run`] is
//! for a program that only makes them: both give the calling thread an event loop, and calls made on it are futures that stay
//! on that thread. Several at once: `tokio::join!`. What was sent is never sent again, unless [`CallOptions::idempotent`] says that it
//! may be.
#![forbid(unsafe_code)]

pub mod blocking;
mod body_stream;
mod call_options;
mod context;
mod environment;
mod error;
mod gateway_connector;
mod handler_response;
mod head;
mod http_client;
mod http_listener;
mod message;
mod path_header;
mod server;
mod shm_client;
mod thread_context;

use std::fmt;

use bytes::Bytes;
use futures_util::Stream;

pub use body_stream::BodyStream;
pub use call_options::CallOptions;
pub use environment::Environment;
pub use error::{Error, ErrorKind};
pub use handler_response::{HandlerResponse, IntoResponse, StreamingResponse};
pub use head::HeaderFields;
pub use message::{Path, Request, Response};
pub use nearpath_domain::endpoint::{BodyDraft, CallBody, PublishReport};
pub use server::{FunctionServer, Handler};

/// Serves calls until SIGTERM or SIGINT, and finishes open ones.
///
/// # Errors
/// [`ErrorKind::Listen`] when the port for HTTP is taken: see [`FunctionServer::listen_on`].
pub fn serve(handler: impl Handler) -> Result<(), Error> {
    FunctionServer::new(handler).run()
}

/// Runs a future that makes calls, on this thread.
///
/// # Errors
/// [`ErrorKind::Listen`] when the system gives no event loop.
pub fn run<F: Future>(future: F) -> Result<F::Output, Error> {
    run_in(Environment::from_process(), future)
}

/// As [`run`], with a given environment.
///
/// # Errors
/// As [`run`].
pub fn run_in<F: Future>(environment: Environment, future: F) -> Result<F::Output, Error> {
    thread_context::run_thread(
        environment,
        thread_context::EndpointRole::default(),
        thread_context::idle_until_hang_up,
        async || future.await,
    )
}

/// Memory to write a payload in that goes out where it lies: so many zeros, in a slot of the domain where this thread is an endpoint
/// of one and has room. It is accepted wherever a payload is; where shared memory does not reach, it is copied.
pub fn draft(bytes: usize) -> BodyDraft {
    thread_context::current_thread().draft_body(bytes)
}

/// Calls a function, `NAME` or `NAME.NAMESPACE`, and waits for its answer, whatever status that has.
///
/// # Errors
/// When there is no answer of the function: [`Error`] says which function, which path and why.
pub async fn call(name: &str, payload: impl Into<CallBody>) -> Result<Response, Error> {
    call_with(name, payload, CallOptions::default()).await
}

/// As [`call`], with method, path, header fields, deadline.
///
/// # Errors
/// As [`call`].
pub async fn call_with(
    name: &str,
    payload: impl Into<CallBody>,
    ask: CallOptions,
) -> Result<Response, Error> {
    thread_context::current_thread()
        .call(name, payload.into(), &ask)
        .await
}

/// Calls a function with a body that goes as its pieces come, and returns when the answer begins, which may be before the body
/// has ended; the answer's body is read as it comes. A slow reader stops its writer at eight parts. Dropping the answer gives
/// the call up.
///
/// # Errors
/// As [`call`]. A body whose stream fails ends the call with [`ErrorKind::Truncated`]: the callee's reader gets an error, never an end.
pub async fn call_stream<S, B, E>(name: &str, body: S) -> Result<StreamingResponse, Error>
where
    S: Stream<Item = Result<B, E>> + 'static,
    B: Into<Bytes>,
    E: fmt::Display,
{
    call_stream_with(name, body, CallOptions::default()).await
}

/// As [`call_stream`], with method, path, header fields, deadline: for the whole exchange.
///
/// # Errors
/// As [`call_stream`].
pub async fn call_stream_with<S, B, E>(
    name: &str,
    body: S,
    ask: CallOptions,
) -> Result<StreamingResponse, Error>
where
    S: Stream<Item = Result<B, E>> + 'static,
    B: Into<Bytes>,
    E: fmt::Display,
{
    thread_context::current_thread()
        .stream_call(name, body_stream::boxed_stream(body), &ask)
        .await
}

/// Has a function called later: the gateway queues the call, and sends the answer to [`CallOptions::callback`] if there is one. Returns
/// the call's id (`X-Call-Id`), by which the callback is recognised; none when the gateway gives none.
///
/// # Errors
/// When the gateway did not accept it.
pub async fn call_later(
    name: &str,
    payload: impl Into<CallBody>,
    ask: CallOptions,
) -> Result<Option<String>, Error> {
    thread_context::current_thread()
        .call_later(name, &payload.into(), &ask)
        .await
}

/// Sends an event to one instance of each function of the domain that subscribes to the topic, and says to how many. Outside a
/// domain it has no subscribers. It may be lost with its receiver.
///
/// # Errors
/// [`ErrorKind::Name`] when that is no topic: it is empty, longer than 65,535 bytes, or has a wildcard.
pub async fn publish(topic: &str, payload: impl Into<Bytes>) -> Result<PublishReport, Error> {
    publish_with(topic, payload, CallOptions::default()).await
}

/// As [`publish`], with method, path, header fields.
///
/// # Errors
/// As [`publish`].
pub async fn publish_with(
    topic: &str,
    payload: impl Into<Bytes>,
    ask: CallOptions,
) -> Result<PublishReport, Error> {
    thread_context::current_thread()
        .publish_event(topic, payload.into(), &ask)
        .await
}

/// Sends an event. It was handed over when this returns, and may still be lost with its receiver.
///
/// # Errors
/// When it was not handed over.
pub async fn notify(name: &str, payload: impl Into<CallBody>) -> Result<(), Error> {
    notify_with(name, payload, CallOptions::default()).await
}

/// As [`notify`], with method, path, header fields.
///
/// # Errors
/// As [`notify`].
pub async fn notify_with(
    name: &str,
    payload: impl Into<CallBody>,
    ask: CallOptions,
) -> Result<(), Error> {
    thread_context::current_thread()
        .send_event(name, payload.into(), &ask)
        .await
}
