//! Nodes on loopback: a state, a server, and links to others.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_internode::{
    DialedStream, LocalState, NodeDialError, NodeDialer, NodeFacts, PeerAvailability, PeerLinks,
    PeerStates, PeerStatus, StateServer, random_incarnation,
};
use nearpath_testkit::within;
use nearpath_types::{FunctionLoad, NodeAddresses, NodeName};
use nearpath_wire::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Dials without certificates.
pub(crate) struct PlainDialer;

impl NodeDialer for PlainDialer {
    fn dial(
        &self,
        _node: &NodeName,
        addr: SocketAddr,
    ) -> BoxFuture<'static, Result<Box<dyn DialedStream>, NodeDialError>> {
        async move {
            let stream = TcpStream::connect(addr).await?;
            Ok(Box::new(stream) as Box<dyn DialedStream>)
        }
        .boxed()
    }
}

/// Dials without certificates, which are renewed with each change.
pub(crate) struct RenewedDialer(pub(crate) watch::Receiver<u32>);

impl NodeDialer for RenewedDialer {
    fn dial(
        &self,
        node: &NodeName,
        addr: SocketAddr,
    ) -> BoxFuture<'static, Result<Box<dyn DialedStream>, NodeDialError>> {
        PlainDialer.dial(node, addr)
    }

    fn renewed(&self) -> BoxFuture<'static, ()> {
        let mut renewals = self.0.clone();
        renewals.mark_unchanged();
        async move { renewals.changed().await.unwrap() }.boxed()
    }
}

pub(crate) fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

/// A node that reports its functions.
pub(crate) struct TestNode {
    pub(crate) name: NodeName,
    pub(crate) addr: SocketAddr,
    pub(crate) state: watch::Sender<Arc<LocalState>>,
    /// Pings get no response while this is true.
    pub(crate) is_mute: Arc<AtomicBool>,
    pub(crate) service: StateServer,
    /// Another process accepts connections when this is true.
    is_handed_over: watch::Sender<bool>,
    server: JoinHandle<()>,
}

impl TestNode {
    /// Starts a node on a free port.
    pub(crate) async fn start(text: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve(text, listener)
    }

    /// Starts another run of the node on its port.
    pub(crate) async fn restart(mut self) -> Self {
        let text = self.name.to_string();
        self.server.abort();
        let _ = (&mut self.server).await;
        let listener = TcpListener::bind(self.addr).await.unwrap();
        Self::serve(&text, listener)
    }

    /// Starts a process that accepts the connections of this one from now on. Open ones go on here.
    pub(crate) async fn hand_over(&self) -> Self {
        self.is_handed_over.send_replace(true);
        self.is_handed_over.closed().await;
        let listener = TcpListener::bind(self.addr).await.unwrap();
        Self::serve(self.name.as_str(), listener)
    }

    /// Says that another process accepts connections.
    pub(crate) fn announce_successor(&self) {
        let replaced = Arc::new(self.state.borrow().with_replaced());
        self.state.send_replace(replaced);
    }

    fn serve(text: &str, listener: TcpListener) -> Self {
        let (state, states) = watch::channel(Arc::new(new_state(text)));
        let is_mute = Arc::new(AtomicBool::new(false));
        let addr = listener.local_addr().unwrap();
        let service = StateServer::new(states, watch::channel(Default::default()).1);
        let (is_handed_over, accepting) = watch::channel(false);
        let accepting = accept_all(listener, service.clone(), is_mute.clone(), accepting);
        let server = tokio::spawn(accepting);
        Self {
            service,
            is_handed_over,
            name: name(text),
            addr,
            state,
            is_mute,
            server,
        }
    }

    /// Ends the node with all its connections, as a signal does.
    pub(crate) fn kill(&self) {
        self.server.abort();
    }

    /// Sets or removes the loads of functions.
    pub(crate) fn set(&self, functions: &[(&str, Option<FunctionLoad>)]) {
        self.state.send_modify(|state| {
            let mut map = state.functions().clone();
            for (id, load) in functions {
                let id = id.parse().unwrap();
                match load {
                    Some(load) => drop(map.insert(id, *load)),
                    None => drop(map.remove(&id)),
                }
            }
            *state = Arc::new(state.with_functions(map));
        });
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn new_state(text: &str) -> LocalState {
    LocalState::new(NodeFacts {
        name: name(text),
        incarnation: random_incarnation(),
        version: "0.1.0".to_owned(),
        started: 1_764_430_000,
    })
}

pub(crate) fn load(ready: u32, requests: u32) -> Option<FunctionLoad> {
    Some(FunctionLoad { ready, requests })
}

async fn accept_all(
    listener: TcpListener,
    server: StateServer,
    is_mute: Arc<AtomicBool>,
    mut is_handed_over: watch::Receiver<bool>,
) {
    // Ends with this task, as connections end with their process.
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            Ok(_) = is_handed_over.wait_for(|is_so| *is_so) => break,
        };
        connections.spawn(serve_connection(stream, server.clone(), is_mute.clone()));
    }
    drop(listener);
    drop(is_handed_over); // tells the other process that the port is free
    std::future::pending::<()>().await;
}

async fn serve_connection(stream: TcpStream, server: StateServer, is_mute: Arc<AtomicBool>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, is_mute) = (server.clone(), is_mute.clone());
        async move {
            if is_mute.load(Ordering::Relaxed) && request.uri().path().ends_with("ping") {
                std::future::pending::<()>().await;
            }
            let request = request.map(Body::boxed);
            Ok::<_, Infallible>(server.respond(&name("peer"), request).await)
        }
    });
    let http = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let _ = http.await;
}

/// A node that follows others.
pub(crate) struct Follower {
    pub(crate) nodes: watch::Sender<Arc<NodeAddresses>>,
    pub(crate) states: watch::Receiver<Arc<PeerStates>>,
    /// States that the routes of this node reflect, which tests set.
    pub(crate) applied: watch::Sender<Arc<PeerStates>>,
    pub(crate) registry: MetricsRegistry,
}

impl Follower {
    /// Starts the links of the node `a`.
    pub(crate) fn start(peers: &[(&str, String)]) -> Self {
        Self::start_as("a", peers)
    }

    pub(crate) fn start_as(own: &str, peers: &[(&str, String)]) -> Self {
        Self::start_dialing(own, peers, Arc::new(PlainDialer))
    }

    pub(crate) fn start_dialing(
        own: &str,
        peers: &[(&str, String)],
        dialer: Arc<dyn NodeDialer>,
    ) -> Self {
        let (nodes, list) = watch::channel(Arc::new(addresses(peers)));
        let registry = MetricsRegistry::default();
        let (applied, routes) = watch::channel(Arc::default());
        let states = PeerLinks::start(name(own), list, routes, dialer, &registry);
        Self {
            nodes,
            states,
            applied,
            registry,
        }
    }

    pub(crate) fn start_with(nodes: &[&TestNode]) -> Self {
        let peers = nodes.iter();
        let peers: Vec<_> = peers
            .map(|node| (node.name.as_str(), node.addr.to_string()))
            .collect();
        Self::start(&peers)
    }

    /// Waits until all states are as wanted, at most 30 s.
    pub(crate) async fn wait_all(&mut self, what: &str, wanted: impl FnMut(&PeerStates) -> bool) {
        let mut wanted = wanted;
        let waited = within(self.states.wait_for(|states| wanted(states))).await;
        drop(waited.expect(what));
    }

    /// Waits until a node's state is as wanted, and returns it.
    pub(crate) async fn wait(
        &mut self,
        node: &str,
        mut wanted: impl FnMut(&PeerStatus) -> bool,
    ) -> Arc<PeerStatus> {
        let status = |states: &PeerStates| states.peers.get(node).cloned();
        self.wait_all(node, |states| {
            status(states).is_some_and(|one| wanted(&one))
        })
        .await;
        let states = self.states.borrow();
        status(&states).unwrap()
    }

    pub(crate) async fn wait_up(&mut self, node: &str) -> Arc<PeerStatus> {
        self.wait(node, is_up).await
    }

    /// Waits until a node is down for this cause. A slow machine may see others before.
    pub(crate) async fn wait_cause(&mut self, node: &str, cause: &str) {
        let is_down = |status: &PeerStatus| down_cause(status).as_deref() == Some(cause);
        self.wait(node, is_down).await;
    }

    /// Waits until a node is down, and returns the cause.
    pub(crate) async fn wait_down(&mut self, node: &str) -> String {
        let status = self.wait(node, |status| down_cause(status).is_some()).await;
        down_cause(&status).unwrap_or_default()
    }
}

pub(crate) fn addresses(peers: &[(&str, String)]) -> NodeAddresses {
    let pairs = peers.iter();
    pairs
        .map(|(text, address)| (name(text), address.clone()))
        .collect()
}

pub(crate) fn is_up(status: &PeerStatus) -> bool {
    status.availability == PeerAvailability::Up
}

pub(crate) fn down_cause(status: &PeerStatus) -> Option<String> {
    match &status.availability {
        PeerAvailability::Down { cause } => Some(cause.to_string()),
        _ => None,
    }
}

/// Loads of the functions that a node reports, as text.
pub(crate) fn loads(status: &PeerStatus) -> BTreeMap<String, (u32, u32)> {
    let entry = |(id, load): (&nearpath_types::FunctionId, &Arc<FunctionLoad>)| {
        (id.to_string(), (load.ready, load.requests))
    };
    status.functions.iter().map(entry).collect()
}
