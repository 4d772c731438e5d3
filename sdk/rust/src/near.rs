//! Calls through shared memory.

use std::time::Duration;

use bytes::Bytes;
use nearpath_domain::clock;
use nearpath_domain::post::Payload;
use nearpath_domain::post::polled::{Call, Post, Writer};
use nearpath_domain::{CallError, To, Unsent};
use nearpath_types::FunctionId;

use crate::answer::Streaming;
use crate::ask::Ask;
use crate::body::{Body, Own, Source};
use crate::context::Context;
use crate::error::Error;
use crate::message::{Path, Response};

/// How long a call without a deadline waits for credit before it goes another way.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Makes a call and waits for the answer. Nothing is left of a body that was handed over; of one that was not sent, all is.
pub(crate) async fn call(
    post: &Post,
    name: &str,
    function: &FunctionId,
    body: &mut Payload,
    ask: &Ask,
    context: Context,
) -> Result<Response, Error> {
    let to = To::Function(function);
    let mut send = || asking(ask, &Bytes::new(), context, |request| post.call_with(to, request, body));
    let mut sent = send();
    if matches!(sent, Err(Unsent::NoCredit)) {
        sent = Box::pin(with_credit(post, function, context, send)).await; // seldom, and so on the heap
    }
    let answer = match sent {
        Ok(answer) => answer.await,
        Err(unsent) => Err(CallError::Unsent(unsent)),
    };
    answer.map_err(|error| Error::near(name, error)).and_then(|mut reply| Response::of_memory(name, &mut reply))
}

/// Begins a call whose body goes as it comes.
pub(crate) async fn open(
    post: &Post,
    function: &FunctionId,
    ask: &Ask,
    context: Context,
) -> Result<(Call, Writer), Unsent> {
    let none = Bytes::new();
    let send = || asking(ask, &none, context, |request| post.open(To::Function(function), request, None));
    let opened = match send() {
        Err(Unsent::NoCredit) => with_credit(post, function, context, send).await,
        opened => opened,
    };
    opened.map(|(call, writer)| (call.as_it_comes(), writer))
}

/// The beginning of an answer, and the rest to be read.
pub(crate) async fn answer(name: &str, call: Call, context: Context) -> Result<Streaming, Error> {
    let mut reply = call.await.map_err(|error| Error::near(name, error))?;
    let (response, first) = Response::of_memory(name, &mut reply)?.parted();
    let rest = reply.rest.take().map(Source::Near);
    let body = Body::of(name, Path::Shm, first, rest).until(context.deadline);
    Ok(Streaming { response, body })
}

/// Writes a body as its pieces come. Why it failed, if it did: then the call, or the answer, is broken off.
pub(crate) async fn write(mut writer: Writer, mut body: Own) -> Result<(), String> {
    use futures_util::StreamExt;
    while std::future::poll_fn(|cx| writer.poll_ready(cx)).await.is_ok() {
        match body.next().await {
            Some(Ok(piece)) => {
                let _ = writer.hand(piece); // not wanted: the next look says so
            }
            Some(Err(why)) => return Err(why),
            None => {
                writer.finish();
                break;
            }
        }
    }
    Ok(()) // nobody wants more: there is an answer, or the call is lost, and its outcome says which
}

/// Waits for credit: the answers that bring it are on their way, and sooner here than a call can go another way.
async fn with_credit<T>(
    post: &Post,
    function: &FunctionId,
    context: Context,
    mut send: impl FnMut() -> Result<T, Unsent>,
) -> Result<T, Unsent> {
    let patience = if context.deadline == 0 { PATIENCE } else { clock::until(context.deadline) };
    let tries = async {
        loop {
            post.credit(function).await;
            match send() {
                Err(Unsent::NoCredit) => tokio::task::yield_now().await, // others were quicker
                sent => return sent,
            }
        }
    };
    tokio::time::timeout(patience, tries).await.unwrap_or(Err(Unsent::NoCredit))
}

/// Builds the request on the stack of whoever sends it.
pub(crate) fn asking<T>(
    ask: &Ask,
    body: &Bytes,
    context: Context,
    send: impl FnOnce(&nearpath_domain::Request<'_>) -> T,
) -> T {
    let method = ask.method.as_deref().unwrap_or("POST").as_bytes();
    let path = ask.path.as_deref().unwrap_or("/").as_bytes();
    let plain: [(&str, &[u8]); 2] = [(":method", method), (":path", path)];
    let Context { deadline, trace, span } = context;
    let request = |fields| nearpath_domain::Request { fields, body: body.clone(), deadline, trace, span };
    match ask.head.iter().next() {
        None => send(&request(&plain)),
        Some(_) => {
            let fields: Vec<_> = plain.into_iter().chain(ask.head.iter()).collect();
            send(&request(&fields))
        }
    }
}
