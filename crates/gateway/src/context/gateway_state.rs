//! The state that all serving threads share.

use std::sync::Arc;

use http::HeaderValue;
use nearpath_wire::quic::CallerConfig;
use tokio::sync::watch;

use super::busy_threads::BusyThreads;
use crate::control::GatewayControl;
use crate::function::RoutingTable;
use crate::record::{AccessLog, GatewayTotals};
use crate::spool::SpoolDirectory;
use crate::transport::LoopbackPools;

/// The state that all serving threads share.
#[derive(Clone)]
pub(crate) struct GatewayState {
    pub table: Arc<RoutingTable>,
    pub control: Arc<dyn GatewayControl>,
    pub totals: Arc<GatewayTotals>,
    pub log: Option<AccessLog>,
    pub served_by: HeaderValue,
    /// Connections to functions' own servers.
    pub loopback_pools: Arc<LoopbackPools>,
    /// Certificate for calls to instances.
    pub caller: Option<watch::Receiver<CallerConfig>>,
    /// Certificate for calls to other nodes.
    pub node_caller: Option<watch::Receiver<CallerConfig>>,
    pub spool_directory: Option<Arc<SpoolDirectory>>,
    /// Threads with connections.
    pub busy_threads: BusyThreads,
}
