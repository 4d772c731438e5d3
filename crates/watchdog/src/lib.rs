//! The process inside an instance: HTTP outwards, HTTP or stdio to the tenant's code. It keeps of-watchdog's contract.
//!
//! A request walks `listen` (connections) → `serve::answer` (health, limit, deadline, one completion a request) →
//! `mode::{http, streaming, serializing, static}` → the tenant's process or files. `life` is the other axis: start, drain,
//! stop; `process` starts, reaps and kills, because the watchdog is PID 1 of its instance; `notes` tells the node how
//! the start goes. One thread does it all: an instance has few cores and the watchdog should cost none of them.

mod args;
mod call_limit;
mod caller_access;
mod caller_socket;
mod cgi;
mod completion;
mod config;
mod drain;
mod errors;
#[doc(hidden)]
pub mod fuzz;
mod health_paths;
mod hop_headers;
mod identity;
mod incoming_body;
mod inherited_fds;
mod lifecycle;
mod listen;
mod lock_file;
mod logs;
mod metrics;
mod mode;
mod outbound;
mod process;
mod quic_peers;
mod request_body;
mod response_body;
mod serve;
mod shm_server;
mod start_notes;
mod stream_timeouts;
mod tunnel;
mod upstream;

pub use args::main;
