//! Kept connections to a node that a test plays itself.

use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::path::Path;
use std::rc::Rc;

use nearpath_ca::Authority;
use nearpath_testkit::{eventually, within};
use nearpath_types::{PeerNode, SpiffeId};
use nearpath_wire::identity::CertificateRequest;
use nearpath_wire::node_tls::{NodeCredentials, NodeFiles, NodeTls};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::event_loop::EventLoop;
use crate::event_loop::tests::run_with_loop;

const TRUST_DOMAIN: &str = "test.nearpath";
const HOUR: Duration = Duration::from_secs(3600);
/// Life of a certificate that ends while its connections are idle.
const SHORT: Duration = Duration::from_secs(20);

/// Creates the certificates of a node.
fn node_tls(authority: &Authority, node: &str, lifetime: Duration) -> NodeTls {
    let (request, now) = (CertificateRequest::new().unwrap(), SystemTime::now());
    let id = SpiffeId::for_gateway(TRUST_DOMAIN, node);
    let issued = authority.issue(request.csr(), &id, node, now, lifetime);
    let credentials = request.into_credentials(id, node.to_owned(), issued.unwrap());
    let (certificate, key) = credentials.to_pem();
    let files = NodeFiles {
        certificate: certificate.into_bytes(),
        key: key.into_bytes(),
        roots: authority.to_pem().into_bytes(),
    };
    let credentials = NodeCredentials::from_files(Path::new("/test"), &files, now).unwrap();
    NodeTls::new(credentials).unwrap()
}

/// Connections of a node `a` to a node `b`.
struct Nodes {
    event_loop: Rc<EventLoop>,
    connections: NodeConnections,
    target: Arc<DialTarget>,
    caller: NodeTls,
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Nodes {
    /// Starts b with a certificate of this life.
    fn start(event_loop: Rc<EventLoop>, lifetime: Duration) -> Self {
        let authority = Authority::new(TRUST_DOMAIN, SystemTime::now(), HOUR).unwrap();
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let node = PeerNode {
            name: "b".parse().unwrap(),
            addr: listener.local_addr().unwrap(),
            incarnation: 0,
        };
        let open = |_| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
            Ok(socket_with(family, kind, flags, None)?)
        };
        let called = node_tls(&authority, "b", lifetime);
        Self {
            event_loop,
            connections: NodeConnections::new(Rc::new(open), 2),
            target: DialTarget::for_node(&node).into(),
            caller: node_tls(&authority, "a", HOUR),
            listener: TcpListener::from_std(listener).unwrap(),
            acceptor: called.tls_server_config().clone().into(),
        }
    }

    /// Opens a connection, and returns it with the end of b.
    async fn connect(&self) -> (PooledConnection, TlsStream<TcpStream>) {
        let (caller, poller) = (self.caller.caller_config(), self.event_loop.poller());
        self.connections
            .open_later(&self.target, Some(caller.clone()), poller);
        let (socket, _) = within(self.listener.accept()).await.unwrap();
        let peer = within(self.acceptor.accept(socket)).await.unwrap();
        let mut opened = None;
        eventually("the connection is open", async || {
            opened = self.take_idle_after(Duration::ZERO);
            opened.is_some()
        })
        .await;
        (opened.unwrap(), peer)
    }

    fn take_idle_after(&self, time: Duration) -> Option<PooledConnection> {
        self.connections
            .take_idle(&self.target, Instant::now() + time)
    }
}

/// Waits until a connection ends, with or without a close_notify.
async fn wait_closed(peer: &mut TlsStream<TcpStream>) {
    let _ = within(peer.read_to_end(&mut Vec::new())).await;
}

#[test]
fn a_connection_takes_no_request_after_the_nodes_certificate_has_ended() {
    run_with_loop(async |event_loop| {
        let nodes = Nodes::start(event_loop, SHORT);
        let (connection, mut peer) = nodes.connect().await;
        connection.put_back();
        let second = Duration::from_secs(1);
        assert!(nodes.take_idle_after(SHORT + second).is_none());
        wait_closed(&mut peer).await;
        assert!(!nodes.target.has_kept_connections());
    });
}

#[test]
fn a_connection_takes_requests_while_the_nodes_certificate_is_valid() {
    run_with_loop(async |event_loop| {
        let nodes = Nodes::start(event_loop, HOUR);
        let (connection, _peer) = nodes.connect().await;
        connection.put_back();
        let second = Duration::from_secs(1);
        assert!(nodes.take_idle_after(SHORT + second).is_some());
    });
}

#[test]
fn a_renewal_ends_connections_of_the_old_certificate() {
    run_with_loop(async |event_loop| {
        let nodes = Nodes::start(event_loop, HOUR);
        let (used, mut peer_of_used) = nodes.connect().await;
        let (idle, mut peer_of_idle) = nodes.connect().await;
        idle.put_back();
        nodes.connections.renew();
        wait_closed(&mut peer_of_idle).await;
        used.put_back();
        wait_closed(&mut peer_of_used).await;
        assert!(nodes.take_idle_after(Duration::ZERO).is_none());
    });
}

#[test]
fn bytes_on_an_idle_connection_end_it() {
    run_with_loop(async |event_loop| {
        let nodes = Nodes::start(event_loop, HOUR);
        let (connection, mut peer) = nodes.connect().await;
        peer.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut connection = Some(connection);
        // Taken and returned until the bytes have arrived.
        eventually("the connection is not taken", async || {
            connection
                .take()
                .into_iter()
                .for_each(PooledConnection::put_back);
            connection = nodes.take_idle_after(Duration::ZERO);
            connection.is_none()
        })
        .await;
        wait_closed(&mut peer).await;
    });
}

#[test]
fn bytes_that_the_tls_session_holds_end_a_connection_that_is_reused_at_once() {
    run_with_loop(async |event_loop| {
        let nodes = Nodes::start(event_loop, HOUR);
        let (mut connection, mut peer) = nodes.connect().await;
        // One record, of which the reader takes a part.
        peer.write_all(&[b'x'; 16_000]).await.unwrap();
        within(connection.read_more()).await.unwrap();
        assert!(connection.buffer.len() < 16_000);
        connection.buffer.clear();
        (0..100).for_each(|_| connection.note_response_end());
        assert!(!connection.socket().may_be_readable(), "all bytes are read");
        assert!(!connection.is_open_and_silent(Duration::ZERO));
    });
}
