//! The gateway from outside: real sockets on both sides.
// Clippy.toml allows it in tests, but knows their helpers only inside `#[cfg(test)]`.
#![allow(clippy::unwrap_used)]

mod abuse;
mod accept_log;
mod admission;
mod basics;
mod connection_shares;
mod drain;
mod early_responses;
mod edge_calls;
mod failures;
mod fixture;
mod head_rules;
mod http3;
mod internal;
mod loopback;
mod malformed;
mod nodes;
mod plain_requests;
mod reader_difference;
mod records;
mod shm_bodies;
mod slow_bodies;
mod slow_readers;
mod streams;
mod tls;
mod tls_instances;
mod tracing;
