//! TLS on the HTTP port: who is let in, and what plain callers get.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use nearpath_testkit::{eventually, within};
use nearpath_wire::early::Provision;
use nearpath_wire::mutual::{Protocol, Version};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::contract::node::{NAME, Node, run, watchdog};
use crate::contract::support::{full, hello, tenant};
use crate::contract::ways::{Answer, AnyBody, Line, Way, any};

const VERSIONS: [Version; 2] = [Version::Tls13, Version::Tls12];
const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

fn get(path: &str) -> Request<AnyBody> {
    Request::get(path).body(any(full(""))).unwrap()
}

async fn told(response: Response<Answer>) -> (u16, String) {
    use http_body_util::BodyExt;
    let status = response.status().as_u16();
    let body = within(response.into_body().collect()).await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Waits until the watchdog has closed it.
async fn closed(line: Line) {
    let Line::Http1(sender) = line else { unreachable!("of HTTP/1.1") };
    eventually("the connection is closed", async || sender.is_closed()).await;
}

#[test]
fn a_function_without_an_edge_is_told_so_and_its_calls_never_run() {
    run(async {
        let node = Node::new();
        let never = tenant(async |_| -> Response<AnyBody> { panic!("a call that was refused has run") }).await;
        let (watchdog, _pipe) = watchdog(never, &node.provision.write(), &[]);
        watchdog.stderr.find("TLS and QUIC on ");
        for (version, protocol) in VERSIONS.into_iter().flat_map(|one| PROTOCOLS.map(|two| (one, two))) {
            let mut line = Line::secured(&node.stranger(), version, protocol, watchdog.addr).await;
            let (status, text) = told(line.call(get("/")).await.unwrap()).await;
            assert_eq!(status, 403);
            assert!(
                text.contains("no edge leads from spiffe://test.nearpath/ns/openfaas-fn/fn/stranger/instance/8"),
                "{text}"
            );
        }
        let log = watchdog.stderr.find("TLS: ");
        assert!(log.contains("refused") && log.contains("127.0.0.1:") && log.contains("no edge leads from"), "{log}");
    });
}

#[test]
fn who_is_taken_back_loses_its_connections() {
    use std::io::Write;
    run(async {
        let node = Node::new();
        let (watchdog, mut pipe) = watchdog(hello().await, &node.provision.write(), &[]);
        watchdog.stderr.find("TLS and QUIC on ");
        let gateway = node.connector();
        let mut line = Line::secured(&gateway, Version::Tls13, Protocol::Http1, watchdog.addr).await;
        assert_eq!(told(line.call(get("/")).await.unwrap()).await.1, "hello");
        let provision = Provision { revoked: vec!["gateway".into()], entries: Vec::new(), ..node.provision.clone() };
        pipe.write_all(&provision.write()).unwrap();
        closed(line).await;
        let mut again = Line::secured(&gateway, Version::Tls13, Protocol::Http1, watchdog.addr).await; // resumed
        let (status, text) = told(again.call(get("/")).await.unwrap()).await;
        assert_eq!(status, 403);
        assert!(text.contains("the certificate of spiffe://test.nearpath/node/node-a/gateway was revoked"), "{text}");
    });
}

#[test]
fn a_function_that_asks_for_encryption_answers_plain_health_checks_alone() {
    run(async {
        for transport in ["quic", "tls13", "tls12"] {
            let node = Node::new();
            let more = [("NEARPATH_TRANSPORT", transport), ("shared_memory", "false")];
            let (watchdog, _pipe) = watchdog(hello().await, &node.provision.write(), &more);
            watchdog.stderr.find("TLS and QUIC on ");
            let (status, text) = watchdog.get("/").await;
            assert_eq!(status, 403);
            assert!(text.contains(transport) && text.contains("nearpath.io/transport"), "{text}");
            assert_eq!(watchdog.get("/_/health").await.0, 200);
            let mut h2c = Line::open(Way::Tcp(Protocol::Http2), &node, &watchdog).await;
            assert_eq!(h2c.call(get("/")).await.unwrap().status(), 403);
            let mut tls = Line::open(Way::Tls(Version::Tls13, Protocol::Http1), &node, &watchdog).await;
            assert_eq!(told(tls.call(get("/")).await.unwrap()).await, (200, "hello".into()));
        }
    });
}

/// The node says who an instance is beside its start: a caller may be there first.
#[test]
fn a_handshake_waits_for_an_identity_that_is_on_its_way() {
    use std::io::Write;
    run(async {
        let node = Node::new();
        let (watchdog, mut pipe) = watchdog(hello().await, &[], &[]);
        assert_eq!(watchdog.get("/").await, (200, "hello".into()), "plain calls do not wait");
        let (connector, addr) = (node.connector(), watchdog.addr);
        let early = tokio::task::spawn_local(async move {
            let mut line = Line::secured(&connector, Version::Tls13, Protocol::Http1, addr).await;
            told(line.call(get("/")).await.unwrap()).await
        });
        tokio::task::yield_now().await;
        pipe.write_all(&node.provision.write()).unwrap();
        assert_eq!(within(early).await.unwrap(), (200, "hello".into()));
    });
}

#[test]
fn a_handshake_that_stops_is_cut() {
    run(async {
        let node = Node::new();
        let (watchdog, _pipe) = watchdog(hello().await, &node.provision.write(), &[("read_timeout", "200ms")]);
        watchdog.stderr.find("TLS and QUIC on ");
        let mut stream = TcpStream::connect(watchdog.addr).await.unwrap();
        stream.write_all(&[0x16, 3, 1]).await.unwrap();
        assert_eq!(within(stream.read(&mut [0; 64])).await.unwrap_or(0), 0, "closed without a word");
    });
}

#[test]
fn another_incarnation_and_another_authority_are_not_called() {
    run(async {
        let (node, other) = (Node::new(), Node::new());
        let (watchdog, _pipe) = watchdog(hello().await, &node.provision.write(), &[]);
        watchdog.stderr.find("TLS and QUIC on ");
        let limit = std::time::Duration::from_secs(20);
        for version in VERSIONS {
            let dial = async |node: &Node, name| {
                let dialed = node.connector().dial(watchdog.addr, name, version, Protocol::Http1, limit).await;
                dialed.unwrap_err().to_string()
            };
            let told = dial(&node, "i2.test.nearpath").await;
            assert!(told.contains("i2.test.nearpath"), "{told}");
            let told = dial(&other, NAME).await;
            assert!(told.contains("UnknownIssuer") || told.contains("BadSignature"), "{told}");
        }
    });
}

#[test]
fn a_call_outlives_its_callers_certificate_and_is_the_last() {
    run(async {
        let go = Arc::new(Notify::new());
        let wait = Arc::clone(&go);
        let slow = move |request: Request<Incoming>| {
            let wait = Arc::clone(&wait);
            async move {
                if request.uri().path() == "/slow" {
                    wait.notified().await;
                }
                Response::new(full("done"))
            }
        };
        let node = Node::new();
        let (watchdog, _pipe) = watchdog(tenant(slow).await, &node.provision.write(), &[]);
        watchdog.stderr.find("TLS and QUIC on ");
        let (brief, addr) = (node.connector_for(std::time::Duration::from_secs(4)), watchdog.addr);
        let dial = || Line::secured(&brief, Version::Tls13, Protocol::Http1, addr);
        let (mut first, mut second) = (dial().await, dial().await);
        assert_eq!(told(second.call(get("/")).await.unwrap()).await, (200, "done".into()), "it leaves a session, too");
        let call = tokio::task::spawn_local(async move {
            let answer = told(first.call(get("/slow")).await.unwrap()).await;
            (answer, first)
        });
        closed(second).await; // its time is over
        let (status, text) = told(dial().await.call(get("/")).await.unwrap()).await; // resumed
        assert_eq!(status, 403);
        assert!(text.contains("has expired"), "{text}");
        go.notify_one();
        let (answer, first) = call.await.unwrap();
        assert_eq!(answer, (200, "done".into()));
        closed(first).await;
    });
}

/// Who connects just before the end cannot know of it.
#[test]
fn the_first_call_of_a_connection_is_answered_also_when_the_instance_stops_meanwhile() {
    run(async {
        for way in [Way::Tcp(Protocol::Http1), Way::Tls(Version::Tls13, Protocol::Http1)] {
            let node = Node::new();
            let (mut watchdog, _pipe) = watchdog(hello().await, &node.provision.write(), &[]);
            watchdog.stderr.find("TLS and QUIC on ");
            let mut line = Line::open(way, &node, &watchdog).await;
            watchdog.get("/").await; // by now the other one was accepted, too
            watchdog.signal(Signal::TERM);
            eventually("the port is closed", async || TcpStream::connect(watchdog.addr).await.is_err()).await;
            assert_eq!(told(line.call(get("/")).await.unwrap()).await, (200, "hello".into()), "{way:?}");
            assert!(watchdog.ended().await.success());
        }
    });
}
