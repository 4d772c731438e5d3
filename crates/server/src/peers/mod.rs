//! Connections between this node and others: the port for their calls, their states in the routes of the
//! gateway, and the report of this node's functions.

mod dialer;
mod direct;
mod directory;
mod local_load;
mod node_rows;
mod port;
mod routes;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::drain::{DrainCause, DrainTrigger};
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::Gateway;
use nearpath_internode::{
    LocalState, NodeFacts, PeerClient, PeerLinks, PeerStates, StateServer, random_incarnation,
};
use nearpath_node::{Node, StreamHook};
use nearpath_types::direct::{DirectInstances, DirectNode, DirectPeerNodes};
use nearpath_types::{NodeAddresses, NodeName};
use nearpath_wire::node_tls::NodeTls;
use nearpath_wire::quic::{CallerConfig, RefusalStats};
use tokio::sync::watch;

use dialer::TlsDialer;
use direct::DirectLinks;

pub(crate) use directory::{NodeDirectory, warn_unconnected};
pub(crate) use port::PeerPort;
pub(crate) use routes::{RouteForwarder, RoutePeers};
pub(crate) use streams::respond as respond_stream;

/// Maximum wait for other nodes to send no more calls here. Longer than a node that does not answer
/// counts as up.
const DRAIN_CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum wait for other nodes to call the process that has replaced this one. They need some round trips,
/// and are served meanwhile. Those of older releases do not follow.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for calls that other nodes sent to this process before their routes left it out.
const ARRIVAL_GRACE: Duration = Duration::from_millis(250);

/// Minimum time between two log lines about refused nodes.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Other nodes, as this process serves and calls them.
pub(crate) struct PeerService {
    own: NodeName,
    tls: watch::Receiver<Arc<NodeTls>>,
    state: watch::Sender<Arc<LocalState>>,
    states: watch::Sender<Arc<PeerStates>>,
    /// States that the gateway's routes reflect.
    applied: watch::Sender<Arc<PeerStates>>,
    /// List of nodes that the links follow. It outlives the source: open calls go on while this node
    /// drains.
    nodes: watch::Sender<Arc<NodeAddresses>>,
    server: StateServer,
    /// Stops this process from accepting connections of other nodes; `None` once it has.
    handover: Option<DrainTrigger>,
    /// Directly callable instances of this node.
    direct: watch::Sender<Arc<DirectNode>>,
    /// Those of other nodes.
    direct_peers: watch::Sender<Arc<DirectPeerNodes>>,
}

impl PeerService {
    /// Creates the service of a node without connections. `handover` stops its port from accepting them.
    pub(crate) fn new(
        own: NodeName,
        tls: watch::Receiver<Arc<NodeTls>>,
        handover: DrainTrigger,
    ) -> Self {
        let direct = watch::Sender::default();
        let facts = NodeFacts {
            name: own.clone(),
            incarnation: random_incarnation(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: local_load::unix_seconds(),
        };
        let state = watch::Sender::new(Arc::new(LocalState::new(facts)));
        Self {
            own,
            tls,
            server: StateServer::new(state.subscribe(), direct.subscribe()),
            direct,
            direct_peers: watch::Sender::default(),
            state,
            states: watch::Sender::default(),
            applied: watch::Sender::default(),
            nodes: watch::Sender::default(),
            handover: Some(handover),
        }
    }

    /// Returns the certificate with which the gateway calls other nodes, and its renewals.
    pub(crate) fn caller(&self) -> watch::Receiver<CallerConfig> {
        let mut tls = self.tls.clone();
        let first = tls.borrow_and_update().caller_config().clone();
        let (sender, caller) = watch::channel(first);
        tokio::spawn(async move {
            while tls.changed().await.is_ok() {
                sender.send_replace(tls.borrow_and_update().caller_config().clone());
            }
        });
        caller
    }

    /// Returns the service for requests of other nodes.
    pub(crate) fn state_server(&self) -> StateServer {
        self.server.clone()
    }

    /// Returns the states of the other nodes as they change, and where to send those that the
    /// gateway's routes reflect.
    pub(crate) fn route_states(&self) -> RoutePeers {
        RoutePeers {
            states: self.states.subscribe(),
            applied: self.applied.clone(),
        }
    }

    /// Returns a client for queries of the other nodes.
    pub(crate) fn client(&self) -> PeerClient {
        let dialer = Arc::new(TlsDialer::new(self.tls.clone()));
        PeerClient::new(dialer, self.watch_peers())
    }

    /// Returns the hook with which this node opens streams to functions on others.
    pub(crate) fn stream_hook(&self) -> StreamHook {
        streams::stream_hook(self.client())
    }

    /// Returns the states of the other nodes as they change.
    pub(crate) fn watch_peers(&self) -> watch::Receiver<Arc<PeerStates>> {
        self.states.subscribe()
    }

    /// Returns the directly callable instances of other nodes as they change.
    pub(crate) fn watch_direct_peers(&self) -> watch::Receiver<Arc<DirectPeerNodes>> {
        self.direct_peers.subscribe()
    }

    /// Announces the directly callable instances of this node, which `authority` signs for, and
    /// follows those of other nodes.
    pub(crate) fn start_direct(&self, node: &Node, authority: Arc<[u8]>) {
        let (mut own, direct) = (node.watch_direct_instances(), self.direct.clone());
        tokio::spawn(async move {
            loop {
                let instances = DirectInstances::clone(&own.borrow_and_update());
                let authority = authority.clone();
                direct.send_replace(Arc::new(DirectNode {
                    authority,
                    instances,
                }));
                if own.changed().await.is_err() {
                    return;
                }
            }
        });
        let links = DirectLinks {
            own: self.own.clone(),
            client: self.client(),
            states: self.watch_peers(),
            peers: self.direct_peers.clone(),
        };
        tokio::spawn(links.follow(self.nodes.subscribe()));
    }

    /// Connects to the nodes of the list, and reports this node's functions to them.
    pub(crate) fn start(
        &self,
        nodes: watch::Receiver<Arc<NodeAddresses>>,
        (node, gateway): (&Node, &Gateway),
        registry: &MetricsRegistry,
    ) {
        tokio::spawn(forward(nodes, self.nodes.clone()));
        let dialer = Arc::new(TlsDialer::new(self.tls.clone()));
        let applied = self.applied.subscribe();
        let nodes = self.nodes.subscribe();
        let peers = PeerLinks::start(self.own.clone(), nodes, applied, dialer, registry);
        tokio::spawn(forward(peers, self.states.clone()));
        tokio::spawn(log_refusals(gateway.node_refusals()));
        let (snapshots, functions) = (node.watch_snapshots(), gateway.functions());
        tokio::spawn(local_load::report(self.state.clone(), snapshots, functions));
    }

    /// Tells the other nodes that this one takes no new calls, and waits until their routes reflect
    /// it. Until then their calls come here.
    pub(crate) async fn begin_drain(&self) {
        self.state
            .send_modify(|state| *state = Arc::new(state.with_draining(true)));
        if let Err(nodes) = self.server.wait_drain_applied(DRAIN_CONFIRM_TIMEOUT).await {
            tracing::warn!(
                nodes = join_names(&nodes),
                limit = ?DRAIN_CONFIRM_TIMEOUT,
                "draining: these nodes did not confirm that they send no more calls; they may see refused calls"
            );
        }
        tokio::time::sleep(ARRIVAL_GRACE).await;
    }

    /// Leaves the port to another process of this node, and waits until the calls of other nodes go there.
    pub(crate) async fn hand_over(&mut self) {
        if let Some(handover) = self.handover.take() {
            handover.drain_because(DrainCause::Replaced).await;
        }
        self.server.begin_handover();
        self.state
            .send_modify(|state| *state = Arc::new(state.with_replaced()));
        if let Err(nodes) = self.server.wait_followed(FOLLOW_TIMEOUT).await {
            tracing::info!(
                nodes = join_names(&nodes),
                "handover: these nodes are told that this process drains"
            );
            self.begin_drain().await;
        }
        tokio::time::sleep(ARRIVAL_GRACE).await;
    }
}

fn join_names(nodes: &[NodeName]) -> String {
    let nodes: Vec<_> = nodes.iter().map(NodeName::as_str).collect();
    nodes.join(", ")
}

/// Logs refused connections and calls of other nodes, at most one line a second, so that a flood of them
/// cannot fill the log.
async fn log_refusals(mut refusals: watch::Receiver<RefusalStats>) {
    while refusals.changed().await.is_ok() {
        let RefusalStats { count, last, .. } = refusals.borrow_and_update().clone();
        tracing::warn!(
            count,
            last,
            "nodes: refused a connection or a call of another node"
        );
        tokio::time::sleep(REFUSAL_LOG_INTERVAL).await;
    }
}

/// Forwards values until their sender ends.
async fn forward<T: Clone>(mut from: watch::Receiver<T>, to: watch::Sender<T>) {
    loop {
        let value = from.borrow_and_update().clone();
        to.send_replace(value);
        if from.changed().await.is_err() {
            return;
        }
    }
}
