//! The native half of the SDK for Node; users load `index.js`.
//!
//! JavaScript runs on its own thread. A second one, [`runtime`], has the domain's endpoint and an
//! event loop. Commands reach it through a channel; messages return through one JavaScript
//! function. A body is copied once when it leaves its slot, so that the slot does not wait for a
//! garbage collector.
#![allow(unsafe_code, reason = "the macros of napi-derive")]

mod bodies;
mod runtime;
mod types;

use std::cell::RefCell;

use bytes::Bytes;
use napi::bindgen_prelude::Function;
use napi_derive::napi;

use runtime::{CallKind, RuntimeCommand, RuntimeHandle};
use types::{AskOfJs, Message, ResponseOfJs};

thread_local! {
    // Thread-local, because each Worker of Node has an event loop of its own.
    /// Runtime of this JavaScript thread, the main one or a Worker's, from its first call on.
    static RUNTIME: RefCell<Option<RuntimeHandle>> = const { RefCell::new(None) };
}

fn send_command(order: RuntimeCommand) -> bool {
    RUNTIME.with_borrow(|desk| desk.as_ref().is_some_and(|desk| desk.send_command(order)))
}

/// Starts the runtime, which passes all messages to `tell`. `streams`: handlers run as soon as a
/// request begins.
///
/// # Errors
/// When the system cannot create a thread.
#[napi]
pub fn open(tell: Function<'_, Message, ()>, serves: bool, streams: bool) -> napi::Result<()> {
    let tell = tell
        .build_threadsafe_function()
        .callee_handled::<false>()
        // Weak: the callback alone must not keep the process alive.
        .weak::<true>()
        .build()?;
    let desk = RuntimeHandle::start(tell, serves, streams)
        .map_err(|error| napi::Error::from_reason(format!("no thread: {error}")))?;
    RUNTIME.set(Some(desk));
    Ok(())
}

/// Makes a call; a message with this number reports its end. `pieces`: its body is pushed.
/// `stream`: its response body is pulled.
#[napi]
pub fn call(
    id: f64,
    name: String,
    payload: &[u8],
    options: AskOfJs,
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

/// Sends an event to a function or, with `topic`, to the subscribers of a topic. With `later` it is
/// a call for the gateway's queue. A message with this number reports its end.
#[napi]
pub fn send_event(
    id: f64,
    name: String,
    payload: &[u8],
    options: AskOfJs,
    topic: bool,
    later: bool,
) -> bool {
    let kind = match (topic, later) {
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
pub fn give_up(id: f64) -> bool {
    send_command(RuntimeCommand::GiveUp { id })
}

/// Responds to a received call. `pieces`: its body is pushed.
#[napi]
pub fn answer(id: f64, response: ResponseOfJs, pieces: bool) -> bool {
    send_command(RuntimeCommand::Answer {
        id,
        response,
        pieces,
    })
}

/// Adds a piece to a body of a received or an outgoing call; nothing ends it. A message tells
/// whether more is wanted.
#[napi]
pub fn push(id: f64, taken: bool, piece: Option<&[u8]>) -> bool {
    // Copied, because JavaScript may reuse its buffer after this call.
    let piece = piece.map(|piece| Ok(Bytes::copy_from_slice(piece)));
    send_command(RuntimeCommand::Push {
        body: (taken, id as u64),
        piece,
    })
}

/// Aborts a body.
#[napi]
pub fn break_off(id: f64, taken: bool, why: String) -> bool {
    send_command(RuntimeCommand::Push {
        body: (taken, id as u64),
        piece: Some(Err(why)),
    })
}

/// Requests the next part of a body; a message delivers it.
#[napi]
pub fn pull(id: f64, taken: bool) -> bool {
    send_command(RuntimeCommand::Pull {
        body: (taken, id as u64),
    })
}

/// Stops reading a body.
#[napi]
pub fn leave(id: f64, taken: bool) -> bool {
    send_command(RuntimeCommand::Leave {
        body: (taken, id as u64),
    })
}

/// Stops serving; a message reports when open calls are finished.
#[napi]
pub fn stop() -> bool {
    send_command(RuntimeCommand::Stop)
}
