//! Limits against hostile HTTP/3 clients.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use tokio::net::UdpSocket;

use super::client::{TestHttp3Client, TestHttp3Connection, absolute_url, collect_response};
use crate::fixture::{TestGateway, millis, start_mirror};

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let large = Request::get(absolute_url("/function/echo"))
        .header("x-large", "x".repeat(70_000))
        .body(())
        .unwrap();
    assert_eq!(connection.send_and_collect(large, "").await.status, 431);
    let many = (0..120).fold(Request::get(absolute_url("/function/echo")), |many, n| {
        many.header(format!("x-{n}"), "1")
    });
    let answer = connection
        .send_and_collect(many.body(()).unwrap(), "")
        .await;
    assert_eq!((answer.status, answer.reason()), (431, "headers_too_large"));
    assert_eq!(
        connection.send_get("/function/echo").await.status,
        200,
        "the connection goes on"
    );
    eventually("all are recorded", async || {
        fixture.log.parse_lines().len() == 3
    })
    .await;
    assert_eq!(fixture.log.parse_lines()[0]["reason"], "headers_too_large");
}

/// Builds the start of an HTTP/3 frame: type, length in eight octets, and first bytes of the
/// payload.
fn frame_start(kind: u8, length: u64, begins: &[u8]) -> Vec<u8> {
    [&[kind][..], &(length | 0xc0 << 56).to_be_bytes(), begins].concat()
}

/// Writes until the peer stops the stream; returns the code and the accepted bytes.
async fn flood_frame(connection: &TestHttp3Connection, first: &[u8]) -> (u64, usize) {
    let (mut send, _receive) = within(connection.quic.open_bi()).await.unwrap();
    send.write_all(first).await.unwrap();
    for sent in 0..4_096 {
        match within(send.write_all(&[b'x'; 1024])).await {
            Ok(()) => {}
            Err(quinn::WriteError::Stopped(code)) => return (code.into(), sent * 1024),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("4 MiB of a frame were taken");
}

#[tokio::test]
async fn frames_without_an_end_are_stopped() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    for kind in [0x01, 0x21] {
        // HEADERS, and one that means nothing
        let (code, taken) = flood_frame(&connection, &frame_start(kind, 1 << 40, b"")).await;
        assert_eq!(code, 0x107, "frame {kind:#x}"); // H3_EXCESSIVE_LOAD
        assert!(
            taken < 2 << 20,
            "the stream's window and what is gathered: {taken}"
        );
    }
    assert_eq!(
        connection.send_get("/function/echo").await.status,
        200,
        "the connection goes on"
    );
}

#[tokio::test]
async fn a_body_must_be_as_long_as_it_says() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    for (length, body) in [("3", "four"), ("5", "four")] {
        let post = Request::post(absolute_url("/function/echo"))
            .header("content-length", length)
            .body(())
            .unwrap();
        let answer = connection.send_and_collect(post, body).await;
        assert_eq!(
            (answer.status, answer.reason()),
            (400, "bad_request"),
            "{length}: {answer:?}"
        );
    }
    for (name, value) in [
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("content-length", "1, 1"),
    ] {
        let post = Request::post(absolute_url("/function/echo"))
            .header(name, value)
            .body(())
            .unwrap();
        let answer = connection.send_and_collect(post, "x").await;
        assert_eq!(
            (answer.status, answer.reason()),
            (400, "bad_request"),
            "{name}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn a_slow_client_holds_nothing_for_ever() {
    let settings = GatewaySettings {
        header_timeout: millis(200),
        body_idle_timeout: millis(300),
        ..GatewaySettings::default()
    };
    let fixture = TestGateway::with_settings(GatewaySettings {
        idle_timeout: millis(600),
        ..settings
    });
    fixture.publish_echo(start_mirror().await);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let (mut head, mut nothing) = within(connection.quic.open_bi()).await.unwrap();
    head.write_all(&frame_start(1, 100, b"some of it"))
        .await
        .unwrap();
    let error = within(nothing.read_to_end(100)).await.unwrap_err();
    assert!(error.to_string().contains("reset"), "{error}");
    let mut stream = connection
        .begin_request(
            Request::post(absolute_url("/function/echo"))
                .body(())
                .unwrap(),
        )
        .await;
    stream
        .send_data(Bytes::from_static(b"a piece"))
        .await
        .unwrap();
    let answer = collect_response(&mut stream).await.unwrap();
    assert_eq!((answer.status, answer.reason()), (408, "slow_request"));
    within(connection.quic.closed()).await;
    let cut = "nearpath_connections_cut_total 1";
    eventually(cut, async || fixture.encode_metrics().contains(cut)).await;
}

/// CVE-2023-44487 concerns HTTP/2, but the attack works with HTTP/3 too.
#[tokio::test]
async fn a_client_that_only_resets_is_drained_and_then_cut() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let quic = within(TestHttp3Client::for_fixture(&fixture).start_connecting())
        .await
        .unwrap();
    let abandon = async || {
        let (mut send, mut receive) = quic.open_bi().await?;
        let _ = send
            .write_all(&super::early_data::headers_frame("/function/echo"))
            .await; // refused already, or lost with the connection
        let _ = (send.reset(0x10c_u32.into()), receive.stop(0x10c_u32.into()));
        Ok::<_, quinn::ConnectionError>(())
    };
    let until_cut = async { while abandon().await.is_ok() {} };
    within(until_cut).await;
    let cut = "nearpath_connections_cut_total 1";
    eventually(cut, async || fixture.encode_metrics().contains(cut)).await;
}

#[tokio::test]
async fn streams_at_a_time_are_limited() {
    let fixture = TestGateway::start();
    let connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let mut open = Vec::new();
    while let Ok(stream) = tokio::time::timeout(millis(500), connection.quic.open_bi()).await {
        let mut stream = stream.unwrap();
        stream.0.write_all(&frame_start(1, 100, b"")).await.unwrap();
        open.push(stream);
        assert!(open.len() <= 256);
    }
    assert_eq!(open.len(), 256);
}

#[tokio::test]
async fn new_clients_prove_their_address_above_the_limit() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        retry_above_handshakes: 0,
        ..GatewaySettings::default()
    });
    fixture.publish_echo(start_mirror().await);
    let client = TestHttp3Client::for_fixture(&fixture);
    assert_eq!(
        client
            .connect_http3()
            .await
            .send_get("/function/echo")
            .await
            .status,
        200
    );
    assert!(
        fixture
            .encode_metrics()
            .contains("nearpath_http3_retries_total 1"),
        "{}",
        fixture.encode_metrics()
    );
    assert_eq!(
        client
            .connect_http3()
            .await
            .send_get("/function/echo")
            .await
            .status,
        200
    );
    assert!(
        fixture
            .encode_metrics()
            .contains("nearpath_http3_retries_total 1"),
        "a token proves it: {}",
        fixture.encode_metrics()
    );
}

#[tokio::test]
async fn a_flood_of_initial_packets_makes_new_clients_prove_their_address() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        retry_above_handshakes: 8,
        ..GatewaySettings::default()
    });
    fixture.publish_echo(start_mirror().await);
    let client = TestHttp3Client::for_fixture(&fixture);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..64 {
        socket
            .send_to(&initial_packet(&client, &fixture), fixture.secure)
            .await
            .unwrap();
    }
    let retries = "nearpath_http3_retries_total 56"; // four of each thread's part were let in
    eventually(retries, async || fixture.encode_metrics().contains(retries)).await;
    for _ in 0..4 {
        assert_eq!(
            TestHttp3Client::for_fixture(&fixture)
                .connect_http3()
                .await
                .send_get("/function/echo")
                .await
                .status,
            200,
            "those with an address get in"
        );
    }
}

#[tokio::test]
async fn connections_above_the_limit_are_refused() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        max_connections: 2,
        ..GatewaySettings::default()
    }); // one a thread
    let mut kept = Vec::new();
    let refused = async || {
        match within(TestHttp3Client::for_fixture(&fixture).start_connecting()).await {
            Ok(quic) => kept.push(quic),
            Err(quinn::ConnectionError::ConnectionClosed(_)) => return true,
            Err(error) => panic!("{error}"),
        }
        false
    };
    eventually("one is refused", refused).await;
    // Those of the reserve included: a quarter of it on each thread.
    assert!((1..=2 + 2 * 4).contains(&kept.len()));
    assert!(
        fixture
            .encode_metrics()
            .contains("nearpath_http3_refused_total 1")
    );
}

/// Builds the first packet of a client whose address is not proven.
fn initial_packet(client: &TestHttp3Client, fixture: &TestGateway) -> Vec<u8> {
    let mut endpoint = quinn_proto::Endpoint::new(Default::default(), None, false, None);
    let config = client.config.clone();
    let (_, mut connection) = endpoint
        .connect(Instant::now(), config, fixture.secure, "localhost")
        .unwrap();
    let mut datagram = Vec::new();
    assert!(
        connection
            .poll_transmit(Instant::now(), 1, &mut datagram)
            .is_some()
    );
    datagram
}

/// Size of a datagram. quinn sends one if a single byte of it is allowed, so the last one can
/// exceed the bound.
const MAX_DATAGRAM_BYTES: usize = 1_200;

/// RFC 9000 section 8.1, with retransmissions included.
#[tokio::test]
async fn an_unproven_address_is_sent_three_times_as_much_at_most() {
    let handshake_timeout = Duration::from_secs(4); // several retransmissions
    let fixture = TestGateway::with_settings(GatewaySettings {
        tls_timeout: handshake_timeout,
        ..GatewaySettings::default()
    });
    let client = TestHttp3Client::for_fixture(&fixture);
    let packet = initial_packet(&client, &fixture);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (mut sent, mut got, mut buffer) = (0, 0, [0; 2048]);
    for round in 0..3 {
        if round < 2 {
            socket.send_to(&packet, fixture.secure).await.unwrap();
            sent += packet.len();
        }
        let until = tokio::time::Instant::now() + handshake_timeout / 3;
        while let Ok(received) = tokio::time::timeout_at(until, socket.recv(&mut buffer)).await {
            got += received.unwrap();
            assert!(
                got < 3 * sent + MAX_DATAGRAM_BYTES,
                "{got} bytes for {sent}"
            );
        }
    }
    assert!(got > sent, "it answers at all: {got}");
}

/// Returns a client at 127.0.0.`host`.
fn client_at(fixture: &TestGateway, host: u8) -> TestHttp3Client {
    let mut client = TestHttp3Client::for_fixture(fixture);
    let addr = (Ipv4Addr::new(127, 0, 0, host), 0).into();
    client.endpoint = quinn::Endpoint::client(addr).unwrap();
    client
}

#[tokio::test]
async fn the_administrator_has_a_reserve_over_http_3() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        max_connections: 4,
        ..GatewaySettings::default()
    });
    fixture.publish_echo(start_mirror().await);
    let mut held = Vec::new();
    for host in 2..=4 {
        for _ in 0..8 {
            let client = client_at(&fixture, host);
            // Those above a share are refused.
            held.push((within(client.start_connecting()).await.ok(), client));
        }
    }
    let mut connection = client_at(&fixture, 9).connect_http3().await;
    assert_eq!(connection.send_get("/healthz").await.status, 200);
    assert_eq!(connection.send_get("/system/info").await.status, 200);
    let answer = connection.send_get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (503, "connection_limit"));
    // Its client may get a regular connection next time.
    within(connection.quic.closed()).await;
}

#[tokio::test]
async fn forged_initial_packets_use_up_no_share_of_their_address() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        max_connections: 16,
        ..GatewaySettings::default()
    });
    fixture.publish_echo(start_mirror().await);
    let client = TestHttp3Client::for_fixture(&fixture);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..64 {
        socket
            .send_to(&initial_packet(&client, &fixture), fixture.secure)
            .await
            .unwrap();
    }
    // Of eight connections on each thread, four wait for handshakes.
    let retries = "nearpath_http3_retries_total 56";
    eventually(retries, async || fixture.encode_metrics().contains(retries)).await;
    for _ in 0..4 {
        let client = TestHttp3Client::for_fixture(&fixture);
        let mut connection = client.connect_http3().await;
        assert_eq!(connection.send_get("/function/echo").await.status, 200);
    }
}

#[tokio::test]
async fn a_source_has_a_share_over_http_3() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        max_connections: 16,
        ..GatewaySettings::default()
    });
    fixture.publish_echo(start_mirror().await);
    let mut held = Vec::new();
    // Until each thread has refused some.
    let enough = "nearpath_http3_refused_total 16";
    while !fixture.encode_metrics().contains(enough) {
        let client = client_at(&fixture, 2);
        let quic = within(client.start_connecting()).await.ok();
        let is_open = match &quic {
            // A connection above the share ends when its address is validated.
            Some(quic) => quic.open_bi().await.is_ok(),
            None => false,
        };
        held.push((quic.filter(|_| is_open), client));
        assert!(held.len() < 200, "{}", fixture.encode_metrics());
    }
    let mut connection = client_at(&fixture, 3).connect_http3().await;
    assert_eq!(connection.send_get("/function/echo").await.status, 200);
}
