//! The context of one serving thread. Its connections and requests share it without locks; it
//! never leaves the thread.

mod gateway_state;
mod open_responses;
mod worker;

pub(crate) use gateway_state::GatewayState;
pub(crate) use open_responses::OpenResponse;
pub(crate) use worker::{TICK_INTERVAL, WorkerContext};
