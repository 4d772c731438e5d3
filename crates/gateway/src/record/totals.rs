//! Counters that belong to no function.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nearpath_wire::quic::RefusalStats;
use tokio::sync::watch;

use super::event_totals::EventTotals;
use super::node_calls::NodeCallTotals;
use super::quic_totals::QuicTotals;
use crate::function::RefusalCounts;

/// Counters that belong to no function.
#[derive(Debug, Default)]
pub(crate) struct GatewayTotals {
    /// Requests refused before a function was known.
    pub refused: RefusalCounts,
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections closed on accept because their source had its share.
    pub connections_refused: AtomicU64,
    /// Calls that event loops answered without a task.
    pub inline_calls: AtomicU64,
    /// Failed accepts, mostly for want of file descriptors.
    pub accept_errors: AtomicU64,
    /// Connections cut because the client was slow, idle, or reset too many streams.
    pub connections_cut: AtomicU64,
    /// Access log lines lost because the writer fell behind.
    pub log_lines_lost: AtomicU64,
    /// Bytes of bodies that wait in files for their slow side.
    pub spooled_bytes: Arc<AtomicU64>,
    /// Connections and calls of other nodes that were refused.
    pub node_refusals: watch::Sender<RefusalStats>,
    /// Calls over QUIC.
    pub quic: QuicTotals,
    /// Calls from other nodes.
    pub node_calls: NodeCallTotals,
    /// Events for functions on other nodes.
    pub events: EventTotals,
    /// Counters of HTTP/3.
    pub http3: Http3Counts,
}

/// Counters of HTTP/3.
#[derive(Debug, Default)]
pub(crate) struct Http3Counts {
    /// Accepted connections, included in the number of all connections.
    pub connections: AtomicU64,
    /// Requests with a complete head.
    pub requests: AtomicU64,
    /// Requests among these that ran before the handshake was complete.
    pub early: AtomicU64,
    /// Clients that had to prove their address first.
    pub retries: AtomicU64,
    /// Clients refused because of the connection limit.
    pub refused: AtomicU64,
}
