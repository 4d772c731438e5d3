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
//! on that thread. Several at once: `tokio::join!`. What was sent is never sent again, unless [`Ask::idempotent`] says that it
//! may be.
#![forbid(unsafe_code)]

mod answer;
mod ask;
pub mod blocking;
mod body;
mod context;
mod dial;
mod environment;
mod error;
mod far;
mod head;
mod home;
mod listen;
mod message;
mod near;
mod server;
mod way;

use std::fmt;

use bytes::Bytes;
use futures_util::Stream;

pub use answer::{Answer, IntoAnswer, Streaming};
pub use ask::Ask;
pub use body::Body;
pub use environment::Environment;
pub use error::{Error, Kind};
pub use head::Head;
pub use message::{Path, Request, Response};
pub use nearpath_domain::post::{Draft, Payload, Published};
pub use server::{Handler, Server};

/// Serves calls until the process is told to stop (SIGTERM, SIGINT), and finishes those that are open.
///
/// # Errors
/// [`Kind::Listen`] when the port for HTTP is taken: see [`Server::listen`].
pub fn serve(handler: impl Handler) -> Result<(), Error> {
    Server::new(handler).run()
}

/// Runs a future that makes calls, on this thread.
///
/// # Errors
/// [`Kind::Listen`] when the system gives no event loop.
pub fn run<F: Future>(future: F) -> Result<F::Output, Error> {
    run_in(Environment::own(), future)
}

/// As [`run`], in other surroundings than the process's own.
///
/// # Errors
/// As [`run`].
pub fn run_in<F: Future>(environment: Environment, future: F) -> Result<F::Output, Error> {
    home::run(environment, home::Role::default(), home::only_calls, async || future.await)
}

/// Memory to write a payload in that goes out where it lies: so many zeros, in a slot of the domain where this thread is a party
/// of one and has room. It is accepted wherever a payload is; where shared memory does not reach, it is copied.
pub fn draft(bytes: usize) -> Draft {
    home::here().draft(bytes)
}

/// Calls a function, `NAME` or `NAME.NAMESPACE`, and waits for its answer, whatever status that has.
///
/// # Errors
/// When there is no answer of the function: [`Error`] says which function, which path and why.
pub async fn call(name: &str, payload: impl Into<Payload>) -> Result<Response, Error> {
    call_with(name, payload, Ask::default()).await
}

/// As [`call`], with method, path, header fields, deadline.
///
/// # Errors
/// As [`call`].
pub async fn call_with(name: &str, payload: impl Into<Payload>, ask: Ask) -> Result<Response, Error> {
    home::here().call(name, payload.into(), &ask).await
}

/// Calls a function with a body that goes as its pieces come, and returns when the answer begins, which may be before the body
/// has ended; the answer's body is read as it comes. A slow reader stops its writer at eight parts. Dropping the answer gives
/// the call up.
///
/// # Errors
/// As [`call`]. A body whose stream fails ends the call with [`Kind::Cut`]: the callee's reader gets an error, never an end.
pub async fn call_stream<S, B, E>(name: &str, body: S) -> Result<Streaming, Error>
where
    S: Stream<Item = Result<B, E>> + 'static,
    B: Into<Bytes>,
    E: fmt::Display,
{
    call_stream_with(name, body, Ask::default()).await
}

/// As [`call_stream`], with method, path, header fields, deadline: for the whole exchange.
///
/// # Errors
/// As [`call_stream`].
pub async fn call_stream_with<S, B, E>(name: &str, body: S, ask: Ask) -> Result<Streaming, Error>
where
    S: Stream<Item = Result<B, E>> + 'static,
    B: Into<Bytes>,
    E: fmt::Display,
{
    home::here().stream(name, body::own(body), &ask).await
}

/// Has a function called later: the gateway queues the call, and sends the answer to [`Ask::callback`] if there is one. Returns
/// the call's id (`X-Call-Id`), by which the callback is recognised; none when the gateway gives none.
///
/// # Errors
/// When the gateway did not accept it.
pub async fn call_later(name: &str, payload: impl Into<Payload>, ask: Ask) -> Result<Option<String>, Error> {
    home::here().later(name, &payload.into(), &ask).await
}

/// Sends an event to one instance of each function of the domain that subscribes to the topic, and says to how many. Outside a
/// domain nobody subscribes. It may be lost with its receiver.
///
/// # Errors
/// [`Kind::Name`] when that is no topic: it is empty, longer than 65,535 bytes, or has a wildcard.
pub async fn publish(topic: &str, payload: impl Into<Bytes>) -> Result<Published, Error> {
    publish_with(topic, payload, Ask::default()).await
}

/// As [`publish`], with method, path, header fields.
///
/// # Errors
/// As [`publish`].
pub async fn publish_with(topic: &str, payload: impl Into<Bytes>, ask: Ask) -> Result<Published, Error> {
    home::here().publish(topic, payload.into(), &ask).await
}

/// Sends an event: it was handed over when this returns; nobody answers, and it may be lost with its receiver.
///
/// # Errors
/// When it was not handed over.
pub async fn notify(name: &str, payload: impl Into<Payload>) -> Result<(), Error> {
    notify_with(name, payload, Ask::default()).await
}

/// As [`notify`], with method, path, header fields.
///
/// # Errors
/// As [`notify`].
pub async fn notify_with(name: &str, payload: impl Into<Payload>, ask: Ask) -> Result<(), Error> {
    home::here().notify(name, payload.into(), &ask).await
}
