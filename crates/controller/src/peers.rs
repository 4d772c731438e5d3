//! Interface of the controller to the other nodes, for queries about all of them.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use nearpath_types::{NodeName, NodeStatus};

/// Lines of another node's response. An error is the cause of its end.
pub type PeerLineStream = BoxStream<'static, Result<Bytes, String>>;

/// The other nodes of an application. Errors are texts for people.
pub trait PeerNodes: Send + Sync + 'static {
    /// Returns name, address and source of this node.
    fn own_status(&self) -> NodeStatus;
    /// Returns the other nodes of the list, as this one sees them, in the order of their names.
    fn peer_statuses(&self) -> Vec<NodeStatus>;
    /// Returns the nodes to which queries go, in the order of their names; none if this node has no
    /// connections to others.
    fn queried_peers(&self) -> Vec<NodeName>;
    /// Reads the response to `GET path` of a node. Ends within seconds; a node that is down fails
    /// at once.
    fn fetch(&self, node: &NodeName, path: String) -> BoxFuture<'static, Result<Bytes, String>>;
    /// Opens the response to `GET path` of a node, line by line.
    fn stream(
        &self,
        node: &NodeName,
        path: String,
    ) -> BoxFuture<'static, Result<PeerLineStream, String>>;
    /// Waits until queries may go to a node.
    fn wait_up(&self, node: &NodeName) -> BoxFuture<'static, ()>;
}
