//! Connections of one thread to instances, kept between requests: over TCP, over QUIC, and in
//! shared memory.

mod connections;
mod loopback;
mod quic;
mod shm_domains;
mod tcp;

pub(crate) use connections::Connections;
pub(crate) use loopback::{
    Arrived, Exchange, ExchangeError, InvalidResponse, LoopbackBody, LoopbackPools,
    PooledConnection, ResponseHeadError, ServerBody, ServerResponse,
};
#[doc(hidden)] // for the fuzz target
pub use loopback::{BodyDecoder, DecodedPart, HeadParser, ResponseHead};
pub(crate) use quic::{AcquiredQuic, QuicConnections, QuicUnavailable};
pub(crate) use shm_domains::ShmDomains;
pub(crate) use tcp::{HttpConnection, TcpPools, TlsMode};
