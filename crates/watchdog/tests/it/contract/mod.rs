//! The contract, row by row, against the real program: `README.md` says which test holds which row.

mod call_transports;
mod connections;
mod direct_calls;
mod files;
mod fork;
mod http;
mod interrupted_calls;
mod lifecycle;
mod limits;
mod node;
mod quic;
mod renewal;
mod shm_calls;
mod slow_calls;
mod streams;
mod support;
mod tls;
mod transports;
mod versions;
mod watchdog_pair;
