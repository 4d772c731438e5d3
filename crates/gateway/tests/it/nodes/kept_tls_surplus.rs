//! Bytes after a complete response of another node, which a test plays itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use nearpath_testkit::within;
use nearpath_types::{
    FunctionLoad, FunctionPolicy, FunctionRoute, PeerNode, RemoteInstances, RoutingSnapshot,
};
use nearpath_wire::node_tls::NodeTls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificates::{HOUR, node_tls};
use super::fixture::{TestNode, elsewhere, new_authority};
use super::kept_client::{KeptClient, TextResponse};
use crate::fixture::TestGateway;

const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const SURPLUS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";

/// Counts of the node's connections.
#[derive(Debug, Default, Clone, Copy)]
struct NodeCounts {
    /// Handshakes that are complete.
    opened: usize,
    /// Responses that were sent, each with its surplus.
    responded: usize,
    /// Connections that the peer has ended.
    ended: usize,
}

/// Node that sends surplus bytes behind its responses.
struct SurplusNode {
    addr: SocketAddr,
    counts: watch::Receiver<NodeCounts>,
}

impl SurplusNode {
    async fn start(tls: &NodeTls) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut config = (**tls.tls_server_config()).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (sender, counts) = watch::channel(NodeCounts::default());
        let sender = Arc::new(sender);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Otherwise the surplus would wait for an acknowledgement (Nagle's algorithm).
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(acceptor.clone(), stream, sender.clone()));
            }
        });
        Self { addr, counts }
    }

    /// Waits until a count exceeds an earlier one.
    async fn wait_above(&self, before: usize, count: impl Fn(&NodeCounts) -> usize) {
        let mut counts = self.counts.clone();
        let waiting = counts.wait_for(|counts| count(counts) > before);
        within(waiting).await.unwrap();
    }

    /// Sends a request. `None`: no kept connection carried it, and one was opened beside it.
    async fn call(&self, client: &mut KeptClient, path: &str) -> Option<TextResponse> {
        let before = self.counts.borrow().opened;
        client.send(path, "").await;
        tokio::select! {
            response = client.receive() => Some(response),
            () = self.wait_above(before, |counts| counts.opened) => None,
        }
    }

    /// Returns a client whose thread has a kept connection.
    async fn connect_client(&self, a: &TestNode) -> KeptClient {
        loop {
            // Dropping the client ends a call that waits for a QUIC connection, which this node refuses.
            let mut client = KeptClient::connect(a.gateway.public).await;
            if let Some(response) = self.call(&mut client, "/function/echo").await
                && response.is_kept()
            {
                return client;
            }
        }
    }

    fn instances(&self) -> RemoteInstances {
        let node = PeerNode {
            name: "b".parse().unwrap(),
            addr: self.addr,
            incarnation: 0,
        };
        RemoteInstances {
            node: node.into(),
            load: FunctionLoad {
                ready: 1,
                requests: 0,
            },
        }
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, counts: Arc<watch::Sender<NodeCounts>>) {
    let Ok(mut stream) = acceptor.accept(stream).await else {
        return;
    };
    counts.send_modify(|counts| counts.opened += 1);
    while respond(&mut stream).await.is_some() {
        counts.send_modify(|counts| counts.responded += 1);
    }
    counts.send_modify(|counts| counts.ended += 1);
}

/// Answers one request, as its path wants. `None`: the connection has ended.
async fn respond(stream: &mut TlsStream<TcpStream>) -> Option<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(stream.read_u8().await.ok()?));
    }
    let (response, surplus) = match head.split(' ').nth(1)? {
        "/one-record" => ([WHOLE, SURPLUS].concat(), ""),
        "/more-records" => (WHOLE.to_owned(), SURPLUS),
        _ => (WHOLE.to_owned(), ""),
    };
    stream.write_all(response.as_bytes()).await.ok()?;
    stream.write_all(surplus.as_bytes()).await.ok()
}

#[tokio::test]
async fn surplus_bytes_end_a_kept_connection_and_answer_no_request() {
    let authority = new_authority();
    let a = node_tls(&authority, "a", HOUR, &[&authority]);
    let gateway = TestGateway::with_node_tls(watch::channel(Arc::new(a)).1, 64);
    let a = TestNode { name: "a", gateway };
    let b = SurplusNode::start(&node_tls(&authority, "b", HOUR, &[&authority])).await;
    let echo = FunctionRoute {
        remotes: vec![b.instances()],
        ..elsewhere("echo", FunctionPolicy::default(), &[])
    };
    a.gateway.gateway.publish(&RoutingSnapshot {
        version: 1,
        nodes: [b.instances().node].into_iter().collect(),
        functions: [echo].into_iter().collect(),
    });
    for path in ["/one-record", "/more-records"].repeat(3) {
        let mut client = b.connect_client(&a).await;
        let before = *b.counts.borrow();
        let response = b.call(&mut client, &format!("/function/echo{path}")).await;
        assert!(response.is_some_and(|one| one.body == "ok"), "{path}");
        b.wait_above(before.responded, |counts| counts.responded)
            .await;
        if let Some(next) = b.call(&mut client, "/function/echo").await {
            assert_eq!((next.status(), &*next.body), (200, "ok"), "{path}");
        }
        b.wait_above(before.ended, |counts| counts.ended).await;
    }
}
