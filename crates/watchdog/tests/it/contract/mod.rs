//! Tests of the contract against the real program. `README.md` lists the tests of each promise.

mod call_transports;
mod connections;
mod direct_calls;
mod early_responses;
mod files;
mod fork;
mod http;
mod interrupted_calls;
mod lifecycle;
mod limits;
mod node;
mod outbound_heads;
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
