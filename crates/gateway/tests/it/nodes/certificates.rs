//! Connections of other nodes end with their certificate, or when its root is removed.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_testkit::within;
use nearpath_types::SpiffeId;
use nearpath_wire::identity::CertificateRequest;
use nearpath_wire::mtls::{AlpnProtocol, CallerStream, TlsVersion};
use nearpath_wire::node_tls::{NodeCredentials, NodeFiles, NodeTls};
use nearpath_wire::quic::{CallerConnection, Dialer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::LocalSet;

use super::fixture::{TRUST_DOMAIN, new_authority};
use crate::fixture::TestGateway;

pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Certificates of a node that accepts these roots.
pub(super) fn node_tls(
    authority: &Authority,
    node: &str,
    lifetime: Duration,
    roots: &[&Authority],
) -> NodeTls {
    let (request, now) = (CertificateRequest::new().unwrap(), SystemTime::now());
    let id = SpiffeId::for_gateway(TRUST_DOMAIN, node);
    let issued = authority.issue(request.csr(), &id, node, now, lifetime);
    let credentials = request.into_credentials(id, node.to_owned(), issued.unwrap());
    let (certificate, key) = credentials.to_pem();
    let roots: String = roots.iter().map(|root| root.to_pem()).collect();
    let files = NodeFiles {
        certificate: certificate.into_bytes(),
        key: key.into_bytes(),
        roots: roots.into_bytes(),
    };
    let credentials = NodeCredentials::from_files(Path::new("/test"), &files, now).unwrap();
    NodeTls::new(credentials).unwrap()
}

/// Open connections of a node, over TLS and over QUIC.
struct PeerConnections {
    tls: CallerStream<TcpStream>,
    quic: CallerConnection,
    _dialer: Dialer,
}

impl PeerConnections {
    async fn open(peer: &NodeTls, addr: SocketAddr) -> Self {
        let (caller, version) = (peer.caller_config(), TlsVersion::Tls13);
        let connector = caller.mtls_connector();
        let dialed = connector.dial_worker(addr, "b", version, AlpnProtocol::Http1, LIMIT);
        let (mut tls, _) = dialed.await.unwrap();
        assert!(answers(&mut tls).await);
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let dialer = caller.open_dialer(socket).unwrap();
        let quic = dialer.dial_worker(addr, "b", LIMIT).await.unwrap();
        let _dialer = dialer;
        Self { tls, quic, _dialer }
    }

    async fn wait_closed(&mut self) {
        let mut rest = Vec::new();
        // Closed with or without a close_notify.
        let _ = within(self.tls.read_to_end(&mut rest)).await;
        within(self.quic.connection().closed()).await;
    }

    async fn assert_open(&mut self) {
        assert!(answers(&mut self.tls).await && !self.quic.is_closed());
    }
}

/// Sends a request, and returns whether the gateway has responded.
async fn answers(stream: &mut CallerStream<TcpStream>) -> bool {
    let request = b"HEAD /elsewhere HTTP/1.1\r\nhost: b\r\n\r\n";
    if stream.write_all(request).await.is_err() {
        return false;
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match within(stream.read_u8()).await {
            Ok(byte) => head.push(byte),
            Err(_) => return false,
        }
    }
    head.starts_with(b"HTTP/1.1 404")
}

fn start(tls: NodeTls) -> (watch::Sender<Arc<NodeTls>>, TestGateway, SocketAddr) {
    let (sender, receiver) = watch::channel(Arc::new(tls));
    let gateway = TestGateway::with_node_tls(receiver, 0);
    let addr = gateway.node_port.unwrap();
    (sender, gateway, addr)
}

#[tokio::test]
async fn connections_of_a_removed_root_end_and_others_go_on() {
    let run = async {
        let (old, new) = (new_authority(), new_authority());
        let both = [&new, &old];
        let (sender, gateway, addr) = start(node_tls(&new, "b", HOUR, &both));
        let mut of_new = PeerConnections::open(&node_tls(&new, "c", HOUR, &both), addr).await;
        let mut of_old = PeerConnections::open(&node_tls(&old, "d", HOUR, &both), addr).await;
        let before = sender.borrow().clone();
        let renewed = node_tls(&new, "b", HOUR, &[&new]);
        let renewed = before.renewed(renewed.credentials().clone()).unwrap();
        sender.send_replace(Arc::new(renewed));
        of_old.wait_closed().await;
        of_new.assert_open().await;
        let mut refusals = gateway.gateway.node_refusals();
        let counted = within(refusals.wait_for(|refused| refused.count >= 2)).await;
        let counted = counted.unwrap().clone();
        assert_eq!(counted.by_reason["unknown_root"], counted.count);
        assert!(counted.last.contains("node/d/gateway"), "{}", counted.last);
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn connections_end_with_the_certificate_of_the_peer() {
    let run = async {
        let root = new_authority();
        let (_sender, gateway, addr) = start(node_tls(&root, "b", HOUR, &[&root]));
        let mut long = PeerConnections::open(&node_tls(&root, "c", HOUR, &[&root]), addr).await;
        let short = node_tls(&root, "d", Duration::from_secs(3), &[&root]);
        let mut short = PeerConnections::open(&short, addr).await;
        let mut rest = Vec::new();
        let _ = within(short.tls.read_to_end(&mut rest)).await;
        long.assert_open().await;
        let mut refusals = gateway.gateway.node_refusals();
        let is_counted = |refused: &nearpath_wire::quic::RefusalStats| {
            refused
                .by_reason
                .get("expired")
                .is_some_and(|count| *count >= 1)
        };
        drop(within(refusals.wait_for(is_counted)).await.unwrap());
    };
    LocalSet::new().run_until(run).await;
}
