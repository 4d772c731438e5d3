//! The gateway's own reader against hyper: what it takes, hyper reads in the same way.
//!
//! The own reader may leave any request to hyper. It must never take a request that hyper refuses,
//! or reads as another method, target, field or body: one connection would then have two meanings.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use http::header::CONNECTION;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_gateway::fuzz::{ParseOutcome, take_plain_request};
use nearpath_testkit::seeded_rng::SeededRng;
use nearpath_wire::server::{HttpLimits, http1_builder};
use tokio::io::AsyncWriteExt;

const REQUESTS: [&str; 10] = [
    "GET /function/echo HTTP/1.1\r\nHost: a.example:8080\r\n\r\n",
    "GET /function/echo/a%2Fb?c=d&e HTTP/1.1\r\nhost: [::1]:80\r\naccept: */*\r\ncookie: a=1\r\n\r\n",
    "POST /function/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "PUT /function/echo.ns/x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n",
    "DELETE /function/echo HTTP/1.1\r\nHost: a\r\nX-Empty:\r\nX-Tab: \ta\tb \r\n\r\n",
    "PATCH /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc",
    "POST /function/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "GET http://a/function/echo HTTP/1.1\r\nhost: b\r\nexpect: 100-continue\r\n\r\n",
    "HEAD /function/echo HTTP/1.0\r\nhost: a\r\nx-forwarded-for: 1.2.3.4\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
];

/// Pieces that matter to readers of HTTP/1.
const PIECES: [&[u8]; 26] = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"\0",
    b":",
    b",",
    b";",
    b"0",
    b"1",
    b"-1",
    b"+5",
    b"5, 5",
    b"\x80",
    b"\x7f",
    b"#",
    b"HTTP/1.1",
    b"\r\nhost: b",
    b"\r\ncontent-length: 7",
    b"\r\ntransfer-encoding: chunked",
    b"\r\n folded: x",
    b"\r\nconnection: host",
    b"\r\nbad name: x",
    b"GET /function/other HTTP/1.1\r\nhost: c\r\n\r\n",
];

/// A request as one of the readers has it.
#[derive(Debug, PartialEq)]
struct ReadRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl ReadRequest {
    fn from_request(request: Request<Bytes>) -> Self {
        let (mut parts, body) = request.into_parts();
        // The own reader applies it and keeps it from the functions.
        parts.headers.remove(CONNECTION);
        Self {
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            body,
        }
    }
}

/// Returns the requests that the own reader takes from the beginning of the bytes.
fn read_own(bytes: &[u8]) -> Vec<ReadRequest> {
    let (mut buffer, mut taken) = (BytesMut::from(bytes), Vec::new());
    while let ParseOutcome::Plain(plain) = take_plain_request(&mut buffer) {
        let request = plain.to_request().expect("what is plain is a request");
        taken.push(ReadRequest::from_request(request));
        if plain.closes_connection() {
            break;
        }
    }
    taken
}

/// Returns the requests that hyper reads with the gateway's settings.
async fn read_by_hyper(bytes: &[u8]) -> Vec<ReadRequest> {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    let taken = Arc::<Mutex<Vec<_>>>::default();
    let service = service_fn(|request: Request<Incoming>| {
        let taken = Arc::clone(&taken);
        async move {
            let (parts, body) = request.into_parts();
            // A body that is cut is no request.
            if let Ok(body) = body.collect().await {
                let whole = Request::from_parts(parts, body.to_bytes());
                let whole = ReadRequest::from_request(whole);
                taken.lock().unwrap().push(whole);
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let mut builder = http1_builder(&HttpLimits::default());
    // The end of the bytes is no end of the requests before it.
    builder.half_close(true);
    // Malformed bytes end the connection.
    let _ = builder
        .serve_connection(TokioIo::new(server), service)
        .await;
    drop(client);
    std::mem::take(&mut taken.lock().unwrap())
}

/// Returns some requests in a row with up to four changes.
fn mutated_bytes(rng: &mut SeededRng) -> Vec<u8> {
    let count = 1 + rng.index(3);
    let mut bytes: Vec<u8> = (0..count)
        .flat_map(|_| rng.pick(&REQUESTS).bytes())
        .collect();
    for _ in 0..rng.index(5) {
        let (at, other) = (rng.index(bytes.len()), rng.index(bytes.len()));
        match rng.index(6) {
            0 => bytes[at] ^= 1 << rng.index(8),
            1 => drop(bytes.remove(at)),
            2 => drop(bytes.splice(at..at, rng.pick(&PIECES).iter().copied())),
            3 => bytes.swap(at, other),
            4 => bytes[at] = bytes[at].to_ascii_uppercase(),
            _ => {
                let copied = bytes[at.min(other)..at.max(other)].to_vec();
                drop(bytes.splice(other..other, copied));
            }
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[tokio::test]
async fn what_the_own_reader_takes_hyper_reads_alike() {
    const COUNT: u64 = 100_000;
    let mut taken = 0;
    for seed in 0..COUNT {
        let bytes = mutated_bytes(&mut SeededRng::new(seed));
        let own = read_own(&bytes);
        if own.is_empty() {
            continue;
        }
        taken += 1;
        let by_hyper = read_by_hyper(&bytes).await;
        assert!(
            by_hyper.starts_with(&own),
            "seed {seed}: {:?}\nown reader: {own:#?}\nhyper: {by_hyper:#?}",
            bytes.escape_ascii().to_string()
        );
    }
    // Else the test would compare nothing.
    assert!(taken > COUNT / 4, "{taken} requests of {COUNT}");
}
