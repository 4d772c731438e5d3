//! Tasks that follow the list of nodes and keep a connection to each.

mod abort_on_drop;
mod applied_states;
mod dialer;
mod http_connection;
mod log_lines;
mod peer_task;
mod pinger;
mod query;
mod streams;
mod subscription;

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::{NodeAddresses, NodeName};
use tokio::sync::watch;

pub use dialer::{DialedStream, NodeDialError, NodeDialer};
pub use query::{PeerClient, PeerLines, QUERY_TIMEOUT, QueryError};
pub use streams::{PeerStream, StreamError};

use crate::metrics;
use crate::peer_states::PeerStates;
use crate::protocol::NodeIncarnation;
use abort_on_drop::AbortOnDrop;
use applied_states::AppliedState;
use peer_task::{PeerTask, StatesSender};

/// Returns the incarnation of a new process.
pub fn random_incarnation() -> NodeIncarnation {
    NodeIncarnation(fastrand::u64(..))
}

/// Connections to all other nodes of the list.
pub struct PeerLinks {
    own: NodeName,
    dialer: Arc<dyn NodeDialer>,
    states: StatesSender,
    applied: watch::Receiver<Arc<PeerStates>>,
    tasks: BTreeMap<NodeName, (String, AbortOnDrop)>,
}

impl PeerLinks {
    /// Follows the list of nodes, and connects to each but `own`. Returns the states of these
    /// nodes. The connections end when the sender of `nodes` is dropped.
    ///
    /// `applied` are the states that the own routes reflect. Nodes that drain wait until they are
    /// told of it.
    ///
    /// Needs a running tokio runtime. Registers the metrics of these nodes.
    pub fn start(
        own: NodeName,
        nodes: watch::Receiver<Arc<NodeAddresses>>,
        applied: watch::Receiver<Arc<PeerStates>>,
        dialer: Arc<dyn NodeDialer>,
        registry: &MetricsRegistry,
    ) -> watch::Receiver<Arc<PeerStates>> {
        let (sender, states) = watch::channel(Arc::default());
        metrics::register(registry, states.clone());
        let links = Self {
            own,
            dialer,
            states: Arc::new(sender),
            applied,
            tasks: BTreeMap::new(),
        };
        tokio::spawn(links.follow(nodes));
        states
    }

    async fn follow(mut self, mut nodes: watch::Receiver<Arc<NodeAddresses>>) {
        loop {
            let list = nodes.borrow_and_update().clone();
            self.apply_list(&list).await;
            if nodes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends the tasks of nodes that are gone or have another address, and starts those of new ones.
    async fn apply_list(&mut self, list: &NodeAddresses) {
        let is_current = |name: &NodeName, address: &String| list.get(name) == Some(address);
        let old: Vec<NodeName> = self
            .tasks
            .iter()
            .filter(|(name, (address, _))| !is_current(name, address))
            .map(|(name, _)| name.clone())
            .collect();
        for name in old {
            self.remove_peer(&name).await;
        }
        for (name, address) in list {
            if *name != self.own && !self.tasks.contains_key(name) {
                self.add_peer(name.clone(), address.clone());
            }
        }
    }

    async fn remove_peer(&mut self, name: &NodeName) {
        if let Some((_, task)) = self.tasks.remove(name) {
            // The task could publish a state after it was removed.
            task.end().await;
        }
        self.states.send_modify(|states| {
            Arc::make_mut(states).peers.remove(name);
        });
    }

    fn add_peer(&mut self, name: NodeName, address: String) {
        let task = PeerTask::new(
            name.clone(),
            address.clone(),
            self.dialer.clone(),
            self.states.clone(),
            AppliedState::new(name.clone(), self.applied.clone()),
        );
        let task = AbortOnDrop::spawn(task.run());
        self.tasks.insert(name, (address, task));
    }
}
