//! The native half of the SDK for Node; `index.js` is what users load.
//!
//! JavaScript runs on its own thread; a second one, [`runtime`], is the party of the domain and has an event loop of its own. Orders
//! go to it through a channel; what comes goes back through one function of JavaScript's, in batches as they fit. A body is
//! copied once on its way out of a slot, so that the slot does not wait for a garbage collector.
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
    /// That of this thread of JavaScript, the main one or a Worker's, from its first call on.
    static RUNTIME: RefCell<Option<RuntimeHandle>> = const { RefCell::new(None) };
}

fn send_command(order: RuntimeCommand) -> bool {
    RUNTIME.with_borrow(|desk| desk.as_ref().is_some_and(|desk| desk.send_command(order)))
}

/// Begins; `tell` is called with everything that comes. `streams`: handlers are called when a request begins.
///
/// # Errors
/// When the system gives no thread.
#[napi]
pub fn open(tell: Function<'_, Message, ()>, serves: bool, streams: bool) -> napi::Result<()> {
    let tell = tell
        .build_threadsafe_function()
        .callee_handled::<false>()
        .weak::<true>()
        .build()?;
    let desk = RuntimeHandle::start(tell, serves, streams)
        .map_err(|error| napi::Error::from_reason(format!("no thread: {error}")))?;
    RUNTIME.set(Some(desk));
    Ok(())
}

/// Makes a call; a message with this number tells its end. `pieces`: its body is pushed. `stream`: its answer's is pulled.
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

/// Sends an event, to a function or, with `topic`, to those who subscribe to one; with `later`, a call for the gateway's queue. A
/// message with this number tells its end.
#[napi]
pub fn tell(
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

/// Nobody waits for a call any more: its callee is told, and no message comes.
#[napi]
pub fn give_up(id: f64) -> bool {
    send_command(RuntimeCommand::GiveUp { id })
}

/// Answers a call that came. `pieces`: its body is pushed.
#[napi]
pub fn answer(id: f64, response: ResponseOfJs, pieces: bool) -> bool {
    send_command(RuntimeCommand::Answer {
        id,
        response,
        pieces,
    })
}

/// A piece of a body of a call that was taken or made; nothing at its end. A message tells whether more is wanted.
#[napi]
pub fn push(id: f64, taken: bool, piece: Option<&[u8]>) -> bool {
    let piece = piece.map(|piece| Ok(Bytes::copy_from_slice(piece)));
    send_command(RuntimeCommand::Push {
        body: (taken, id as u64),
        piece,
    })
}

/// A body breaks off.
#[napi]
pub fn break_off(id: f64, taken: bool, why: String) -> bool {
    send_command(RuntimeCommand::Push {
        body: (taken, id as u64),
        piece: Some(Err(why)),
    })
}

/// Asks for the next part of a body; a message tells it.
#[napi]
pub fn pull(id: f64, taken: bool) -> bool {
    send_command(RuntimeCommand::Pull {
        body: (taken, id as u64),
    })
}

/// Nobody reads a body any more.
#[napi]
pub fn leave(id: f64, taken: bool) -> bool {
    send_command(RuntimeCommand::Leave {
        body: (taken, id as u64),
    })
}

/// Serves no more; a message tells when open calls are finished.
#[napi]
pub fn stop() -> bool {
    send_command(RuntimeCommand::Stop)
}
