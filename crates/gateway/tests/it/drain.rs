//! Drain of the gateway.

use http::{Request, Response};
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{
    self, BlockedInstance, TestGateway, full_body, millis, start_blocked_instance, start_instance,
};

#[tokio::test]
async fn requests_in_flight_are_answered_and_new_ones_are_not_accepted() {
    let BlockedInstance { addr, permits, .. } = start_blocked_instance().await;
    let mut fixture = TestGateway::with_settings(GatewaySettings {
        drain_timeout: std::time::Duration::from_secs(600),
        ..GatewaySettings::default()
    });
    fixture.publish_echo(addr);
    let public = fixture.public;
    let mut idle = Vec::new();
    for _ in 0..32 {
        // The kernel spreads them over the threads.
        idle.push(TcpStream::connect(public).await.unwrap());
    }
    let request = || Request::get("/function/echo").body(full_body("")).unwrap();
    let h1 = tokio::spawn(fixture::send_and_collect(public, request()));
    let mut client = fixture::connect_http2(public).await;
    let h2 = Request::get("http://a/function/echo")
        .body(full_body(""))
        .unwrap();
    let h2 = tokio::spawn(async move { client.send_request(h2).await.unwrap().status() });
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 2"#;
    eventually(inflight, async || {
        fixture.encode_metrics().contains(inflight)
    })
    .await;

    let drained = tokio::spawn(fixture.drain_gateway());
    eventually("nothing new is accepted", async || {
        TcpStream::connect(public).await.is_err()
    })
    .await;
    for mut stream in idle {
        // By its end its thread has told all its connections.
        let _ = within(stream.read(&mut [0])).await;
    }
    assert!(!drained.is_finished());
    permits.add_permits(2);
    let answer = within(h1).await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    assert_eq!(within(h2).await.unwrap(), 200);
    within(drained).await.unwrap();
}

/// The node stops an instance only afterwards.
#[tokio::test]
async fn the_wait_for_a_withdrawn_instance_ends_with_its_last_request() {
    let BlockedInstance { addr, permits, .. } = start_blocked_instance().await;
    let fixture = TestGateway::start();
    let policy = nearpath_types::FunctionPolicy::default;
    fixture.publish_functions(&[("echo", policy(), &[addr])]);
    let id = fixture::function_route("echo", policy(), &[addr]).instances[0].id;
    let request = Request::get("/function/echo").body(full_body("")).unwrap();
    let call = tokio::spawn(fixture::send_and_collect(fixture.public, request));
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 1"#;
    eventually(inflight, async || {
        fixture.encode_metrics().contains(inflight)
    })
    .await;
    let functions = fixture.gateway.functions();
    within(functions.wait_requests_ended(id)).await; // nothing is withdrawn
    fixture.publish_functions(&[("echo", policy(), &[])]);
    let mut ended = std::pin::pin!(functions.wait_requests_ended(id));
    assert!(futures_util::poll!(ended.as_mut()).is_pending());
    // Another snapshot forgets no instance with a request.
    fixture.publish_functions(&[]);
    permits.add_permits(1);
    within(ended).await;
    assert_eq!(within(call).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_request_beyond_the_drain_timeout_is_cut_and_recorded() {
    let mut fixture = TestGateway::with_settings(GatewaySettings {
        drain_timeout: millis(100),
        ..GatewaySettings::default()
    });
    fixture
        .publish_echo(start_instance(async |_| std::future::pending::<Response<_>>().await).await);
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    let request = b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 1"#;
    eventually(inflight, async || {
        fixture.encode_metrics().contains(inflight)
    })
    .await;
    within(fixture.drain_gateway()).await;
    eventually("it is recorded", async || {
        fixture.log.parse_lines().len() == 1
    })
    .await;
    assert_eq!(fixture.log.parse_lines()[0]["reason"], "draining");
}

/// Clients with a pool read only when they call. They do not answer the PING behind GOAWAY.
#[tokio::test]
async fn an_http_2_client_that_reads_nothing_does_not_hold_up_the_drain() {
    let mut fixture = TestGateway::with_settings(GatewaySettings {
        drain_timeout: std::time::Duration::from_secs(600),
        ..GatewaySettings::default()
    });
    let preface_and_settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(fixture.public).await.unwrap();
        stream.write_all(preface_and_settings).await.unwrap();
        within(stream.read(&mut [0; 9])).await.unwrap(); // the gateway's SETTINGS
        silent.push(stream);
    }
    within(fixture.drain_gateway()).await;
    drop(silent);
}
