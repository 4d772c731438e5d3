//! Process inside an instance: takes HTTP from callers and passes it to the tenant's code by HTTP
//! or stdio.
//!
//! Keeps of-watchdog's contract. A request passes `listen` (connections), `serve::handle_request`
//! (health, limit, deadline, one completion per request) and `mode::{http, streaming, serializing,
//! static}`, which runs the tenant's code or serves files. `lifecycle` starts, drains and stops.
//! `process` starts, reaps and kills, because the watchdog is PID 1 of its instance. `start_notes`
//! and `process_reports` report to the node. All work runs on one thread: an instance has few cores.

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
mod identity;
mod incoming_body;
mod inherited_fds;
mod lifecycle;
mod listen;
mod lock_file;
mod logs;
mod metrics;
mod mode;
mod oom_counter;
mod outbound;
mod process;
mod process_reports;
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
