//! Directly callable instances of other nodes: one stream from each node of the list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nearpath_internode::protocol::{DIRECT_PATH, parse_direct};
use nearpath_internode::{PeerClient, PeerStates, QueryError};
use nearpath_types::direct::{DirectNode, DirectPeerNode, DirectPeerNodes};
use nearpath_types::{NodeAddresses, NodeName};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Pause before a stream is opened again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The same for a node that does not know the stream: it may be upgraded.
const OLD_RELEASE_INTERVAL: Duration = Duration::from_secs(60);

type PeersSender = watch::Sender<Arc<DirectPeerNodes>>;

/// Follows the nodes of the list.
pub(super) struct DirectLinks {
    pub(super) own: NodeName,
    pub(super) client: PeerClient,
    pub(super) states: watch::Receiver<Arc<PeerStates>>,
    pub(super) peers: PeersSender,
}

impl DirectLinks {
    /// Runs until the list ends.
    pub(super) async fn follow(self, mut nodes: watch::Receiver<Arc<NodeAddresses>>) {
        let mut tasks = BTreeMap::<NodeName, (String, JoinHandle<()>)>::new();
        loop {
            let list = nodes.borrow_and_update().clone();
            let is_current = |name: &NodeName, address: &String| list.get(name) == Some(address);
            let gone: Vec<_> = tasks
                .iter()
                .filter(|(name, (address, _))| !is_current(name, address))
                .map(|(name, _)| name.clone())
                .collect();
            for name in gone {
                if let Some((_, task)) = tasks.remove(&name) {
                    task.abort();
                    // It could publish instances after they were removed.
                    let _ = task.await;
                }
                self.remove(&name);
            }
            for (name, address) in list.iter().filter(|(name, _)| **name != self.own) {
                if !tasks.contains_key(name) {
                    let task = tokio::spawn(self.peer(name).run());
                    tasks.insert(name.clone(), (address.clone(), task));
                }
            }
            if nodes.changed().await.is_err() {
                return;
            }
        }
    }

    fn remove(&self, name: &NodeName) {
        self.peers
            .send_if_modified(|peers| Arc::make_mut(peers).remove(name).is_some());
    }

    fn peer(&self, node: &NodeName) -> DirectLink {
        DirectLink {
            node: node.clone(),
            client: self.client.clone(),
            states: self.states.clone(),
            peers: self.peers.clone(),
        }
    }
}

/// Stream from one node.
struct DirectLink {
    node: NodeName,
    client: PeerClient,
    states: watch::Receiver<Arc<PeerStates>>,
    peers: PeersSender,
}

impl DirectLink {
    async fn run(self) {
        loop {
            self.client.wait_up(&self.node).await;
            let ended = self.read_stream().await;
            self.mark_disconnected();
            let pause = match ended {
                Err(QueryError::UnknownQuery) => OLD_RELEASE_INTERVAL,
                _ => RETRY_INTERVAL,
            };
            sleep(pause).await;
        }
    }

    async fn read_stream(&self) -> Result<(), QueryError> {
        let mut lines = self.client.stream(&self.node, DIRECT_PATH).await?;
        while let Some(line) = lines.next_line().await? {
            match parse_direct(&line, &self.node) {
                Ok(announced) => self.publish(announced),
                Err(fault) => {
                    tracing::warn!(node = %self.node, %fault, "a node's directly callable instances are refused: calls go by the nodes");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn publish(&self, announced: DirectNode) {
        let states = self.states.borrow().clone();
        let status = states.peers.get(&self.node);
        // A node that answers was connected, and its watchdogs are at the same address.
        let Some(node) = status.and_then(|status| status.node.as_ref()) else {
            return;
        };
        let peer = DirectPeerNode {
            ip: node.addr.ip().to_canonical(),
            announced: Arc::new(announced),
            is_connected: true,
        };
        self.peers.send_if_modified(|peers| {
            if peers.get(&self.node) == Some(&peer) {
                return false;
            }
            Arc::make_mut(peers).insert(self.node.clone(), peer);
            true
        });
    }

    /// Its instances get no new calls. Open ones go on: only the node's own list ends them.
    fn mark_disconnected(&self) {
        self.peers
            .send_if_modified(|peers| match Arc::make_mut(peers).get_mut(&self.node) {
                Some(peer) => std::mem::replace(&mut peer.is_connected, false),
                None => false,
            });
    }
}
