//! Calls through shared memory.

use std::time::Duration;

use bytes::Bytes;
use nearpath_domain::clock;
use nearpath_domain::endpoint::CallBody;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, BodyWriter, CallFuture};
use nearpath_domain::{CallDestination, CallError, UnsentReason};
use nearpath_types::FunctionId;

use crate::body_stream::{BodySource, BodyStream, OwnStream};
use crate::call_options::CallOptions;
use crate::context::CallContext;
use crate::error::Error;
use crate::handler_response::StreamingResponse;
use crate::message::{Path, Response};

/// How long a call without a deadline waits for credit before it goes another way.
pub(crate) const CREDIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes a call and waits for the answer. Nothing is left of a body that was handed over; of one that was not sent, all is.
pub(crate) async fn call_function(
    post: &AsyncEndpoint,
    name: &str,
    function: &FunctionId,
    body: &mut CallBody,
    ask: &CallOptions,
    context: CallContext,
) -> Result<Response, Error> {
    let to = CallDestination::Function(function);
    let mut send = || {
        with_request(ask, &Bytes::new(), context, |request| {
            post.call_with(to, request, body)
        })
    };
    let mut sent = send();
    if matches!(sent, Err(UnsentReason::NoCredit)) {
        sent = Box::pin(retry_with_credit(post, function, context, send)).await; // seldom, and so on the heap
    }
    let answer = match sent {
        Ok(answer) => answer.await,
        Err(unsent) => Err(CallError::Unsent(unsent)),
    };
    answer
        .map_err(|error| Error::from_call_error(name, error))
        .and_then(|mut reply| Response::from_reply(name, &mut reply))
}

/// Begins a call whose body goes as it comes.
pub(crate) async fn open_call(
    post: &AsyncEndpoint,
    function: &FunctionId,
    ask: &CallOptions,
    context: CallContext,
) -> Result<(CallFuture, BodyWriter), UnsentReason> {
    let none = Bytes::new();
    let send = || {
        with_request(ask, &none, context, |request| {
            post.open_call(CallDestination::Function(function), request, None)
        })
    };
    let opened = match send() {
        Err(UnsentReason::NoCredit) => retry_with_credit(post, function, context, send).await,
        opened => opened,
    };
    opened.map(|(call, writer)| (call.stream_response(), writer))
}

/// The beginning of an answer, and the rest to be read.
pub(crate) async fn streaming_response(
    name: &str,
    call: CallFuture,
    context: CallContext,
) -> Result<StreamingResponse, Error> {
    let mut reply = call
        .await
        .map_err(|error| Error::from_call_error(name, error))?;
    let (response, first) = Response::from_reply(name, &mut reply)?.into_parts();
    let rest = reply.reader.take().map(BodySource::Shm);
    let body =
        BodyStream::from_source(name, Path::Shm, first, rest).with_deadline(context.deadline);
    Ok(StreamingResponse { response, body })
}

/// Writes a body as its pieces come. Why it failed, if it did: then the call, or the answer, is aborted.
pub(crate) async fn write_body(mut writer: BodyWriter, mut body: OwnStream) -> Result<(), String> {
    use futures_util::StreamExt;
    while std::future::poll_fn(|cx| writer.poll_ready(cx))
        .await
        .is_ok()
    {
        match body.next().await {
            Some(Ok(piece)) => {
                let _ = writer.push_chunk(piece); // not wanted: the next look says so
            }
            Some(Err(why)) => return Err(why),
            None => {
                writer.finish_body();
                break;
            }
        }
    }
    Ok(()) // no more is wanted: the response is there or the call is lost, and its outcome says which
}

/// Waits for credit: the answers that bring it are in flight, and sooner here than a call can go another way.
async fn retry_with_credit<T>(
    post: &AsyncEndpoint,
    function: &FunctionId,
    context: CallContext,
    mut send: impl FnMut() -> Result<T, UnsentReason>,
) -> Result<T, UnsentReason> {
    let patience = if context.deadline == 0 {
        CREDIT_TIMEOUT
    } else {
        clock::time_until(context.deadline)
    };
    let tries = async {
        loop {
            post.wait_credit(function).await;
            match send() {
                Err(UnsentReason::NoCredit) => tokio::task::yield_now().await, // others were quicker
                sent => return sent,
            }
        }
    };
    tokio::time::timeout(patience, tries)
        .await
        .unwrap_or(Err(UnsentReason::NoCredit))
}

/// Builds the request on the stack of whoever sends it.
pub(crate) fn with_request<T>(
    ask: &CallOptions,
    body: &Bytes,
    context: CallContext,
    send: impl FnOnce(&nearpath_domain::CallRequest<'_>) -> T,
) -> T {
    let method = ask.method.as_deref().unwrap_or("POST").as_bytes();
    let path = ask.path.as_deref().unwrap_or("/").as_bytes();
    let plain: [(&str, &[u8]); 2] = [(":method", method), (":path", path)];
    let CallContext {
        deadline,
        trace,
        span,
    } = context;
    let request = |fields| nearpath_domain::CallRequest {
        fields,
        body: body.clone(),
        deadline,
        trace,
        span,
    };
    match ask.head.iter().next() {
        None => send(&request(&plain)),
        Some(_) => {
            let fields: Vec<_> = plain.into_iter().chain(ask.head.iter()).collect();
            send(&request(&fields))
        }
    }
}
