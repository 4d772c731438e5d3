//! Connections of one thread to instances, kept between requests: over TCP, over QUIC, and in
//! shared memory.

mod quic;
mod shm_domains;
mod tcp;

pub(crate) use quic::{AcquiredQuic, QuicConnections, QuicUnavailable};
pub(crate) use shm_domains::ShmDomains;
pub(crate) use tcp::{HttpConnection, TcpPools, TlsMode};
