//! The native half of the SDK for Node; `index.js` is what users load.
//!
//! JavaScript runs on its own thread; a second one, [`desk`], is the party of the domain and has an event loop of its own. Orders
//! go to it through a channel; what comes goes back through one function of JavaScript's, in batches as they fit. A body is
//! copied once on its way out of a slot, so that the slot does not wait for a garbage collector.
#![allow(unsafe_code, reason = "the macros of napi-derive")]

mod desk;
mod words;

use std::sync::Mutex;

use napi::bindgen_prelude::Function;
use napi_derive::napi;

use desk::{Desk, Order};
use words::{AskOfJs, Message, ResponseOfJs};

/// The process's, from its first call on.
static DESK: Mutex<Option<Desk>> = Mutex::new(None);

fn order(order: Order) -> bool {
    let desk = DESK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    desk.as_ref().is_some_and(|desk| desk.order(order))
}

/// Begins; `tell` is called with everything that comes.
///
/// # Errors
/// When the system gives no thread.
#[napi]
pub fn open(tell: Function<'_, Message, ()>, serves: bool) -> napi::Result<()> {
    let tell = tell.build_threadsafe_function().callee_handled::<false>().weak::<true>().build()?;
    let desk = Desk::start(tell, serves).map_err(|error| napi::Error::from_reason(format!("no thread: {error}")))?;
    *DESK.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(desk);
    Ok(())
}

/// Makes a call or sends an event; a message with this number tells its end.
#[napi]
pub fn call(id: f64, name: String, payload: &[u8], ask: AskOfJs, event: bool) -> bool {
    order(Order::Call { id, name, payload: payload.to_vec(), ask, event })
}

/// Answers a call that came.
#[napi]
pub fn answer(id: f64, response: ResponseOfJs) -> bool {
    order(Order::Answer { id, response })
}

/// Serves no more; a message tells when open calls are finished.
#[napi]
pub fn stop() -> bool {
    order(Order::Stop)
}
