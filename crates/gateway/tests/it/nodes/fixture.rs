//! Gateways of several nodes in one process, with certificates of one authority.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Request;
use nearpath_ca::Authority;
use nearpath_types::{
    FunctionLoad, FunctionPolicy, FunctionRoute, InstanceState, PeerNode, RemoteInstances,
    RoutingSnapshot, SpiffeId,
};
use nearpath_wire::identity::CertificateRequest;
use nearpath_wire::node_tls::{NodeCredentials, NodeFiles, NodeTls};
use tokio::sync::watch;

use crate::fixture::{self, CollectedResponse, TestGateway, full_body};

pub(super) const TRUST_DOMAIN: &str = "test.nearpath";
const LIFETIME: Duration = Duration::from_secs(3600);

/// Creates an authority for nodes.
pub(super) fn new_authority() -> Authority {
    Authority::new(TRUST_DOMAIN, SystemTime::now(), LIFETIME).unwrap()
}

/// Creates the certificates of a node that trusts its own authority.
pub(super) fn node_tls(authority: &Authority, node: &str) -> watch::Receiver<Arc<NodeTls>> {
    let (request, now) = (CertificateRequest::new().unwrap(), SystemTime::now());
    let id = SpiffeId::for_gateway(TRUST_DOMAIN, node);
    let issued = authority.issue(request.csr(), &id, node, now, LIFETIME);
    let credentials = request.into_credentials(id, node.to_owned(), issued.unwrap());
    let (certificate, key) = credentials.to_pem();
    let files = NodeFiles {
        certificate: certificate.into_bytes(),
        key: key.into_bytes(),
        roots: authority.to_pem().into_bytes(),
    };
    let credentials = NodeCredentials::from_files(Path::new("/test"), &files, now).unwrap();
    watch::channel(Arc::new(NodeTls::new(credentials).unwrap())).1
}

/// A node with its gateway, without an agent: tests publish its snapshots.
pub(super) struct TestNode {
    pub(super) name: &'static str,
    pub(super) gateway: TestGateway,
}

impl TestNode {
    /// Starts a node that calls others over QUIC where it can.
    pub(super) fn start(authority: &Authority, name: &'static str) -> Self {
        Self::start_with(authority, name, 0)
    }

    /// Starts a node that keeps TLS connections to others for complete requests.
    pub(super) fn with_kept_tls(authority: &Authority, name: &'static str) -> Self {
        Self::start_with(authority, name, 2)
    }

    fn start_with(authority: &Authority, name: &'static str, max_kept: usize) -> Self {
        let gateway = TestGateway::with_node_tls(node_tls(authority, name), max_kept);
        Self { name, gateway }
    }

    /// Calls `echo` until a kept TLS connection carries the request. Each thread has its own.
    pub(super) async fn call_until_kept(&self) -> CollectedResponse {
        self.post_until_kept("/function/echo", "").await
    }

    /// Sends `body` until a kept TLS connection carries the request.
    pub(super) async fn post_until_kept(&self, path: &str, body: &str) -> CollectedResponse {
        loop {
            let response = self.post(path, body.into()).await;
            let path = response.headers.get("x-nearpath-path");
            if path.is_some_and(|path| path.as_bytes().starts_with(b"tls; obstacle=kept_tls")) {
                return response;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns the node as others know it.
    pub(super) fn peer(&self) -> Arc<PeerNode> {
        Arc::new(PeerNode {
            name: self.name.parse().unwrap(),
            addr: self.gateway.node_port.unwrap(),
            incarnation: 0,
        })
    }

    /// Publishes functions, and the other nodes that are reachable.
    pub(super) fn publish(&self, others: &[&Self], functions: Vec<FunctionRoute>) {
        self.gateway.gateway.publish(&RoutingSnapshot {
            version: 1,
            nodes: others.iter().map(|node| node.peer()).collect(),
            functions: functions.into_iter().collect(),
        });
    }

    pub(super) async fn get(&self, path: &str) -> CollectedResponse {
        let request = Request::get(path).header("x-nearpath-path", "1");
        fixture::send_and_collect(self.gateway.public, request.body(full_body("")).unwrap()).await
    }

    pub(super) async fn post(&self, path: &str, body: Vec<u8>) -> CollectedResponse {
        let request = Request::post(path).header("x-nearpath-path", "1");
        fixture::send_and_collect(self.gateway.public, request.body(full_body(body)).unwrap()).await
    }
}

/// Route of a function with instances on this node.
pub(super) fn here(name: &str, policy: FunctionPolicy, ready: &[SocketAddr]) -> FunctionRoute {
    fixture::function_route(name, policy, ready)
}

/// Route of a function that runs on other nodes alone, with one ready instance on each.
pub(super) fn elsewhere(name: &str, policy: FunctionPolicy, nodes: &[&TestNode]) -> FunctionRoute {
    FunctionRoute {
        runs_here: false,
        remotes: remotes(nodes, 1),
        ..fixture::function_route(name, policy, &[])
    }
}

/// Instances on other nodes, `ready` on each.
pub(super) fn remotes(nodes: &[&TestNode], ready: u32) -> Vec<RemoteInstances> {
    let remote = |node: &&TestNode| RemoteInstances {
        node: node.peer(),
        load: FunctionLoad { ready, requests: 0 },
    };
    nodes.iter().map(remote).collect()
}

/// Makes an instance of a function that starts, and so may call already.
pub(super) fn caller(name: &str, policy: FunctionPolicy, addr: SocketAddr) -> FunctionRoute {
    FunctionRoute {
        instances: vec![fixture::instance_entry(addr, InstanceState::Starting)],
        ..fixture::function_route(name, policy, &[])
    }
}
