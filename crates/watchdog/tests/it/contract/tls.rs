//! TLS on the HTTP port: admission of callers, and responses to plain ones.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use nearpath_testkit::{eventually, within};
use nearpath_wire::mtls::{AlpnProtocol, TlsVersion};
use nearpath_wire::zero_rtt::Provision;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::contract::call_transports::{
    AnyBody, BoxedBody, TestConnection, TestTransport, any_body,
};
use crate::contract::node::{
    INSTANCE_NAME, IdentityFixture, run_on_one_thread, start_with_identity,
};
use crate::contract::support::{full, start_hello_tenant, start_tenant};

const VERSIONS: [TlsVersion; 2] = [TlsVersion::Tls13, TlsVersion::Tls12];
const PROTOCOLS: [AlpnProtocol; 2] = [AlpnProtocol::Http1, AlpnProtocol::Http2];

fn get(path: &str) -> Request<AnyBody> {
    Request::get(path).body(any_body(full(""))).unwrap()
}

async fn read_response(response: Response<BoxedBody>) -> (u16, String) {
    use http_body_util::BodyExt;
    let status = response.status().as_u16();
    let body = within(response.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Waits until the watchdog has closed it.
async fn wait_closed(line: TestConnection) {
    let TestConnection::Http1(sender) = line else {
        unreachable!("of HTTP/1.1")
    };
    eventually("the connection is closed", async || sender.is_closed()).await;
}

#[test]
fn a_function_without_an_edge_is_refused_and_its_calls_never_run() {
    run_on_one_thread(async {
        let node = IdentityFixture::new();
        let never = start_tenant(async |_| -> Response<AnyBody> {
            panic!("a call that was refused has run")
        })
        .await;
        let (watchdog, _pipe) = start_with_identity(never, &node.provision.encode(), &[]);
        watchdog.stderr.wait_for("TLS and QUIC on ");
        for (version, protocol) in VERSIONS
            .into_iter()
            .flat_map(|one| PROTOCOLS.map(|two| (one, two)))
        {
            let mut line = TestConnection::open_tls(
                &node.unauthorized_connector(),
                version,
                protocol,
                watchdog.addr,
            )
            .await;
            let (status, text) = read_response(line.call(get("/")).await.unwrap()).await;
            assert_eq!(status, 403);
            assert!(
                text.contains("no edge leads from spiffe://test.nearpath/ns/openfaas-fn/fn/stranger/instance/8"),
                "{text}"
            );
        }
        let log = watchdog.stderr.wait_for("TLS: ");
        assert!(
            log.contains("refused")
                && log.contains("127.0.0.1:")
                && log.contains("no edge leads from"),
            "{log}"
        );
    });
}

#[test]
fn a_revoked_peer_loses_its_connections() {
    use std::io::Write;
    run_on_one_thread(async {
        let node = IdentityFixture::new();
        let (watchdog, mut pipe) =
            start_with_identity(start_hello_tenant().await, &node.provision.encode(), &[]);
        watchdog.stderr.wait_for("TLS and QUIC on ");
        let gateway = node.connector();
        let mut line = TestConnection::open_tls(
            &gateway,
            TlsVersion::Tls13,
            AlpnProtocol::Http1,
            watchdog.addr,
        )
        .await;
        assert_eq!(
            read_response(line.call(get("/")).await.unwrap()).await.1,
            "hello"
        );
        let provision = Provision {
            revoked: vec!["gateway".into()],
            sessions: Vec::new(),
            ..node.provision.clone()
        };
        pipe.write_all(&provision.encode()).unwrap();
        wait_closed(line).await;
        let mut again = TestConnection::open_tls(
            &gateway,
            TlsVersion::Tls13,
            AlpnProtocol::Http1,
            watchdog.addr,
        )
        .await; // resumed
        let (status, text) = read_response(again.call(get("/")).await.unwrap()).await;
        assert_eq!(status, 403);
        assert!(
            text.contains(
                "the certificate of spiffe://test.nearpath/node/node-a/gateway was revoked"
            ),
            "{text}"
        );
    });
}

#[test]
fn a_function_that_asks_for_encryption_answers_plain_health_checks_alone() {
    run_on_one_thread(async {
        for transport in ["quic", "tls13", "tls12"] {
            let node = IdentityFixture::new();
            let more = [
                ("NEARPATH_TRANSPORT", transport),
                ("shared_memory", "false"),
            ];
            let (watchdog, _pipe) =
                start_with_identity(start_hello_tenant().await, &node.provision.encode(), &more);
            watchdog.stderr.wait_for("TLS and QUIC on ");
            let (status, text) = watchdog.get("/").await;
            assert_eq!(status, 403);
            assert!(
                text.contains(transport) && text.contains("nearpath.io/transport"),
                "{text}"
            );
            assert_eq!(watchdog.get("/_/health").await.0, 200);
            let mut h2c =
                TestConnection::open(TestTransport::Tcp(AlpnProtocol::Http2), &node, &watchdog)
                    .await;
            assert_eq!(h2c.call(get("/")).await.unwrap().status(), 403);
            let mut tls = TestConnection::open(
                TestTransport::Tls(TlsVersion::Tls13, AlpnProtocol::Http1),
                &node,
                &watchdog,
            )
            .await;
            assert_eq!(
                read_response(tls.call(get("/")).await.unwrap()).await,
                (200, "hello".into())
            );
        }
    });
}

/// The node sends the identity while the instance starts, so a caller may be there first.
#[test]
fn a_handshake_waits_for_an_identity_that_is_on_its_way() {
    use std::io::Write;
    run_on_one_thread(async {
        let node = IdentityFixture::new();
        let (watchdog, mut pipe) = start_with_identity(start_hello_tenant().await, &[], &[]);
        assert_eq!(
            watchdog.get("/").await,
            (200, "hello".into()),
            "plain calls do not wait"
        );
        let (connector, addr) = (node.connector(), watchdog.addr);
        let early = tokio::task::spawn_local(async move {
            let mut line =
                TestConnection::open_tls(&connector, TlsVersion::Tls13, AlpnProtocol::Http1, addr)
                    .await;
            read_response(line.call(get("/")).await.unwrap()).await
        });
        tokio::task::yield_now().await;
        pipe.write_all(&node.provision.encode()).unwrap();
        assert_eq!(within(early).await.unwrap(), (200, "hello".into()));
    });
}

#[test]
fn a_handshake_that_stops_is_cut() {
    run_on_one_thread(async {
        let node = IdentityFixture::new();
        let (watchdog, _pipe) = start_with_identity(
            start_hello_tenant().await,
            &node.provision.encode(),
            &[("read_timeout", "200ms")],
        );
        watchdog.stderr.wait_for("TLS and QUIC on ");
        let mut stream = TcpStream::connect(watchdog.addr).await.unwrap();
        stream.write_all(&[0x16, 3, 1]).await.unwrap();
        assert_eq!(
            within(stream.read(&mut [0; 64])).await.unwrap_or(0),
            0,
            "closed without a word"
        );
    });
}

#[test]
fn another_incarnation_and_another_authority_are_not_called() {
    run_on_one_thread(async {
        let (node, other) = (IdentityFixture::new(), IdentityFixture::new());
        let (watchdog, _pipe) =
            start_with_identity(start_hello_tenant().await, &node.provision.encode(), &[]);
        watchdog.stderr.wait_for("TLS and QUIC on ");
        let limit = std::time::Duration::from_secs(20);
        for version in VERSIONS {
            let dial = async |node: &IdentityFixture, name| {
                let dialed = node
                    .connector()
                    .dial_worker(watchdog.addr, name, version, AlpnProtocol::Http1, limit)
                    .await;
                dialed.unwrap_err().to_string()
            };
            let refusal = dial(&node, "i2.test.nearpath").await;
            assert!(refusal.contains("i2.test.nearpath"), "{refusal}");
            let refusal = dial(&other, INSTANCE_NAME).await;
            assert!(
                refusal.contains("UnknownIssuer") || refusal.contains("BadSignature"),
                "{refusal}"
            );
        }
    });
}

#[test]
fn a_call_outlives_its_callers_certificate_and_is_the_last() {
    run_on_one_thread(async {
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
        let node = IdentityFixture::new();
        let (watchdog, _pipe) =
            start_with_identity(start_tenant(slow).await, &node.provision.encode(), &[]);
        watchdog.stderr.wait_for("TLS and QUIC on ");
        let (short_lived, addr) = (
            node.connector_for(std::time::Duration::from_secs(4)),
            watchdog.addr,
        );
        let dial =
            || TestConnection::open_tls(&short_lived, TlsVersion::Tls13, AlpnProtocol::Http1, addr);
        let (mut first, mut second) = (dial().await, dial().await);
        assert_eq!(
            read_response(second.call(get("/")).await.unwrap()).await,
            (200, "done".into()),
            "it leaves a session, too"
        );
        let call = tokio::task::spawn_local(async move {
            let answer = read_response(first.call(get("/slow")).await.unwrap()).await;
            (answer, first)
        });
        wait_closed(second).await; // its time is over
        let (status, text) = read_response(dial().await.call(get("/")).await.unwrap()).await; // resumed
        assert_eq!(status, 403);
        assert!(text.contains("has expired"), "{text}");
        go.notify_one();
        let (answer, first) = call.await.unwrap();
        assert_eq!(answer, (200, "done".into()));
        wait_closed(first).await;
    });
}

/// A caller that connects just before the drain cannot know of it.
#[test]
fn the_first_call_of_a_connection_is_answered_also_when_the_instance_stops_meanwhile() {
    run_on_one_thread(async {
        for way in [
            TestTransport::Tcp(AlpnProtocol::Http1),
            TestTransport::Tls(TlsVersion::Tls13, AlpnProtocol::Http1),
        ] {
            let node = IdentityFixture::new();
            let (mut watchdog, _pipe) =
                start_with_identity(start_hello_tenant().await, &node.provision.encode(), &[]);
            watchdog.stderr.wait_for("TLS and QUIC on ");
            let mut line = TestConnection::open(way, &node, &watchdog).await;
            watchdog.get("/").await; // by now the other one was accepted, too
            watchdog.send_signal(Signal::TERM);
            eventually("the port is closed", async || {
                TcpStream::connect(watchdog.addr).await.is_err()
            })
            .await;
            assert_eq!(
                read_response(line.call(get("/")).await.unwrap()).await,
                (200, "hello".into()),
                "{way:?}"
            );
            assert!(watchdog.wait_exit().await.success());
        }
    });
}
