//! Calls through shared memory.

use bytes::Bytes;
use nearpath_domain::post::polled::Post;
use nearpath_domain::{CallError, To};
use nearpath_types::FunctionId;

use crate::ask::Ask;
use crate::context::Context;
use crate::error::Error;
use crate::message::Response;

/// Makes a call and waits for the answer.
pub(crate) async fn call(
    post: &Post,
    name: &str,
    function: &FunctionId,
    body: &Bytes,
    ask: &Ask,
    context: Context,
) -> Result<Response, Error> {
    let sent = asking(ask, body, context, |request| post.call(To::Function(function), request));
    let answer = match sent {
        Ok(answer) => answer.await,
        Err(unsent) => Err(CallError::Unsent(unsent)),
    };
    answer.map_err(|error| Error::near(name, error)).and_then(|reply| Response::of_memory(name, reply))
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
