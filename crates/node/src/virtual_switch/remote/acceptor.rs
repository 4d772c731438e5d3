//! Streams from other nodes to instances here, and no further.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::{NodeName, NodeStreamRequest, PlatformError, Reason, RoutingSnapshot};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use super::permission::{COMPONENT, check_stream};
use super::stream_counts::{OpenStream, StreamCounts, StreamDirection};
use crate::virtual_switch::connection_shares::{ConnectionShare, ConnectionShares, ShareLimits};
use crate::virtual_switch::instance_connector::{ConnectError, InstanceConnector};
use crate::virtual_switch::relay::{relay, reset};

/// Streams that wait or are forwarded for callers on other nodes. Each holds two sockets and two buffers.
const LIMITS: ShareLimits = ShareLimits {
    max_each: 1_024,
    max_total: 4_096,
};

/// Accepts streams of other nodes. Clones are the same acceptor.
#[derive(Clone)]
pub(crate) struct StreamAcceptor(Arc<AcceptorContext>);

struct AcceptorContext {
    connector: InstanceConnector,
    shares: ConnectionShares<NodeName>,
    counts: StreamCounts,
    /// Grows by one with each stream, so that instances take turns.
    next_draw: AtomicUsize,
    log_lines: Mutex<LogLimiter<(NodeName, &'static str)>>,
}

impl fmt::Debug for StreamAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamAcceptor")
    }
}

/// Stream that has an instance, and waits for its other end.
pub struct AcceptedStream {
    node: NodeName,
    request: NodeStreamRequest,
    instance: TcpStream,
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    lost: BoxFuture<'static, ()>,
    _share: ConnectionShare<NodeName>,
    _open: OpenStream,
}

impl StreamAcceptor {
    pub(crate) fn new(connector: InstanceConnector, counts: StreamCounts) -> Self {
        Self(Arc::new(AcceptorContext {
            connector,
            shares: ConnectionShares::new(LIMITS),
            counts,
            next_draw: AtomicUsize::default(),
            log_lines: Mutex::default(),
        }))
    }

    /// Connects a stream of `node` to an instance here, and wakes the function for it. `lost` ends when the
    /// node is not reachable any more.
    ///
    /// # Errors
    /// The reason of a refusal, which is in the log, too.
    pub(crate) async fn accept(
        &self,
        node: &NodeName,
        request: NodeStreamRequest,
        lost: BoxFuture<'static, ()>,
    ) -> Result<AcceptedStream, PlatformError> {
        let accepted = self.0.connect(node, &request, lost).await;
        accepted.inspect_err(|error| self.0.log_refusal(node, error))
    }
}

impl AcceptorContext {
    async fn connect(
        &self,
        node: &NodeName,
        request: &NodeStreamRequest,
        lost: BoxFuture<'static, ()>,
    ) -> Result<AcceptedStream, PlatformError> {
        let mut snapshots = self.connector.snapshots().clone();
        check_stream(&snapshots.borrow_and_update(), node, request)?;
        let edge = || (request.caller.clone(), request.callee.clone());
        let connected = async {
            // Before the wait for an instance, which holds as much.
            let share = self.shares.take(node).ok_or_else(too_many)?;
            let draw = self.next_draw.fetch_add(1, Ordering::Relaxed); // no other memory depends on it
            let connecting = self.connector.connect(&request.callee, request.port, draw);
            let instance = tokio::select! {
                instance = connecting => instance.map_err(|error| connect_error(request, &error))?,
                error = wait_refused(&mut snapshots, node, request) => return Err(error),
            };
            Ok((share, instance))
        };
        let counts = &self.counts;
        let (share, instance) = connected
            .await
            .inspect_err(|_| counts.note_failure(edge(), StreamDirection::In))?;
        Ok(AcceptedStream {
            node: node.clone(),
            request: request.clone(),
            instance,
            snapshots,
            lost,
            _share: share,
            _open: counts.open(edge(), StreamDirection::In),
        })
    }

    fn log_refusal(&self, node: &NodeName, error: &PlatformError) {
        let now = Instant::now().into_std();
        // Not the functions: a hostile node could name new ones for each line.
        let cause = (node.clone(), error.reason.name());
        let mut lines = self
            .log_lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(suppressed) = lines.take_due(cause, now) {
            tracing::warn!(%node, suppressed, "connection of another node was refused: {error}");
        }
    }
}

impl AcceptedStream {
    /// Forwards bytes between the instance and `peer`, the caller's node. Cuts the stream when its edge
    /// ends, or the node is lost. Dropping `peer` must not end it in an orderly way.
    pub async fn relay(mut self, mut peer: impl AsyncRead + AsyncWrite + Unpin) {
        let is_complete = tokio::select! {
            relayed = relay(&mut peer, &mut self.instance) => relayed.is_ok(),
            error = wait_refused(&mut self.snapshots, &self.node, &self.request) => {
                tracing::info!(node = %self.node, "connection of another node was cut: {error}");
                false
            }
            () = &mut self.lost => false,
        };
        if !is_complete {
            reset(&self.instance); // it could take an orderly end for the whole content
        }
    }
}

/// Waits until a stream is not permitted any more.
async fn wait_refused(
    snapshots: &mut watch::Receiver<Arc<RoutingSnapshot>>,
    node: &NodeName,
    request: &NodeStreamRequest,
) -> PlatformError {
    loop {
        let checked = check_stream(&snapshots.borrow_and_update(), node, request);
        if let Err(error) = checked {
            return error;
        }
        if snapshots.changed().await.is_err() {
            std::future::pending::<()>().await; // the node ends, and its instances with it
        }
    }
}

fn too_many() -> PlatformError {
    let ShareLimits {
        max_each,
        max_total,
    } = LIMITS;
    let message = format!(
        "the calling node has {max_each} connections that wait or are forwarded, or all nodes have {max_total}"
    );
    PlatformError::new(COMPONENT, Reason::ConnectionLimit, message)
}

fn connect_error(request: &NodeStreamRequest, error: &ConnectError) -> PlatformError {
    let NodeStreamRequest { callee, port, .. } = request;
    let message = format!("no connection to port {port} of {callee}: {error}");
    PlatformError::new(COMPONENT, error.reason(), message)
}
