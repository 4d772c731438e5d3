//! Connections between this node and others: the port for their calls, their states in the routes of the
//! gateway, and the report of this node's functions.

mod dialer;
mod directory;
mod local_load;
mod node_rows;
mod port;
mod routes;

use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::Gateway;
use nearpath_internode::{
    LocalState, NodeFacts, PeerClient, PeerLinks, PeerStates, StateServer, random_incarnation,
};
use nearpath_node::Node;
use nearpath_types::{NodeAddresses, NodeName};
use nearpath_wire::node_tls::NodeTls;
use nearpath_wire::quic::CallerConfig;
use tokio::sync::watch;

use dialer::TlsDialer;

pub(crate) use directory::NodeDirectory;
pub(crate) use port::PeerPort;
pub(crate) use routes::RouteForwarder;

/// Other nodes, as this process serves and calls them.
pub(crate) struct PeerService {
    own: NodeName,
    tls: watch::Receiver<Arc<NodeTls>>,
    state: watch::Sender<Arc<LocalState>>,
    states: watch::Sender<Arc<PeerStates>>,
}

impl PeerService {
    /// Creates the service of a node without connections.
    pub(crate) fn new(own: NodeName, tls: watch::Receiver<Arc<NodeTls>>) -> Self {
        let facts = NodeFacts {
            name: own.clone(),
            incarnation: random_incarnation(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: local_load::unix_seconds(),
        };
        Self {
            own,
            tls,
            state: watch::Sender::new(Arc::new(LocalState::new(facts))),
            states: watch::Sender::default(),
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
        StateServer::new(self.state.subscribe())
    }

    /// Returns a client for queries of the other nodes.
    pub(crate) fn client(&self) -> PeerClient {
        let dialer = Arc::new(TlsDialer::new(self.tls.clone()));
        PeerClient::new(dialer, self.watch_peers())
    }

    /// Returns the states of the other nodes as they change.
    pub(crate) fn watch_peers(&self) -> watch::Receiver<Arc<PeerStates>> {
        self.states.subscribe()
    }

    /// Connects to the nodes of the list, and reports this node's functions to them.
    pub(crate) fn start(
        &self,
        nodes: watch::Receiver<Arc<NodeAddresses>>,
        (node, gateway): (&Node, &Gateway),
        registry: &MetricsRegistry,
    ) {
        let dialer = Arc::new(TlsDialer::new(self.tls.clone()));
        let mut peers = PeerLinks::start(self.own.clone(), nodes, dialer, registry);
        let states = self.states.clone();
        tokio::spawn(async move {
            while peers.changed().await.is_ok() {
                states.send_replace(peers.borrow_and_update().clone());
            }
        });
        let (snapshots, functions) = (node.watch_snapshots(), gateway.functions());
        tokio::spawn(local_load::report(self.state.clone(), snapshots, functions));
    }

    /// Tells the other nodes that this one takes no new calls.
    pub(crate) fn begin_drain(&self) {
        self.state
            .send_modify(|state| *state = Arc::new(state.with_draining(true)));
    }
}
