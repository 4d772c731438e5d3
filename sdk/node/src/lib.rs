//! The native module of the SDK for Node; users load `index.js`.
//!
//! JavaScript runs on its own thread. A second one, [`runtime`], has the domain's endpoint and an
//! event loop. Commands reach it through a channel; messages return through one JavaScript
//! function. A body is copied once when it leaves its slot: the slot must not wait for the garbage
//! collector.
#![allow(unsafe_code, reason = "the macros of napi-derive")]

mod bodies;
mod runtime;
mod types;

use std::cell::RefCell;

use bytes::Bytes;
use napi::bindgen_prelude::Function;
use napi_derive::napi;

use runtime::{CallKind, RuntimeCommand, RuntimeHandle};
use types::{JsCallOptions, JsResponse, Message};

thread_local! {
    // Thread-local, because each Worker of Node has an event loop of its own.
    /// Runtime of this JavaScript thread, the main one or a Worker's, from its first call on.
    static RUNTIME: RefCell<Option<RuntimeHandle>> = const { RefCell::new(None) };
}

fn send_command(command: RuntimeCommand) -> bool {
    RUNTIME.with_borrow(|runtime| {
        runtime
            .as_ref()
            .is_some_and(|runtime| runtime.send_command(command))
    })
}

/// Starts the runtime, which passes all messages to `on_message`. With `streams`, handlers run as
/// soon as a request begins.
///
/// # Errors
/// When the system cannot create a thread.
#[napi]
pub fn start_runtime(
    on_message: Function<'_, Message, ()>,
    serves: bool,
    streams: bool,
) -> napi::Result<()> {
    let callback = on_message
        .build_threadsafe_function()
        .callee_handled::<false>()
        // Weak: the callback alone must not keep the process alive.
        .weak::<true>()
        .build()?;
    let runtime = RuntimeHandle::start(callback, serves, streams).map_err(|error| {
        napi::Error::from_reason(format!("cannot create the runtime's thread: {error}"))
    })?;
    RUNTIME.set(Some(runtime));
    Ok(())
}

/// Makes a call; a message with this number reports its end. `pieces`: JavaScript writes its body.
/// `stream`: JavaScript reads its response body.
#[napi]
pub fn call(
    id: f64,
    name: String,
    payload: &[u8],
    options: JsCallOptions,
    pieces: bool,
    stream: bool,
) -> bool {
    send_command(RuntimeCommand::Call {
        id,
        name,
        payload: payload.to_vec(),
        options,
        kind: CallKind::Call { pieces, stream },
    })
}

/// Sends an event to a function or, with `is_topic`, to the subscribers of a topic. With
/// `is_queued` it is a call for the gateway's queue. A message with this number reports its end.
#[napi]
pub fn send_event(
    id: f64,
    name: String,
    payload: &[u8],
    options: JsCallOptions,
    is_topic: bool,
    is_queued: bool,
) -> bool {
    let kind = match (is_topic, is_queued) {
        (true, _) => CallKind::Topic,
        (_, true) => CallKind::Queued,
        _ => CallKind::Event,
    };
    send_command(RuntimeCommand::Call {
        id,
        name,
        payload: payload.to_vec(),
        options,
        kind,
    })
}

/// Cancels a call at its callee; no message follows.
#[napi]
pub fn cancel_call(id: f64) -> bool {
    send_command(RuntimeCommand::CancelCall { id })
}

/// Responds to a received call. `pieces`: JavaScript writes its body.
#[napi]
pub fn respond(id: f64, response: JsResponse, pieces: bool) -> bool {
    send_command(RuntimeCommand::Respond {
        id,
        response,
        pieces,
    })
}

/// Adds a piece to a body of a received or an outgoing call; no piece ends it. A message reports
/// whether the receiver wants more.
#[napi]
pub fn write_piece(id: f64, is_incoming: bool, piece: Option<&[u8]>) -> bool {
    // Copied, because JavaScript may reuse its buffer after this call.
    let piece = piece.map(|piece| Ok(Bytes::copy_from_slice(piece)));
    send_command(RuntimeCommand::WritePiece {
        body: (is_incoming, id as u64),
        piece,
    })
}

/// Aborts a body.
#[napi]
pub fn abort_body(id: f64, is_incoming: bool, reason: String) -> bool {
    send_command(RuntimeCommand::WritePiece {
        body: (is_incoming, id as u64),
        piece: Some(Err(reason)),
    })
}

/// Requests the next part of a body; a message delivers it.
#[napi]
pub fn request_part(id: f64, is_incoming: bool) -> bool {
    send_command(RuntimeCommand::RequestPart {
        body: (is_incoming, id as u64),
    })
}

/// Stops reading a body.
#[napi]
pub fn close_body(id: f64, is_incoming: bool) -> bool {
    send_command(RuntimeCommand::CloseBody {
        body: (is_incoming, id as u64),
    })
}

/// Stops serving; a message reports when open calls are finished.
#[napi]
pub fn stop_serving() -> bool {
    send_command(RuntimeCommand::StopServing)
}
