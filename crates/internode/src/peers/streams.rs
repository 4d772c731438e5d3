//! Streams of bytes to functions on other nodes, each on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nearpath_types::{FunctionPolicy, NodeName, NodeStreamRequest, PeerNode};
use tokio::time::{Instant, timeout, timeout_at};

use super::dialer::DialedStream;
use super::http_connection::{HttpConnection, PeerTarget, RequestError};
use super::query::PeerClient;
use crate::peer_states::PeerStates;
use crate::protocol::stream_path;
use crate::stream_targets::stream_targets;

/// Maximum wait for a node that runs a function, as for calls.
const NODE_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Open stream to a function on another node.
pub struct PeerStream {
    /// Node of the function.
    pub node: NodeName,
    /// The bytes. An end without `close_notify` is an error.
    pub stream: Box<dyn DialedStream>,
    /// Ends when the node is not reachable any more.
    pub lost: BoxFuture<'static, ()>,
}

/// Failure to open a stream. No byte reached a function.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// No node takes connections to the function.
    #[error("no node that runs it was reachable within {0:?}")]
    NoNode(Duration),
    /// A node neither accepted nor refused.
    #[error("the nodes that run it accepted no connection within {0:?}")]
    Timeout(Duration),
    /// All nodes refused or failed; the text has the causes.
    #[error("{0}")]
    Refused(String),
}

impl PeerClient {
    /// Opens a stream to the callee of `request` on one of the nodes that run it, and waits for such a
    /// node. Asks the next node when one refuses. `policy` is that of the callee, and `limit` the time for
    /// all nodes.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn open_stream(
        &self,
        request: &NodeStreamRequest,
        policy: &FunctionPolicy,
        limit: Duration,
    ) -> Result<PeerStream, StreamError> {
        let deadline = Instant::now() + limit;
        let node_wait = limit.min(NODE_WAIT_TIMEOUT);
        let targets = timeout(node_wait, self.wait_targets(request, policy)).await;
        let targets = targets.map_err(|_| StreamError::NoNode(node_wait))?;
        let opened = timeout_at(deadline, self.try_targets(request, targets)).await;
        opened.unwrap_or(Err(StreamError::Timeout(limit)))
    }

    /// Waits until a node runs the callee.
    async fn wait_targets(
        &self,
        request: &NodeStreamRequest,
        policy: &FunctionPolicy,
    ) -> Vec<Arc<PeerNode>> {
        let (mut states, draw) = (self.states.clone(), fastrand::usize(..));
        loop {
            let now = states.borrow_and_update().clone();
            let targets = stream_targets(&now, &request.callee, policy, draw);
            if !targets.is_empty() {
                return targets;
            }
            if states.changed().await.is_err() {
                std::future::pending::<()>().await; // this process ends
            }
        }
    }

    async fn try_targets(
        &self,
        request: &NodeStreamRequest,
        targets: Vec<Arc<PeerNode>>,
    ) -> Result<PeerStream, StreamError> {
        // One after the other: a second node must not start an instance for nothing.
        let mut causes = Vec::new();
        for peer in targets {
            match self.try_target(request, &peer).await {
                Ok(stream) => return Ok(stream),
                Err(cause) => causes.push(format!("node {}: {cause}", peer.name)),
            }
        }
        Err(StreamError::Refused(causes.join("; ")))
    }

    async fn try_target(
        &self,
        request: &NodeStreamRequest,
        peer: &PeerNode,
    ) -> Result<PeerStream, RequestError> {
        let target = PeerTarget {
            node: peer.name.clone(),
            addr: peer.addr,
            dialer: self.dialer.clone(),
        };
        // Before the request: the node may go down while it waits for an instance.
        let mut lost = self.wait_lost(&peer.name);
        let opening = async {
            let connection = HttpConnection::open(&target).await?;
            connection.upgrade(&stream_path(request)).await
        };
        let stream = tokio::select! {
            biased;
            opened = opening => Box::new(opened?),
            () = &mut lost => return Err(RequestError::Lost),
        };
        Ok(PeerStream {
            node: target.node,
            stream,
            lost,
        })
    }

    /// Returns a future that ends when a node is not reachable any more. It never ends for a node that was
    /// not reachable before: connections in one direction alone may be possible.
    pub fn wait_lost(&self, node: &NodeName) -> BoxFuture<'static, ()> {
        // Read now, and not at the first poll: the node may go down in between.
        let (mut states, node) = (self.states.clone(), node.clone());
        let was_reachable = is_reachable(&states.borrow(), &node);
        Box::pin(async move {
            let lost = states.wait_for(|states| !is_reachable(states, &node));
            let is_lost = lost.await.is_ok();
            if !was_reachable || !is_lost {
                std::future::pending::<()>().await;
            }
        })
    }
}

fn is_reachable(states: &PeerStates, node: &NodeName) -> bool {
    let status = states.peers.get(node);
    status.is_some_and(|status| status.is_reachable())
}
