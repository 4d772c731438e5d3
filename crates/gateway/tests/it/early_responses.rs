//! Responses that the gateway sends while the client still sends its request: no reset overtakes
//! them, whoever serves the connection.

use std::net::SocketAddr;

use http::Request;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{TestGateway, connect_from, start_mirror};
use crate::http3::client::{TestHttp3Client, absolute_url};
use crate::tls::connect_tls;

/// Larger than the buffers of both sockets: the client can send it only if the gateway reads.
const BODY_BYTES: usize = 32 * 1024 * 1024;
/// Largest request of the function `small`.
const MAX_BODY_BYTES: u64 = 1024;

/// Starts a gateway with a function that takes small bodies only.
async fn start_gateway(settings: GatewaySettings) -> TestGateway {
    let fixture = TestGateway::with_settings(settings);
    let policy = FunctionPolicy {
        max_body: Some(MAX_BODY_BYTES),
        ..FunctionPolicy::default()
    };
    fixture.publish_functions(&[("small", policy, &[start_mirror().await])]);
    fixture
}

/// Sends everything, and only then reads until the gateway closes.
async fn send_all_then_read<S>(stream: &mut S, head: &str, body: &[u8]) -> String
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let sending = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        stream.flush().await
    };
    within(sending).await.expect("the gateway reads everything");
    let mut response = Vec::new();
    within(stream.read_to_end(&mut response))
        .await
        .expect("the gateway closes without a reset");
    String::from_utf8_lossy(&response).into_owned()
}

fn post_head(function: &str, framing: &str) -> String {
    format!("POST /function/{function} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n")
}

fn declared_length() -> String {
    format!("content-length: {BODY_BYTES}")
}

/// A body of one chunk.
fn chunked_body() -> Vec<u8> {
    let mut body = format!("{BODY_BYTES:x}\r\n").into_bytes();
    body.resize(body.len() + BODY_BYTES, b'x');
    body.extend_from_slice(b"\r\n0\r\n\r\n");
    body
}

fn assert_refused(response: &str, status: u16, case: &str) {
    assert!(
        response.starts_with(&format!("HTTP/1.1 {status} ")),
        "{case}: {response:?}"
    );
    let complete = response.contains("\r\n\r\ngateway: ") && response.ends_with('\n');
    assert!(complete, "{case}: {response:?}");
    assert!(
        response.contains("connection: close"),
        "{case}: {response:?}"
    );
}

#[tokio::test]
async fn a_client_that_reads_only_after_its_body_gets_the_refusal() {
    let fixture = start_gateway(GatewaySettings::default()).await;
    let body = vec![b'x'; BODY_BYTES];
    for (function, status) in [("small", 413), ("missing", 404)] {
        let head = post_head(function, &declared_length());
        let mut stream = TcpStream::connect(fixture.public).await.unwrap();
        let response = send_all_then_read(&mut stream, &head, &body).await;
        assert_refused(&response, status, function);
    }
    let head = post_head("small", "transfer-encoding: chunked");
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    let response = send_all_then_read(&mut stream, &head, &chunked_body()).await;
    assert_refused(&response, 413, "chunked");
}

#[tokio::test]
async fn so_does_a_client_over_tls_and_an_instance() {
    let fixture = start_gateway(GatewaySettings::default()).await;
    let (head, body) = (
        post_head("small", &declared_length()),
        vec![b'x'; BODY_BYTES],
    );
    let mut stream = connect_tls(&fixture, b"http/1.1").await;
    let response = send_all_then_read(&mut stream, &head, &body).await;
    assert_refused(&response, 413, "TLS");
    let mut stream = TcpStream::connect(fixture.internal).await.unwrap();
    let response = send_all_then_read(&mut stream, &head, &body).await;
    assert_refused(&response, 403, "internal");
}

#[tokio::test]
async fn a_malformed_head_with_bytes_behind_it_gets_its_400() {
    let fixture = start_gateway(GatewaySettings::default()).await;
    let behind = vec![b'x'; BODY_BYTES];
    for head in [
        "rubbish\r\n\r\n",
        "GET /function/small HTTP/1.1\r\nx : 1\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(fixture.public).await.unwrap();
        let response = send_all_then_read(&mut stream, head, &behind).await;
        assert_refused(&response, 400, head);
        let mut stream = connect_tls(&fixture, b"http/1.1").await;
        let response = send_all_then_read(&mut stream, head, &behind).await;
        assert_refused(&response, 400, head);
    }
    let ambiguous = format!("{}\r\ncontent-length: 7", declared_length());
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    let head = post_head("small", &ambiguous);
    let response = send_all_then_read(&mut stream, &head, &behind).await;
    assert_refused(&response, 400, "two lengths");
}

/// The gateway reads plain requests itself. What follows the last one is not answered.
#[tokio::test]
async fn requests_behind_the_last_one_do_not_reset_its_response() {
    let fixture = start_gateway(GatewaySettings::default()).await;
    let last = "GET /function/small HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let behind = "GET /function/small HTTP/1.1\r\nhost: a\r\n\r\n".repeat(BODY_BYTES / 64);
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    let response = send_all_then_read(&mut stream, last, behind.as_bytes()).await;
    assert_eq!(response.matches("HTTP/1.1 200 OK").count(), 1, "{response}");
    let mut stream = connect_tls(&fixture, b"http/1.1").await;
    let response = send_all_then_read(&mut stream, last, behind.as_bytes()).await;
    assert_eq!(response.matches("HTTP/1.1 200 OK").count(), 1, "{response}");
}

/// Connections of all threads together; each source has half of them.
const MAX_CONNECTIONS: usize = 4;

/// Sends a request that is refused, and leaves most of its body unsent.
async fn linger_from(host: u8, to: SocketAddr) -> Option<TcpStream> {
    let mut stream = connect_from([127, 0, 0, host], to).await;
    let head = post_head("small", &declared_length());
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut status = [0; 12];
    within(stream.read_exact(&mut status)).await.ok()?;
    assert_eq!(&status, b"HTTP/1.1 413");
    Some(stream)
}

#[tokio::test]
async fn a_connection_that_waits_for_its_client_counts_in_the_share_of_its_source() {
    let fixture = start_gateway(GatewaySettings {
        max_connections: MAX_CONNECTIONS,
        ..GatewaySettings::default()
    })
    .await;
    let mut waiting = Vec::new();
    eventually("the share of a source is used up", async || {
        waiting.extend(linger_from(2, fixture.public).await);
        waiting.len() == MAX_CONNECTIONS / 2
    })
    .await;
    for _ in 0..16 {
        assert!(linger_from(2, fixture.public).await.is_none());
    }
    drop(waiting);
    eventually("a client that closes ends its connection", async || {
        linger_from(2, fixture.public).await.is_some()
    })
    .await;
}

/// Type, flags, stream and payload of an HTTP/2 frame (RFC 9113 section 4.1).
struct Http2Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Http2Frame {
    fn encode(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let start = [length[1], length[2], length[3], kind, flags];
        [&start[..], &stream.to_be_bytes(), payload].concat()
    }

    async fn read(stream: &mut TcpStream) -> Self {
        let mut start = [0; 9];
        within(stream.read_exact(&mut start)).await.unwrap();
        let length = u32::from_be_bytes([0, start[0], start[1], start[2]]);
        let mut payload = vec![0; length as usize];
        within(stream.read_exact(&mut payload)).await.unwrap();
        Self {
            kind: start[3],
            flags: start[4],
            stream: u32::from_be_bytes([start[5], start[6], start[7], start[8]]),
            payload,
        }
    }
}

const DATA_FRAME: u8 = 0;
const HEADERS_FRAME: u8 = 1;
const RST_STREAM_FRAME: u8 = 3;
const SETTINGS_FRAME: u8 = 4;
const END_STREAM_FLAG: u8 = 1;
const END_HEADERS_FLAG: u8 = 4;

/// Fields as literals without compression (RFC 7541 section 6.2.2).
fn encode_fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let fields = fields.iter();
    let fields = fields.map(|(name, value)| [vec![0], text(name), text(value)].concat());
    fields.collect::<Vec<_>>().concat()
}

/// RFC 9113 section 8.1: after an early response, the server resets the stream with NO_ERROR.
#[tokio::test]
async fn over_http_2_the_rest_of_the_body_is_declined_without_an_error() {
    let fixture = start_gateway(GatewaySettings::default()).await;
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    let head = encode_fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/function/small"),
    ]);
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(Http2Frame::encode(SETTINGS_FRAME, 0, 0, &[]));
    sent.extend(Http2Frame::encode(
        HEADERS_FRAME,
        END_HEADERS_FLAG,
        1,
        &head,
    ));
    // Less than the initial window, and no end.
    for _ in 0..3 {
        sent.extend(Http2Frame::encode(DATA_FRAME, 0, 1, &[b'x'; 16 * 1024]));
    }
    stream.write_all(&sent).await.unwrap();
    let (mut body, mut is_complete) = (Vec::new(), false);
    loop {
        let frame = Http2Frame::read(&mut stream).await;
        match (frame.kind, frame.stream) {
            (DATA_FRAME, 1) => {
                body.extend(frame.payload);
                is_complete |= frame.flags & END_STREAM_FLAG != 0;
            }
            (RST_STREAM_FRAME, 1) => {
                assert_eq!(frame.payload, [0; 4], "NO_ERROR");
                break;
            }
            _ => {}
        }
    }
    let text = String::from_utf8(body).unwrap();
    assert!(is_complete && text.contains("body_too_large"), "{text}");
}

/// RFC 9114 section 4.1: the server stops the client with H3_NO_ERROR.
#[tokio::test]
async fn over_http_3_the_rest_of_the_body_is_declined_without_an_error() {
    let fixture = start_gateway(GatewaySettings::default()).await;
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let request = Request::post(absolute_url("/function/small"));
    let mut stream = connection.begin_request(request.body(()).unwrap()).await;
    let stopped = loop {
        let piece = bytes::Bytes::from_static(&[b'x'; 16 * 1024]);
        if let Err(error) = within(stream.send_data(piece)).await {
            break error;
        }
    };
    let code = match &stopped {
        h3::error::StreamError::RemoteTerminate { code, .. } => *code,
        other => panic!("{other}"),
    };
    assert_eq!(code, h3::error::Code::H3_NO_ERROR);
    let response = within(stream.recv_response()).await.unwrap();
    assert_eq!(response.status(), 413);
}
