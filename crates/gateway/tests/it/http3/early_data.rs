//! Requests in the first flight (0-RTT, RFC 8470).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::eventually;
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use tokio::net::UdpSocket;

use super::client::{TestHttp3Client, absolute_url};
use crate::fixture::{TestGateway, full_body, millis, start_instance, start_mirror};

#[tokio::test]
async fn safe_methods_run_early_and_the_function_is_informed() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let client = TestHttp3Client::for_fixture(&fixture);
    client.learn_session().await;
    for method in [Method::GET, Method::OPTIONS] {
        let mut connection = client.connect_early().await;
        let request = Request::builder()
            .method(method.clone())
            .uri(absolute_url("/function/echo"))
            .body(())
            .unwrap();
        let answer = connection.send_and_collect(request, "").await;
        assert!(
            answer.status == 200 && answer.body.contains("early-data: 1\n"),
            "{method}: {answer:?}"
        );
        let later = connection.send_get("/function/echo").await;
        assert!(
            !later.body.contains("early-data"),
            "{method}: the handshake is complete: {later:?}"
        );
    }
    assert!(
        fixture
            .encode_metrics()
            .contains("nearpath_http3_early_total 2"),
        "{}",
        fixture.encode_metrics()
    );
}

#[tokio::test]
async fn methods_with_effects_are_425_in_early_data() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let client = TestHttp3Client::for_fixture(&fixture);
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        client.learn_session().await;
        let mut connection = client.connect_early().await;
        let request = || {
            Request::builder()
                .method(method.clone())
                .uri(absolute_url("/function/echo"))
                .body(())
                .unwrap()
        };
        let answer = connection.send_and_collect(request(), "").await;
        assert_eq!(
            (answer.status, answer.reason()),
            (425, "too_early"),
            "{method}"
        );
        let again = connection.send_and_collect(request(), "").await;
        assert_eq!(again.status, 200, "{method}: {again:?}");
    }
    client.learn_session().await;
    let mut connection = client.connect_early().await;
    let answer = connection
        .send_and_collect(
            Request::get(absolute_url("/function/echo"))
                .body(())
                .unwrap(),
            "a body",
        )
        .await;
    assert_eq!(answer.status, 425, "{answer:?}");
}

#[tokio::test]
async fn the_clients_own_early_data_header_is_passed_on() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let request = Request::get(absolute_url("/function/echo"))
        .header("early-data", "1")
        .body(())
        .unwrap();
    let answer = connection.send_and_collect(request, "").await;
    assert!(
        answer.body.contains("early-data: 1\n"),
        "an intermediary before this one says so: {}",
        answer.body
    );
}

/// Builds the datagrams of a first flight with a GET, as an attacker on the path would record them.
fn record_first_flight(client: &TestHttp3Client, fixture: &TestGateway) -> Vec<Vec<u8>> {
    let now = Instant::now();
    let mut endpoint = quinn_proto::Endpoint::new(Default::default(), None, false, None);
    let (_, mut connection) = endpoint
        .connect(now, client.config.clone(), fixture.secure, "localhost")
        .unwrap();
    assert!(connection.has_0rtt(), "the attack needs a session");
    let stream = connection.streams().open(quinn_proto::Dir::Bi).unwrap();
    connection
        .send_stream(stream)
        .write(&headers_frame("/function/echo"))
        .unwrap();
    connection.send_stream(stream).finish().unwrap();
    std::iter::from_fn(|| {
        let mut datagram = Vec::new();
        connection
            .poll_transmit(now, 1, &mut datagram)
            .map(|_| datagram)
    })
    .collect()
}

/// Builds a HEADERS frame (RFC 9114 section 7.2.2) with literal names (RFC 9204 section 4.5.6).
pub(super) fn headers_frame(path: &str) -> Vec<u8> {
    let mut block = vec![0, 0];
    for (name, value) in [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ] {
        match name.len() {
            short @ 0..7 => block.push(0x20 | short as u8),
            long => block.extend([0x27, (long - 7) as u8]),
        }
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    // A length of two octets (RFC 9000 section 16).
    [vec![1, 0x40, block.len() as u8], block].concat()
}

/// Sends the flight until it is answered as a new connection, not ignored as part of an existing
/// one.
async fn replay_flight(flight: &[Vec<u8>], fixture: &TestGateway) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let answered = async || {
        for datagram in flight {
            socket.send_to(datagram, fixture.secure).await.unwrap();
        }
        tokio::time::timeout(millis(100), socket.recv(&mut [0; 2048]))
            .await
            .is_ok()
    };
    eventually("it is answered", answered).await;
}

/// Sends a first flight three times to a gateway with this session store. Returns a counter of
/// the function's runs.
async fn count_runs(
    sessions: Option<Arc<dyn StoresServerSessions>>,
) -> (TestGateway, impl Fn() -> u32) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    let addr = start_instance(move |_: Request<Incoming>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Response::new(full_body("")) }
    })
    .await;
    let settings = GatewaySettings {
        tls_timeout: millis(2_000),
        ..GatewaySettings::default()
    }; // a connection that goes nowhere is not kept long
    let fixture = TestGateway::with_sessions(settings, sessions);
    fixture.publish_echo(addr);
    let client = TestHttp3Client::for_fixture(&fixture);
    client.learn_session().await;
    let flight = record_first_flight(&client, &fixture);
    let before = count.load(Ordering::Relaxed);
    for _ in 0..3 {
        replay_flight(&flight, &fixture).await;
    }
    (fixture, move || count.load(Ordering::Relaxed) - before)
}

#[tokio::test]
async fn a_recorded_first_flight_runs_once() {
    let (fixture, runs) = count_runs(None).await;
    eventually(
        "it runs the first time: else this test shows nothing",
        async || runs() > 0,
    )
    .await;
    for request_count in 1..8 {
        assert_eq!(runs(), request_count);
        assert_eq!(
            TestHttp3Client::for_fixture(&fixture)
                .connect_http3()
                .await
                .send_get("/function/echo")
                .await
                .status,
            200
        );
    }
}

/// Session store that never removes a session: the control for the test above.
struct ReusableSessions(Arc<ServerSessionMemoryCache>);

impl std::fmt::Debug for ReusableSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forgetful")
    }
}

impl StoresServerSessions for ReusableSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn control_sessions_that_are_not_used_up_run_it_again() {
    let sessions = ReusableSessions(ServerSessionMemoryCache::new(64));
    let (_house, runs) = count_runs(Some(Arc::new(sessions))).await;
    eventually("it runs each time", async || runs() >= 2).await;
}
