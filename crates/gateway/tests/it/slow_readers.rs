//! Callers that read responses slowly or not at all must not hold slots of functions.

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{TestGateway, connect_http2_with_window, full_body, millis, start_instance};

async fn start_large_response() -> std::net::SocketAddr {
    start_instance(async |_| Response::new(full_body(vec![b'x'; 32 << 20]))).await
}

fn one_at_a_time_policy(total: u64) -> FunctionPolicy {
    FunctionPolicy {
        max_inflight: Some(1),
        total_timeout: millis(total),
        queue_timeout: millis(20_000),
        ..FunctionPolicy::default()
    }
}

fn get_request() -> Request<crate::fixture::TestBody> {
    Request::get("http://a/function/echo")
        .body(full_body(""))
        .unwrap()
}

/// Waits until another request gets the only slot.
async fn wait_for_free_slot(fixture: &TestGateway) {
    eventually("the place is free", async || {
        let mut other = TcpStream::connect(fixture.public).await.unwrap();
        other
            .write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut status = [0; 12];
        within(other.read_exact(&mut status)).await.unwrap();
        &status == b"HTTP/1.1 200"
    })
    .await;
}

#[tokio::test]
async fn a_closed_window_keeps_no_place_beyond_the_total_timeout() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        one_at_a_time_policy(1_000),
        &[start_large_response().await],
    )]);
    let mut unread_client = connect_http2_with_window(fixture.public, 0).await;
    let answer = within(unread_client.send_request(get_request()))
        .await
        .unwrap();
    wait_for_free_slot(&fixture).await;
    drop((answer, unread_client));
    eventually("both are recorded", async || {
        fixture
            .log
            .parse_lines()
            .iter()
            .any(|line| line["reason"] == "total_timeout" && line["protocol"] == "HTTP/2")
    })
    .await;
}

#[tokio::test]
async fn a_closed_window_is_cut_after_the_write_timeout() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        write_timeout: millis(500),
        ..GatewaySettings::default()
    });
    fixture.publish_functions(&[(
        "echo",
        one_at_a_time_policy(60_000),
        &[start_large_response().await],
    )]);
    let mut unread_client = connect_http2_with_window(fixture.public, 0).await;
    let _answer = within(unread_client.send_request(get_request()))
        .await
        .unwrap();
    wait_for_free_slot(&fixture).await;
    eventually("its connection is cut", async || unread_client.is_closed()).await;
}

#[tokio::test]
async fn a_slow_reader_is_bounded_by_the_total_timeout() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        one_at_a_time_policy(1_000),
        &[start_large_response().await],
    )]);
    let mut slow = TcpStream::connect(fixture.public).await.unwrap();
    slow.write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let reading = async {
        while slow.read_u8().await.is_ok() {
            tokio::time::sleep(millis(20)).await; // the slow reader: a byte each time
        }
    };
    tokio::select! {
        () = reading => panic!("it read 32 MB, a byte at a time"),
        () = wait_for_free_slot(&fixture) => {}
    }
}

/// Policy that refuses a request at once if the only place is taken.
fn no_queue_policy() -> FunctionPolicy {
    FunctionPolicy {
        queue: 0,
        ..one_at_a_time_policy(60_000)
    }
}

async fn start_response_of(bytes: usize) -> std::net::SocketAddr {
    start_instance(move |_| async move { Response::new(full_body(vec![b'x'; bytes])) }).await
}

#[tokio::test]
async fn a_closed_window_takes_no_place_of_a_function_that_is_done() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        no_queue_policy(),
        &[start_response_of(500_000).await],
    )]);
    let mut unread_client = connect_http2_with_window(fixture.public, 0).await;
    let mut unread = Vec::new();
    eventually("three functions are done", async || {
        let call = within(unread_client.send_request(get_request())).await;
        let answer = call.unwrap();
        // The function of the request before may not be done yet.
        if answer.status() == 200 {
            unread.push(answer);
        }
        unread.len() == 3
    })
    .await;
    wait_for_free_slot(&fixture).await;
}

#[tokio::test]
async fn a_slow_reader_takes_no_place_of_a_function_that_is_done() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        no_queue_policy(),
        &[start_response_of(1_000_000).await],
    )]);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = socket.connect(fixture.public).await.unwrap();
    slow.write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 12];
    within(slow.read_exact(&mut first)).await.unwrap();
    wait_for_free_slot(&fixture).await;
    let mut rest = Vec::new();
    within(slow.read_to_end(&mut rest)).await.unwrap();
    let body = rest
        .windows(4)
        .position(|part| part == b"\r\n\r\n")
        .unwrap()
        + 4;
    assert_eq!(rest.len() - body, 1_000_000);
}

/// Returns text of which each line differs.
fn numbered_lines(bytes: usize) -> String {
    (0..bytes / 8)
        .map(|number| format!("{number:07}\n"))
        .collect()
}

#[tokio::test]
async fn a_response_beyond_the_memory_takes_no_place_and_arrives_unchanged() {
    let (fixture, _folder) = TestGateway::with_spool();
    let addr = start_instance(async |request: Request<Incoming>| {
        let is_long = request.uri().query().is_some();
        let bytes = if is_long { 16 << 20 } else { 8 };
        Response::new(full_body(numbered_lines(bytes)))
    });
    fixture.publish_functions(&[("echo", no_queue_policy(), &[addr.await])]);
    let mut client = connect_http2_with_window(fixture.public, 60_000).await;
    let long = Request::get("http://a/function/echo?long").body(full_body(""));
    let unread = within(client.send_request(long.unwrap())).await.unwrap();
    wait_for_free_slot(&fixture).await;
    assert!(fixture.spooled_bytes() > 14 << 20);
    let body = within(unread.into_body().collect()).await.unwrap();
    assert!(body.to_bytes() == numbered_lines(16 << 20), "other bytes");
    eventually("the file is gone", async || fixture.spooled_bytes() == 0).await;
}

#[tokio::test]
async fn the_file_of_a_caller_that_leaves_is_freed() {
    let (fixture, _folder) = TestGateway::with_spool();
    fixture.publish_functions(&[("echo", no_queue_policy(), &[start_large_response().await])]);
    let mut client = connect_http2_with_window(fixture.public, 0).await;
    let unread = within(client.send_request(get_request())).await.unwrap();
    eventually("a part is in the file", async || {
        fixture.spooled_bytes() > 0
    })
    .await;
    drop((unread, client));
    eventually("the file is gone", async || fixture.spooled_bytes() == 0).await;
}

#[tokio::test]
async fn readers_below_the_minimum_rate_are_cut() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        min_read_rate: 1_000_000,
        min_rate_grace: millis(500),
        ..GatewaySettings::default()
    });
    let limited = one_at_a_time_policy(60_000);
    fixture.publish_functions(&[("echo", limited, &[start_large_response().await])]);
    let mut slow = TcpStream::connect(fixture.public).await.unwrap();
    slow.write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    eventually("it is recorded", async || {
        let lines = fixture.log.parse_lines();
        lines.iter().any(|line| line["reason"] == "caller_gone")
    })
    .await;
    wait_for_free_slot(&fixture).await;
}

/// Sends a message when dropped.
struct DropNotifier(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for DropNotifier {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_the_work() {
    let (send, mut events) = tokio::sync::mpsc::unbounded_channel();
    let fixture = TestGateway::start();
    let addr = start_instance(move |_| {
        let notifier = DropNotifier(send.clone());
        async move {
            let _ = notifier.0.send(()); // it works
            std::future::pending::<()>().await;
            drop(notifier);
            Response::new(full_body(""))
        }
    });
    fixture.publish_echo(addr.await);
    let mut caller = TcpStream::connect(fixture.public).await.unwrap();
    caller
        .write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    within(events.recv()).await.unwrap();
    drop(caller);
    within(events.recv()).await.unwrap();
    eventually("it is recorded", async || {
        fixture.log.parse_lines().len() == 1
    })
    .await;
    assert_eq!(fixture.log.parse_lines()[0]["status"], 499);
}
