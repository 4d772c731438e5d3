//! Counters beside those of single functions.

use std::sync::atomic::AtomicU64;

use super::quic_totals::QuicTotals;
use crate::function::RefusalCounts;

/// What is counted beside the functions.
#[derive(Debug, Default)]
pub(crate) struct GatewayTotals {
    /// Refused before a function was known.
    pub refused: RefusalCounts,
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Times when a connection could not be accepted, for want of file descriptors mostly.
    pub accept_errors: AtomicU64,
    /// Connections cut because the peer was too slow, too silent or reset too many streams.
    pub connections_cut: AtomicU64,
    /// Access log lines lost because the writer fell behind.
    pub log_lines_lost: AtomicU64,
    /// Calls over QUIC.
    pub quic: QuicTotals,
    /// What came over HTTP/3.
    pub http3: Http3Counts,
}

/// What is counted of HTTP/3.
#[derive(Debug, Default)]
pub(crate) struct Http3Counts {
    /// Connections that were let in; they count among all connections, too.
    pub connections: AtomicU64,
    /// Requests whose head was read.
    pub requests: AtomicU64,
    /// Of these, those that ran before the handshake was complete.
    pub early: AtomicU64,
    /// Newcomers who had to prove their address first.
    pub retries: AtomicU64,
    /// Newcomers who were turned away for want of room.
    pub refused: AtomicU64,
}
