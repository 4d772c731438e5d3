//! Migration and end of HTTP/3 connections.

use std::sync::Arc;

use h3::error::StreamError;
use http::Request;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};

use super::client::{
    TestHttp3Client, TestHttp3Connection, TestRequestStream, absolute_url, collect_response,
};
use crate::fixture::{BlockedInstance, TestGateway, millis, start_blocked_instance, start_mirror};

async fn wait_for_inflight(fixture: &TestGateway, number: usize) {
    let text = format!("nearpath_inflight{{function_name=\"echo.openfaas-fn\"}} {number}");
    eventually(&text, async || fixture.encode_metrics().contains(&text)).await;
}

async fn start_get(connection: &mut TestHttp3Connection) -> TestRequestStream {
    try_start_get(connection).await.unwrap()
}

async fn try_start_get(
    connection: &mut TestHttp3Connection,
) -> Result<TestRequestStream, StreamError> {
    let request = Request::get(absolute_url("/function/echo"))
        .body(())
        .unwrap();
    let mut stream = within(connection.requests.send_request(request)).await?;
    stream.finish().await?;
    Ok(stream)
}

/// Migrations per test. Ports are hashed, so each of the two threads would get some of so many.
const MIGRATION_COUNT: usize = 16;
/// Time after which a packet is lost: it went to a thread that does not know its connection.
const LOSS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);

/// Counts the requests of one connection that succeeded while the client migrated.
async fn count_migrations(fixture: &TestGateway) -> usize {
    let BlockedInstance { addr, permits, .. } = start_blocked_instance().await;
    fixture.publish_echo(addr);
    let client = TestHttp3Client::for_fixture(fixture);
    let mut connection = client.connect_http3().await;
    for migrations in 0..MIGRATION_COUNT {
        let Ok(mut stream) = try_start_get(&mut connection).await else {
            return migrations;
        };
        if tokio::time::timeout(LOSS_TIMEOUT, wait_for_inflight(fixture, 1))
            .await
            .is_err()
        {
            return migrations;
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.endpoint.rebind(socket).unwrap();
        permits.add_permits(1);
        match tokio::time::timeout(LOSS_TIMEOUT, collect_response(&mut stream)).await {
            Ok(Ok(answer)) => assert_eq!(answer.body, "ok"),
            _ => return migrations,
        }
        wait_for_inflight(fixture, 0).await;
    }
    MIGRATION_COUNT
}

#[tokio::test]
async fn a_request_survives_its_clients_move() {
    let fixture = TestGateway::start();
    assert_eq!(count_migrations(&fixture).await, MIGRATION_COUNT);
    assert!(
        fixture
            .encode_metrics()
            .contains("nearpath_http3_connections_total 1"),
        "{}",
        fixture.encode_metrics()
    );
}

/// Packets from a new address are accepted before it is validated, so their sender could be forged.
#[tokio::test]
async fn a_migrated_client_keeps_the_address_that_it_proved() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let client = TestHttp3Client::for_fixture(&fixture);
    let mut connection = client.connect_http3().await;
    client
        .endpoint
        .rebind(std::net::UdpSocket::bind("127.0.0.2:0").unwrap())
        .unwrap();
    for _ in 0..3 {
        let answer = connection.send_get("/function/echo").await;
        assert!(
            answer.body.contains("x-forwarded-for: 127.0.0.1\n"),
            "{}",
            answer.body
        );
    }
}

#[tokio::test]
async fn control_without_steering_migration_fails() {
    assert!(count_migrations(&TestGateway::without_steering()).await < MIGRATION_COUNT);
}

#[tokio::test]
async fn open_requests_are_answered_in_the_drain_and_new_connections_refused() {
    let BlockedInstance { addr, permits, .. } = start_blocked_instance().await;
    let mut fixture = TestGateway::with_settings(GatewaySettings {
        drain_timeout: std::time::Duration::from_secs(600),
        ..GatewaySettings::default()
    });
    fixture.publish_echo(addr);
    let client = TestHttp3Client::for_fixture(&fixture);
    let mut connection = client.connect_http3().await;
    let mut running = start_get(&mut connection).await;
    wait_for_inflight(&fixture, 1).await;
    let drained = tokio::spawn(fixture.drain_gateway());
    // Requests on their way are refused after GOAWAY; after its arrival, the client sends no more.
    let refused = async || match connection
        .requests
        .send_request(Request::get(absolute_url("/healthz")).body(()).unwrap())
        .await
    {
        Ok(mut stream) => {
            let _ = stream.finish().await; // refused already
            collect_response(&mut stream)
                .await
                .is_err_and(|error| error.to_string().contains("H3_REQUEST_REJECTED"))
        }
        Err(error) => error.to_string().contains("closing"),
    };
    eventually("new requests are refused", refused).await;
    eventually("new connections are refused", async || {
        matches!(
            within(TestHttp3Client::for_fixture(&fixture).start_connecting()).await,
            Err(quinn::ConnectionError::ConnectionClosed(_))
        )
    })
    .await;
    assert!(!drained.is_finished());
    permits.add_permits(1);
    assert_eq!(collect_response(&mut running).await.unwrap().body, "ok");
    within(drained).await.unwrap();
    let closed = within(connection.quic.closed()).await;
    assert!(
        matches!(&closed, quinn::ConnectionError::ApplicationClosed(close) if u64::from(close.error_code) == 0x100),
        "{closed}"
    );
}

/// Reads a variable-length integer of one octet (RFC 9000 section 16).
async fn read_short_integer(stream: &mut quinn::RecvStream) -> u8 {
    let mut octet = [0];
    within(stream.read_exact(&mut octet)).await.unwrap();
    assert!(octet[0] < 0x40, "one octet is enough for what is read here");
    octet[0]
}

/// RFC 9114 section 5.2: requests from the one in GOAWAY on did not run and may be sent elsewhere.
#[tokio::test]
async fn goaway_names_the_first_request_that_was_not_taken() {
    let BlockedInstance { addr, permits, .. } = start_blocked_instance().await;
    let mut fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let quic = within(TestHttp3Client::for_fixture(&fixture).start_connecting())
        .await
        .unwrap();
    let mut control = loop {
        let mut stream = within(quic.accept_uni()).await.unwrap();
        if read_short_integer(&mut stream).await == 0 {
            break stream;
        }
    };
    let (mut send, mut receive) = within(quic.open_bi()).await.unwrap();
    send.write_all(&super::early_data::headers_frame("/function/echo"))
        .await
        .unwrap();
    send.finish().unwrap();
    wait_for_inflight(&fixture, 1).await;
    let drained = tokio::spawn(fixture.drain_gateway());
    assert_eq!(read_short_integer(&mut control).await, 4, "SETTINGS");
    let length = read_short_integer(&mut control).await;
    within(control.read_exact(&mut vec![0; usize::from(length)]))
        .await
        .unwrap();
    let goaway = [
        read_short_integer(&mut control).await,
        read_short_integer(&mut control).await,
        read_short_integer(&mut control).await,
    ];
    assert_eq!(
        goaway,
        [7, 1, 4],
        "type, length, and the stream after the first request's, which is 0"
    );
    permits.add_permits(1);
    let answer = within(receive.read_to_end(4096)).await.unwrap();
    assert!(answer.ends_with(b"ok"), "{answer:?}");
    quic.close(0x100_u32.into(), b"");
    within(drained).await.unwrap();
}

/// Counts the octets on the control stream before the first GOAWAY.
async fn control_stream_bytes(quic: &quinn::Connection) -> u32 {
    loop {
        let mut stream = within(quic.accept_uni()).await.unwrap();
        if read_short_integer(&mut stream).await == 0 {
            assert_eq!(read_short_integer(&mut stream).await, 4, "SETTINGS");
            return 3 + u32::from(read_short_integer(&mut stream).await);
        }
    }
}

#[tokio::test]
async fn a_client_that_reads_no_goaway_does_not_delay_the_drain() {
    let settings = GatewaySettings {
        drain_timeout: std::time::Duration::from_secs(600),
        header_timeout: millis(200),
        ..GatewaySettings::default()
    };
    let mut fixture = TestGateway::with_settings(settings);
    let mut client = TestHttp3Client::for_fixture(&fixture);
    let full = control_stream_bytes(&within(client.start_connecting()).await.unwrap()).await;
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(full.into());
    client
        .config
        .transport_config(std::sync::Arc::new(transport));
    let quic = within(client.start_connecting()).await.unwrap();
    let _unread = within(quic.accept_uni()).await.unwrap(); // it speaks HTTP/3 by now
    within(fixture.drain_gateway()).await;
}

#[tokio::test]
async fn a_request_beyond_the_drain_timeout_is_cut_and_closed() {
    let addr = start_blocked_instance().await.addr;
    let mut fixture = TestGateway::with_settings(GatewaySettings {
        drain_timeout: millis(100),
        ..GatewaySettings::default()
    });
    fixture.publish_echo(addr);
    let client = TestHttp3Client::for_fixture(&fixture);
    let mut connection = client.connect_http3().await;
    let mut stream = start_get(&mut connection).await;
    wait_for_inflight(&fixture, 1).await;
    within(fixture.drain_gateway()).await;
    assert!(collect_response(&mut stream).await.is_err());
    within(connection.quic.closed()).await;
    eventually("it is recorded", async || {
        fixture.log.parse_lines().len() == 1
    })
    .await;
    assert_eq!(fixture.log.parse_lines()[0]["reason"], "draining");
}

#[tokio::test]
async fn connections_are_spread_over_the_threads() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    for _ in 0..16 {
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

#[tokio::test]
async fn a_thread_whose_http_3_fails_serves_tcp_until_the_drain() {
    let mut fixture = TestGateway::without_http3_sockets();
    fixture.publish_echo(start_mirror().await);
    for _ in 0..8 {
        assert_eq!(fixture.send_get("/function/echo").await.status, 200);
    }
    let error = fixture.drain_to_failure().await;
    assert!(error.to_string().starts_with("HTTP/3 socket: "), "{error}");
}

/// Such a client gets its response neither, and acknowledges nothing.
#[tokio::test]
async fn a_client_that_vanished_does_not_hold_up_the_drain() {
    let BlockedInstance { addr, permits, .. } = start_blocked_instance().await;
    let mut fixture = TestGateway::with_settings(GatewaySettings {
        drain_timeout: std::time::Duration::from_secs(600),
        ..GatewaySettings::default()
    });
    fixture.publish_echo(addr);
    // A runtime of its own: once it is gone, the client sends nothing, not even a close.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut client = {
        let _entered = runtime.enter();
        TestHttp3Client::for_fixture(&fixture)
    };
    // With the default of 30 s, QUIC itself would end the wait.
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(None);
    client.config.transport_config(Arc::new(transport));
    let call = runtime.spawn(async move {
        let mut connection = client.connect_http3().await;
        let stream = start_get(&mut connection).await;
        std::future::pending::<()>().await;
        drop((connection, stream, client));
    });
    wait_for_inflight(&fixture, 1).await;
    runtime.shutdown_background();
    drop(call);
    permits.add_permits(1);
    within(fixture.drain_gateway()).await;
}
