//! The context of one serving thread. Its connections and requests share it without locks; it
//! never leaves the thread.

mod busy_threads;
mod gateway_state;
mod open_transfers;
mod worker;

pub(crate) use busy_threads::{BusyThread, BusyThreads};
pub(crate) use gateway_state::GatewayState;
pub(crate) use open_transfers::{LatePlace, OpenTransfer};
pub(crate) use worker::{ServiceGuard, TICK_INTERVAL, TransferGuard, WorkerContext};
