//! Requests and responses over HTTP/3.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_testkit::{eventually, within};
use tokio::sync::mpsc;

use super::client::{TestHttp3Client, absolute_url, collect_response};
use crate::fixture::{TestGateway, full_body, start_instance, start_mirror};
use crate::streams::body_channel;

#[tokio::test]
async fn a_function_is_called_as_over_any_other_protocol() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let answer = connection.send_get("/function/echo/a?b=c").await;
    assert_eq!(answer.status, 200);
    for seen in [
        "GET /a?b=c\n",
        "host: localhost\n",
        "x-forwarded-proto: https\n",
        "x-forwarded-for: 127.0.0.1\n",
    ] {
        assert!(answer.body.contains(seen), "{}", answer.body);
    }
    for name in ["x-call-id", "x-duration-seconds", "date", "content-length"] {
        assert!(!answer.header(name).is_empty(), "{name}: {answer:?}");
    }
    assert!(
        !answer.body.contains("transfer-encoding"),
        "a GET has no body: {}",
        answer.body
    );
    let delete = connection
        .send_and_collect(
            Request::delete(absolute_url("/function/echo"))
                .body(())
                .unwrap(),
            "",
        )
        .await;
    assert!(
        delete.body.starts_with("DELETE /\n") && !delete.body.contains("transfer-encoding"),
        "{}",
        delete.body
    );
    let post = Request::post(absolute_url("/function/echo"))
        .header("content-length", "5")
        .body(())
        .unwrap();
    let answer = connection.send_and_collect(post, "hello").await;
    assert!(
        answer.body.contains("content-length: 5\n") && answer.body.ends_with("\n\nhello"),
        "{}",
        answer.body
    );
    eventually("all are recorded", async || {
        fixture.log.parse_lines().len() == 3
    })
    .await;
    assert_eq!(fixture.log.parse_lines()[2]["protocol"], "HTTP/3");
    let metrics = fixture.encode_metrics();
    for counted in [
        "nearpath_http3_connections_total 1",
        "nearpath_http3_requests_total 3",
    ] {
        assert!(metrics.contains(counted), "{metrics}");
    }
}

#[tokio::test]
async fn refusals_and_the_administrators_side_answer_too() {
    let fixture = TestGateway::start();
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let answer = connection.send_get("/function/nobody").await;
    assert_eq!((answer.status, answer.reason()), (404, "no_function"));
    assert_eq!(connection.send_get("/healthz").await.body, "OK\n");
    let put = Request::put(absolute_url("/system/functions"))
        .body(())
        .unwrap();
    assert_eq!(
        connection.send_and_collect(put, "{}").await.body,
        "admin /system/functions"
    );
    let head = Request::head(absolute_url("/healthz")).body(()).unwrap();
    let answer = connection.send_and_collect(head, "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
}

#[tokio::test]
async fn large_bodies_flow_both_ways() {
    let fixture = TestGateway::start();
    fixture.publish_echo(
        start_instance(async |request: Request<Incoming>| {
            Response::new(
                request
                    .into_body()
                    .map_err(|_| unreachable!())
                    .boxed_unsync(),
            )
        })
        .await,
    );
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let (mut send, mut receive) = connection
        .begin_request(
            Request::post(absolute_url("/function/echo"))
                .body(())
                .unwrap(),
        )
        .await
        .split();
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    let writing = tokio::spawn(async move {
        for _ in 0..16 {
            send.send_data(piece.clone()).await.unwrap();
        }
        send.finish().await.unwrap();
    });
    assert_eq!(within(receive.recv_response()).await.unwrap().status(), 200);
    let mut got = 0;
    while let Some(data) = within(receive.recv_data()).await.unwrap() {
        got += bytes::Buf::remaining(&data);
    }
    within(writing).await.unwrap();
    assert_eq!(got, 16 << 20);
}

#[tokio::test]
async fn trailers_go_both_ways() {
    let (seen, mut trailers) = mpsc::unbounded_channel();
    let addr = start_instance(move |request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let collected = request.into_body().collect().await.unwrap();
            seen.send(collected.trailers().cloned()).unwrap();
            let (write, body) = body_channel();
            write.send(Frame::data(collected.to_bytes())).unwrap();
            let back = HeaderMap::from_iter([("x-sum".parse().unwrap(), "8".parse().unwrap())]);
            write.send(Frame::trailers(back)).unwrap();
            Response::builder()
                .header("trailer", "x-sum")
                .body(body)
                .unwrap()
        }
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let post = Request::post(absolute_url("/function/echo"))
        .header("te", "trailers")
        .header("trailer", "x-sum");
    let mut stream = connection.begin_request(post.body(()).unwrap()).await;
    stream.send_data(Bytes::from_static(b"sum")).await.unwrap();
    let sent = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
    stream.send_trailers(sent).await.unwrap();
    stream.finish().await.unwrap();
    let answer = collect_response(&mut stream).await.unwrap();
    assert_eq!(answer.body, "sum");
    assert_eq!(
        within(trailers.recv()).await.unwrap().unwrap()["x-sum"],
        "7"
    );
    assert_eq!(answer.trailers.unwrap()["x-sum"], "8");
}

#[tokio::test]
async fn an_answer_that_breaks_off_does_not_look_complete() {
    let addr = start_instance(async |_| {
        let (write, body) = body_channel();
        write
            .send(Frame::data(Bytes::from_static(b"half")))
            .unwrap();
        tokio::spawn(async move {
            let _open = write;
            std::future::pending::<()>().await;
        });
        Response::new(body)
    })
    .await;
    let fixture = TestGateway::start();
    let policy = nearpath_types::FunctionPolicy {
        total_timeout: crate::fixture::millis(300),
        ..Default::default()
    };
    fixture.publish_functions(&[("echo", policy, &[addr])]);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let mut stream = connection
        .begin_request(
            Request::get(absolute_url("/function/echo"))
                .body(())
                .unwrap(),
        )
        .await;
    stream.finish().await.unwrap();
    let error = collect_response(&mut stream).await.unwrap_err();
    assert!(
        error.to_string().contains("H3_REQUEST_CANCELLED"),
        "{error}"
    );
}

#[tokio::test]
async fn a_client_that_gives_up_ends_the_functions_work() {
    struct AbortNotifier(mpsc::UnboundedSender<()>);
    impl Drop for AbortNotifier {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (began, mut begun) = mpsc::unbounded_channel();
    let (ended, mut end) = mpsc::unbounded_channel();
    let addr = start_instance(move |request: Request<Incoming>| {
        let (began, guard) = (began.clone(), AbortNotifier(ended.clone()));
        async move {
            began.send(()).unwrap();
            // hyper notices a closed connection only while it reads.
            if request.into_body().collect().await.is_ok() {
                std::future::pending::<()>().await;
            }
            drop(guard);
            Response::new(full_body(""))
        }
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    for method in ["GET", "POST"] {
        let request = Request::builder()
            .method(method)
            .uri(absolute_url("/function/echo"))
            .body(())
            .unwrap();
        let mut stream = connection.begin_request(request).await;
        if method == "GET" {
            stream.finish().await.unwrap();
        }
        within(begun.recv()).await.unwrap();
        stream.stop_sending(h3::error::Code::H3_REQUEST_CANCELLED);
        stream.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED);
        drop(stream);
        within(end.recv()).await.unwrap();
    }
    eventually("both are recorded", async || {
        fixture.log.parse_lines().len() == 2
    })
    .await;
    assert!(
        fixture
            .log
            .parse_lines()
            .iter()
            .all(|connection| connection["reason"] == "caller_gone"),
        "{:?}",
        fixture.log.parse_lines()
    );
    assert_eq!(
        connection.send_get("/healthz").await.status,
        200,
        "the connection goes on"
    );
}

#[tokio::test]
async fn tls_advertises_http_3_and_plain_text_does_not() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let wanted = format!("h3=\":{}\"; ma=86400", fixture.secure.port());
    let mut stream = crate::tls::connect_tls(&fixture, b"http/1.1").await;
    let plain = b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n";
    let other = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, &[&plain[..], other].concat())
        .await
        .unwrap();
    let mut text = Vec::new();
    let _ = within(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut text)).await;
    let text = String::from_utf8(text).unwrap();
    assert_eq!(
        text.matches(&format!("alt-svc: {wanted}\r\n")).count(),
        2,
        "{text}"
    );
    let answer = fixture.send_get("/function/echo").await;
    assert_eq!((answer.status, answer.header("alt-svc")), (200, ""));
}

const POST: &[u8] = b"\xd4";
const HTTPS: &[u8] = b"\xd7";
const ORIGIN: &[u8] = b"\x50\x09localhost";
const PATH: &[u8] = b"\x51\x0e/function/echo";
/// `content-length: 0`
const NO_LENGTH: &[u8] = b"\xc4";

/// Returns a frame of at most 63 bytes (RFC 9114 section 7.1).
fn frame_of(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    assert!(length < 64, "a longer length has another form");
    [&[kind, length], content].concat()
}

/// Returns a HEADERS frame of field lines (RFC 9204 section 4.5), after an empty prefix.
fn section_of(lines: &[&[u8]]) -> Vec<u8> {
    frame_of(1, &[&[0, 0], lines.concat().as_slice()].concat())
}

/// RFC 9114 section 4.1.2: a malformed request is refused, and nothing of it reaches a function.
#[tokio::test]
async fn malformed_sections_are_refused() {
    const OTHER_PATH: &[u8] = b"\x51\x02/x";
    const STATUS: &[u8] = b"\xd9";
    const FIELD: &[u8] = b"\x21x\x01y";
    const CHUNKED: &[u8] = b"\x27\x0atransfer-encoding\x07chunked";
    const OVERLONG_BASE: &[u8] = b"\0\x7f\x80\x80\x80\x80\x80\x80\x80\x80\0";
    const PADDED_PATH: &[u8] = b"\x2d\xb9\x58\xd3\x3f\xff\x0e/function/echo";
    let data = frame_of(0, b"abc");
    let head = section_of(&[POST, HTTPS, ORIGIN, PATH, FIELD]);
    let with_trailers = |line| [head.clone(), data.clone(), section_of(&[FIELD, line])].concat();
    let good = [head.clone(), data.clone(), section_of(&[FIELD])].concat();
    let malformed = [
        section_of(&[POST, HTTPS, ORIGIN, OTHER_PATH, PATH]),
        section_of(&[POST, HTTPS, ORIGIN, FIELD, PATH]),
        section_of(&[POST, HTTPS, ORIGIN, PATH, STATUS]),
        [
            section_of(&[POST, HTTPS, ORIGIN, PATH, NO_LENGTH]),
            data.clone(),
        ]
        .concat(),
        with_trailers(CHUNKED),
        with_trailers(PATH),
        with_trailers(PADDED_PATH),
        section_of(&[POST, HTTPS, ORIGIN, FIELD, PADDED_PATH]),
        frame_of(
            1,
            &[OVERLONG_BASE, POST, HTTPS, ORIGIN, OTHER_PATH, PATH].concat(),
        ),
    ];
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    for (number, bytes) in std::iter::once(&good).chain(&malformed).enumerate() {
        let (mut send, mut receive) = connection.quic.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        send.finish().unwrap();
        // A response, or a reset after a part of it.
        let _ = within(receive.read_to_end(1 << 16)).await;
        let recorded = async || fixture.log.parse_lines().len() > number;
        eventually("the request is recorded", recorded).await;
        let line = &fixture.log.parse_lines()[number];
        let expected = if number == 0 { 200 } else { 400 };
        assert_eq!(line["status"], expected, "{number}: {line}");
    }
}

#[tokio::test]
async fn invalid_hosts_are_400_over_http_3() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let hosts = ["user@h", "h,i", "", "h/x", "a b", "h:port", "h#x"];
    for (number, host) in hosts.iter().enumerate() {
        let authority = [&[0x50, host.len() as u8], host.as_bytes()].concat();
        let (mut send, mut receive) = connection.quic.open_bi().await.unwrap();
        let head = section_of(&[POST, HTTPS, &authority, PATH]);
        send.write_all(&head).await.unwrap();
        send.finish().unwrap();
        let _ = within(receive.read_to_end(1 << 16)).await; // a response, or a reset
        let recorded = async || fixture.log.parse_lines().len() > number;
        eventually("the request is recorded", recorded).await;
        let line = &fixture.log.parse_lines()[number];
        assert_eq!(line["status"], 400, "{host:?}: {line}");
    }
}

/// RFC 9114 section 4.1.2: the length differs, however late the data comes.
#[tokio::test]
async fn late_data_after_a_length_of_0_is_malformed() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let mut connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    const ADMIN_PATH: &[u8] = b"\x51\x0c/system/info";
    for (number, path) in [PATH, ADMIN_PATH].into_iter().enumerate() {
        let (mut send, mut receive) = connection.quic.open_bi().await.unwrap();
        let head = section_of(&[POST, HTTPS, ORIGIN, path, NO_LENGTH]);
        send.write_all(&head).await.unwrap();
        // Answered after the gateway has read the head of the first.
        assert_eq!(connection.send_get("/function/echo").await.status, 200);
        let _ = send.write_all(&frame_of(0, b"abc")).await; // stopped if it was answered already
        let _ = send.finish();
        let _ = within(receive.read_to_end(1 << 16)).await;
        let recorded = async || fixture.log.parse_lines().len() == 2 * (number + 1);
        eventually("both are recorded", recorded).await;
    }
    let statuses = fixture.log.parse_lines().into_iter();
    let statuses: Vec<_> = statuses.map(|line| line["status"].clone()).collect();
    assert_eq!(statuses, [200, 400, 200, 400]);
}

/// RFC 9114 section 7.1. `h3` panics when such a stream is read further.
#[tokio::test]
async fn a_body_that_ends_inside_a_frame_is_malformed() {
    let (seen, mut pieces) = mpsc::unbounded_channel();
    let addr = start_instance(move |request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                seen.send(frame.into_data().unwrap()).unwrap();
            }
            Response::new(full_body(""))
        }
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let connection = TestHttp3Client::for_fixture(&fixture).connect_http3().await;
    let (mut send, mut receive) = connection.quic.open_bi().await.unwrap();
    let head = section_of(&[POST, HTTPS, ORIGIN, PATH]);
    let started_frame = [head.as_slice(), &[0, 10], b"abc"].concat();
    send.write_all(&started_frame).await.unwrap();
    assert_eq!(within(pieces.recv()).await.unwrap(), "abc");
    send.finish().unwrap();
    let _ = within(receive.read_to_end(1 << 16)).await;
    eventually("it is recorded", async || {
        fixture.log.parse_lines().len() == 1
    })
    .await;
    let line = &fixture.log.parse_lines()[0];
    assert_eq!(line["reason"], "bad_request", "{line}");
}
