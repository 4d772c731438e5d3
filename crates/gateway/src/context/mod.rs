//! The context of one serving thread: shared by its connections and requests, not locked, and never sent to another thread.

mod open_responses;
mod shared;
mod worker;

pub(crate) use open_responses::OpenResponse;
pub(crate) use shared::Shared;
pub(crate) use worker::WorkerContext;
