//! Calls over QUIC between parts of nearpath, and TLS over TCP, over real sockets on loopback.

mod calls;
pub(crate) mod fixture;
mod foreign_peers;
mod mtls;
mod peers;
mod recorded_flights;
mod refused_peers;
mod scale;
mod worker;
mod zero_rtt;
