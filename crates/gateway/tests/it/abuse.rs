//! Hostile peers: slow heads, idle connections, huge heads, stream resets.

use http::{Request, Response};
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{
    TestGateway, connect_http2, full_body, millis, send_raw, start_instance, start_mirror,
};

#[tokio::test]
async fn a_slow_head_is_cut_while_others_are_served() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        header_timeout: millis(500),
        ..GatewaySettings::default()
    });
    fixture.publish_echo(start_mirror().await);
    let mut slow = TcpStream::connect(fixture.public).await.unwrap();
    slow.write_all(b"GET /function/echo HTTP/1.1\r\n")
        .await
        .unwrap();
    let (mut read, mut write) = slow.split();
    let drip = async {
        while write.write_all(b"x: 1\r\n").await.is_ok() {
            tokio::time::sleep(millis(50)).await; // the slow head: a line each time
        }
    };
    let mut rest = Vec::new();
    tokio::select! {
        () = drip => {}
        _ = within(read.read_to_end(&mut rest)) => {}
    }
    assert!(rest.is_empty());
    assert_eq!(fixture.send_get("/function/echo").await.status, 200);
    // Counted at the end of the sweep that has cut it.
    eventually("the cut is counted", async || {
        let metrics = fixture.encode_metrics();
        metrics.contains("nearpath_connections_cut_total 1")
    })
    .await;
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let settings = GatewaySettings {
        header_timeout: millis(300),
        idle_timeout: millis(300),
        ..GatewaySettings::default()
    };
    let fixture = TestGateway::with_settings(settings);
    fixture.publish_echo(start_mirror().await);
    assert_eq!(
        send_raw(fixture.public, b"").await,
        "",
        "one that never says a word"
    );
    let answer = send_raw(
        fixture.public,
        b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n",
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 200 "),
        "one that stays after its answer"
    );
}

#[tokio::test]
async fn a_caller_that_does_not_read_is_cut() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        write_timeout: millis(500),
        ..GatewaySettings::default()
    });
    fixture.publish_echo(
        start_instance(async |_| Response::new(full_body(vec![b'x'; 64 << 20]))).await,
    );
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    stream
        .write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    eventually("it is recorded", async || {
        fixture.log.parse_lines().len() == 1
    })
    .await;
    assert_eq!(fixture.log.parse_lines()[0]["reason"], "caller_gone");
    drop(stream);
}

#[tokio::test]
async fn oversized_headers_are_431() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let huge = format!(
        "GET /function/echo HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
        "y".repeat(2 << 20)
    );
    let many = format!(
        "GET /function/echo HTTP/1.1\r\nhost: a\r\n{}\r\n",
        "x: 1\r\n".repeat(5_000)
    );
    for request in [huge, many] {
        let mut stream = TcpStream::connect(fixture.public).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    eventually("both are counted", async || {
        fixture
            .encode_metrics()
            .contains(r#"nearpath_refused_total{function_name="",reason="headers_too_large"} 2"#)
    })
    .await;
    let just_over = format!(
        "GET /function/echo HTTP/1.1\r\nhost: a\r\n{}\r\n",
        "x: 1\r\n".repeat(100)
    );
    let answer = send_raw(fixture.public, just_over.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 431 ") && answer.contains("more than 100 fields"),
        "{answer}"
    );
    assert_eq!(fixture.send_get("/function/echo").await.status, 200);
}

#[tokio::test]
async fn rapid_resets_are_bounded() {
    let fixture = TestGateway::start();
    fixture
        .publish_echo(start_instance(async |_| std::future::pending::<Response<_>>().await).await);
    let client = connect_http2(fixture.public).await;
    for _ in 0..2_000 {
        let mut client = client.clone();
        let request = Request::get("http://a/function/echo")
            .body(full_body(""))
            .unwrap();
        let call = client.send_request(request);
        if tokio::time::timeout(millis(2), call)
            .await
            .is_ok_and(|answer| answer.is_err())
        {
            break; // the gateway takes no more
        }
    }
    eventually("it is told to leave", async || client.is_closed()).await;
    let started = fixture.log.parse_lines().len();
    assert!(started <= 400, "{started} requests were begun");
}

#[tokio::test]
async fn floods_of_pings_and_settings_are_cut() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].as_slice();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0].as_slice();
    for flood in [ping, settings] {
        let mut stream = TcpStream::connect(fixture.public).await.unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let sent = [&preface[..], &flood.repeat(20_000)].concat();
        let (mut read, mut write) = stream.split();
        let (mut answers, mut sink) = (0, vec![0; 64 << 10]);
        let reader = async {
            while let Ok(n @ 1..) = read.read(&mut sink).await {
                answers += n;
            }
        };
        // Ends only with the connection, because the gateway closes it.
        let _ = within(async { tokio::join!(reader, write.write_all(&sent)) }).await;
        assert!(answers < 5_000 * 17, "{answers} bytes of answers");
    }
    eventually("both cuts are counted", async || {
        let metrics = fixture.encode_metrics();
        metrics.contains("nearpath_connections_cut_total 2")
    })
    .await;
    assert_eq!(fixture.send_get("/function/echo").await.status, 200);
}

#[tokio::test]
async fn calls_with_deadlines_break_no_other_stream() {
    let fixture = TestGateway::start();
    fixture.publish_echo(
        start_instance(async |request| match request.uri().path() {
            "/live" => Response::new(full_body("alive")),
            _ => std::future::pending().await,
        })
        .await,
    );
    let client = connect_http2(fixture.public).await;
    let (write, body) = crate::streams::body_channel();
    let live_call = client.clone().send_request(
        Request::post("http://a/function/echo/live")
            .body(body)
            .unwrap(),
    );
    let live_call = tokio::spawn(live_call);
    for _ in 0..150 {
        let request = Request::get("http://a/function/echo")
            .body(full_body(""))
            .unwrap();
        let mut client = client.clone();
        let _ = tokio::time::timeout(millis(2), client.send_request(request)).await;
    }
    drop(write);
    let answer = within(live_call).await.unwrap().unwrap();
    assert_eq!(crate::fixture::collect_response(answer).await.body, "alive");
}

#[tokio::test]
async fn http_2_with_connection_headers_is_refused() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut block = vec![0x82, 0x86, 0x41, 1, b'a', 0x44, 14]; // GET, http, :authority a, :path
    block.extend(b"/function/echo");
    block.extend([0x40, 17]);
    block.extend(b"transfer-encoding");
    block.push(7);
    block.extend(b"chunked");
    let mut frame = vec![0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1];
    frame.extend(block);
    stream.write_all(&frame).await.unwrap();
    let reset = within(read_frame(&mut stream, 3)).await;
    assert_eq!(reset, [0, 0, 0, 1], "PROTOCOL_ERROR");
    assert!(fixture.log.parse_lines().is_empty());
}

/// Reads the payload of the next frame of this type.
async fn read_frame(stream: &mut TcpStream, frame_type: u8) -> Vec<u8> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == frame_type {
            return payload;
        }
    }
}
