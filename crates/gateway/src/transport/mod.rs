//! Connections of one thread to instances, kept between requests: over TCP, over QUIC, and in
//! shared memory.

mod connections;
mod http1;
mod quic;
mod shm_domains;
mod tcp;

pub(crate) use connections::Connections;
pub(crate) use http1::{
    Arrived, Exchange, ExchangeError, Http1Body, InvalidResponse, LoopbackPools, NodeConnections,
    PooledConnection, ResponseHeadError, ServerBody, ServerResponse,
};
#[doc(hidden)] // for the fuzz target
pub use http1::{BodyDecoder, DecodedPart, HeadParser, ResponseHead};
pub(crate) use quic::{AcquiredQuic, QuicConnections, QuicUnavailable};
pub(crate) use shm_domains::ShmDomains;
pub(crate) use tcp::{HttpConnection, SocketOpener, TcpPools, TlsMode};
