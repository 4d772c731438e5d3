//! The context of one serving thread: shared by its connections and requests, not locked, and never sent to another thread.

mod gateway_state;
mod open_responses;
mod worker;

pub(crate) use gateway_state::GatewayState;
pub(crate) use open_responses::OpenResponse;
pub(crate) use worker::WorkerContext;
