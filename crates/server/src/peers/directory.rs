//! The nodes of the list, for queries about all of them.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use nearpath_controller::{PeerLineStream, PeerNodes};
use nearpath_internode::{PeerClient, PeerLines, PeerStates};
use nearpath_source::{SourceHandle, SourceSettings, SourceStatus};
use nearpath_types::{NodeAddresses, NodeName, NodeStatus};
use tokio::sync::watch;

use super::PeerService;
use super::node_rows::{peer_row, source_report, unconnected_row};

/// The nodes of the list, as this one knows them.
pub(crate) struct NodeDirectory {
    own: NodeName,
    folder: String,
    source: watch::Receiver<SourceStatus>,
    nodes: watch::Receiver<Arc<NodeAddresses>>,
    /// `None`: this node has no certificate for others.
    connections: Option<PeerConnections>,
}

struct PeerConnections {
    client: PeerClient,
    states: watch::Receiver<Arc<PeerStates>>,
}

impl NodeDirectory {
    /// Creates the directory of a source's nodes.
    pub(crate) fn new(
        settings: &SourceSettings,
        source: &SourceHandle,
        peers: Option<&PeerService>,
    ) -> Self {
        Self {
            own: settings.node.clone(),
            folder: settings.folder.display().to_string(),
            source: source.watch_status(),
            nodes: source.watch_nodes(),
            connections: peers.map(|peers| PeerConnections {
                client: peers.client(),
                states: peers.watch_peers(),
            }),
        }
    }

    fn client(&self) -> Result<PeerClient, String> {
        let connections = self.connections.as_ref();
        let client = connections.map(|connections| connections.client.clone());
        client.ok_or_else(|| "this node has no --node-certificates".to_owned())
    }
}

/// Warns once if the list has other nodes, for a node without a certificate: it calls none of them.
pub(crate) async fn warn_unconnected(mut nodes: watch::Receiver<Arc<NodeAddresses>>) {
    let listed = nodes.wait_for(|nodes| nodes.len() > 1).await;
    if let Ok(listed) = listed {
        let others = listed.len() - 1;
        tracing::warn!(
            "this node calls none of the {others} other nodes in nodes.yml, and serves no calls of theirs: it has \
             no certificate; make one with `nearpath ca issue`, and name its folder in --node-certificates"
        );
    }
}

impl PeerNodes for NodeDirectory {
    fn own_status(&self) -> NodeStatus {
        NodeStatus {
            name: Some(self.own.to_string()),
            address: self.nodes.borrow().get(&self.own).cloned(),
            source: Some(source_report(&self.folder, &self.source.borrow())),
            ..NodeStatus::default()
        }
    }

    fn peer_statuses(&self) -> Vec<NodeStatus> {
        let (nodes, now) = (self.nodes.borrow().clone(), Instant::now());
        let connections = self.connections.as_ref();
        let states = connections.map(|connections| connections.states.borrow().clone());
        let row = |(name, address): (&NodeName, &String)| match &states {
            Some(states) => {
                let status = states.peers.get(name);
                peer_row(name, address, status.map(|status| &**status), now)
            }
            None => unconnected_row(name, address),
        };
        let others = nodes.iter().filter(|(name, _)| **name != self.own);
        others.map(row).collect()
    }

    fn queried_peers(&self) -> Vec<NodeName> {
        if self.connections.is_none() {
            return Vec::new();
        }
        let nodes = self.nodes.borrow();
        let others = nodes.keys().filter(|name| **name != self.own);
        others.cloned().collect()
    }

    fn fetch(&self, node: &NodeName, path: String) -> BoxFuture<'static, Result<Bytes, String>> {
        let (client, node) = (self.client(), node.clone());
        async move {
            let reply = client?.fetch(&node, &path).await;
            reply.map_err(|error| error.to_string())
        }
        .boxed()
    }

    fn stream(
        &self,
        node: &NodeName,
        path: String,
    ) -> BoxFuture<'static, Result<PeerLineStream, String>> {
        let (client, node) = (self.client(), node.clone());
        async move {
            let lines = client?.stream(&node, &path).await;
            lines.map(line_stream).map_err(|error| error.to_string())
        }
        .boxed()
    }

    fn wait_up(&self, node: &NodeName) -> BoxFuture<'static, ()> {
        let (client, node) = (self.client(), node.clone());
        async move {
            match client {
                Ok(client) => client.wait_up(&node).await,
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// Returns the lines as a stream, whose last item may be an error.
fn line_stream(lines: PeerLines) -> PeerLineStream {
    let next = async |lines: Option<PeerLines>| {
        let mut lines = lines?;
        match lines.next_line().await {
            Ok(Some(line)) => Some((Ok(line), Some(lines))),
            Ok(None) => None,
            Err(error) => Some((Err(error.to_string()), None)),
        }
    };
    stream::unfold(Some(lines), next).boxed()
}
