//! The process inside an instance: HTTP outwards, HTTP or stdio to the tenant's code. It keeps of-watchdog's contract.
//!
//! A request walks `listen` (connections) → `serve::answer` (health, limit, deadline, one completion a request) →
//! `mode::{http, streaming, serializing, static}` → the tenant's process or files. `life` is the other axis: start, drain,
//! stop; `process` starts, reaps and kills, because the watchdog is PID 1 of its instance; `notes` tells the node how
//! the start goes. One thread does it all: an instance has few cores and the watchdog should cost none of them.

mod args;
mod arrival;
mod body;
mod caller;
mod cgi;
mod completion;
mod config;
mod drain;
mod edges;
#[doc(hidden)]
pub mod fuzz;
mod health_paths;
mod hop;
mod identity;
mod inbound;
mod inflight;
mod inherited;
mod life;
mod listen;
mod lock;
mod logs;
mod metrics;
mod mode;
mod notes;
mod party;
mod patience;
mod pickup;
mod process;
mod refusal;
mod serve;
mod socket;
mod tunnel;
mod upstream;

pub use args::main;
