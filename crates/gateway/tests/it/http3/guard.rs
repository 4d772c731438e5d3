//! What a hostile client cannot do.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use nearpath_gateway::Settings;
use nearpath_testkit::{eventually, within};
use tokio::net::UdpSocket;

use super::client::{Client, Line, finish, url};
use crate::house::{House, mirror, ms};

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let house = House::open();
    house.echo(mirror().await);
    let mut line = Client::of(&house).connect().await;
    let large = Request::get(url("/function/echo")).header("x-large", "x".repeat(70_000)).body(()).unwrap();
    assert_eq!(line.ask(large, "").await.status, 431);
    let many = (0..120).fold(Request::get(url("/function/echo")), |many, n| many.header(format!("x-{n}"), "1"));
    let answer = line.ask(many.body(()).unwrap(), "").await;
    assert_eq!((answer.status, answer.reason()), (431, "headers_too_large"));
    assert_eq!(line.get("/function/echo").await.status, 200, "the connection goes on");
    eventually("all are recorded", async || house.log.all().len() == 3).await;
    assert_eq!(house.log.all()[0]["reason"], "headers_too_large");
}

/// A frame of HTTP/3: type and length of eight octets, and the beginning of what it holds.
fn frame(kind: u8, length: u64, begins: &[u8]) -> Vec<u8> {
    [&[kind][..], &(length | 0xc0 << 56).to_be_bytes(), begins].concat()
}

/// Writes until the other side stops it, and gives the code and how much it took.
async fn flood(line: &Line, first: &[u8]) -> (u64, usize) {
    let (mut send, _receive) = within(line.quic.open_bi()).await.unwrap();
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
    let house = House::open();
    house.echo(mirror().await);
    let mut line = Client::of(&house).connect().await;
    for kind in [0x01, 0x21] {
        // HEADERS, and one that means nothing
        let (code, taken) = flood(&line, &frame(kind, 1 << 40, b"")).await;
        assert_eq!(code, 0x107, "frame {kind:#x}"); // H3_EXCESSIVE_LOAD
        assert!(taken < 2 << 20, "the stream's window and what is gathered: {taken}");
    }
    assert_eq!(line.get("/function/echo").await.status, 200, "the connection goes on");
}

#[tokio::test]
async fn a_body_must_be_as_long_as_it_says() {
    let house = House::open();
    house.echo(mirror().await);
    let mut line = Client::of(&house).connect().await;
    for (length, body) in [("3", "four"), ("5", "four")] {
        let post = Request::post(url("/function/echo")).header("content-length", length).body(()).unwrap();
        let answer = line.ask(post, body).await;
        assert_eq!((answer.status, answer.reason()), (400, "bad_request"), "{length}: {answer:?}");
    }
    for (name, value) in [("transfer-encoding", "chunked"), ("connection", "close"), ("content-length", "1, 1")] {
        let post = Request::post(url("/function/echo")).header(name, value).body(()).unwrap();
        let answer = line.ask(post, "x").await;
        assert_eq!((answer.status, answer.reason()), (400, "bad_request"), "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn a_slow_client_holds_nothing_for_ever() {
    let settings = Settings { header_timeout: ms(200), body_idle_timeout: ms(300), ..Settings::default() };
    let house = House::with(Settings { idle_timeout: ms(600), ..settings });
    house.echo(mirror().await);
    let mut line = Client::of(&house).connect().await;
    let (mut head, mut nothing) = within(line.quic.open_bi()).await.unwrap();
    head.write_all(&frame(1, 100, b"some of it")).await.unwrap();
    let error = within(nothing.read_to_end(100)).await.unwrap_err();
    assert!(error.to_string().contains("reset"), "{error}");
    let mut stream = line.begin(Request::post(url("/function/echo")).body(()).unwrap()).await;
    stream.send_data(Bytes::from_static(b"a piece")).await.unwrap();
    let answer = finish(&mut stream).await.unwrap();
    assert_eq!((answer.status, answer.reason()), (408, "slow_request"));
    within(line.quic.closed()).await;
    let cut = "nearpath_connections_cut_total 1";
    eventually(cut, async || house.metrics().contains(cut)).await;
}

/// CVE-2023-44487 is HTTP/2's, but the attack is HTTP/3's as well.
#[tokio::test]
async fn who_only_gives_requests_up_is_told_to_leave_and_then_cut() {
    let house = House::open();
    house.echo(mirror().await);
    let quic = within(Client::of(&house).connecting()).await.unwrap();
    let abandon = async || {
        let (mut send, mut receive) = quic.open_bi().await?;
        let _ = send.write_all(&super::early::get("/function/echo")).await; // refused already, or lost with the connection
        let _ = (send.reset(0x10c_u32.into()), receive.stop(0x10c_u32.into()));
        Ok::<_, quinn::ConnectionError>(())
    };
    let until_cut = async { while abandon().await.is_ok() {} };
    within(until_cut).await;
    let cut = "nearpath_connections_cut_total 1";
    eventually(cut, async || house.metrics().contains(cut)).await;
}

#[tokio::test]
async fn streams_at_a_time_are_limited() {
    let house = House::open();
    let line = Client::of(&house).connect().await;
    let mut open = Vec::new();
    while let Ok(stream) = tokio::time::timeout(ms(500), line.quic.open_bi()).await {
        let mut stream = stream.unwrap();
        stream.0.write_all(&frame(1, 100, b"")).await.unwrap();
        open.push(stream);
        assert!(open.len() <= 256);
    }
    assert_eq!(open.len(), 256);
}

#[tokio::test]
async fn newcomers_prove_their_address_when_too_many_come() {
    let house = House::with(Settings { retry_above: 0, ..Settings::default() });
    house.echo(mirror().await);
    let client = Client::of(&house);
    assert_eq!(client.connect().await.get("/function/echo").await.status, 200);
    assert!(house.metrics().contains("nearpath_http3_retries_total 1"), "{}", house.metrics());
    assert_eq!(client.connect().await.get("/function/echo").await.status, 200);
    assert!(house.metrics().contains("nearpath_http3_retries_total 1"), "a token proves it: {}", house.metrics());
}

#[tokio::test]
async fn a_flood_of_first_packets_makes_newcomers_prove_their_address() {
    let house = House::with(Settings { retry_above: 8, ..Settings::default() });
    house.echo(mirror().await);
    let client = Client::of(&house);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..64 {
        socket.send_to(&hello(&client, &house), house.secure).await.unwrap();
    }
    let retries = "nearpath_http3_retries_total 56"; // four of each thread's part were let in
    eventually(retries, async || house.metrics().contains(retries)).await;
    for _ in 0..4 {
        assert_eq!(
            Client::of(&house).connect().await.get("/function/echo").await.status,
            200,
            "those with an address get in"
        );
    }
}

#[tokio::test]
async fn there_is_no_room_for_more_connections_than_allowed() {
    let house = House::with(Settings { max_connections: 2, ..Settings::default() }); // one a thread
    let mut kept = Vec::new();
    let refused = async || {
        match within(Client::of(&house).connecting()).await {
            Ok(quic) => kept.push(quic),
            Err(quinn::ConnectionError::ConnectionClosed(_)) => return true,
            Err(error) => panic!("{error}"),
        }
        false
    };
    eventually("one is refused", refused).await;
    assert!((1..=2).contains(&kept.len()));
    assert!(house.metrics().contains("nearpath_http3_refused_total 1"));
}

/// The first packet of a client whose address is not proven.
fn hello(client: &Client, house: &House) -> Vec<u8> {
    let mut endpoint = quinn_proto::Endpoint::new(Default::default(), None, false, None);
    let config = client.config.clone();
    let (_, mut connection) = endpoint.connect(Instant::now(), config, house.secure, "localhost").unwrap();
    let mut datagram = Vec::new();
    assert!(connection.poll_transmit(Instant::now(), 1, &mut datagram).is_some());
    datagram
}

/// quinn begins a datagram when one byte of it may go, as it does for congestion: the last one can exceed the bound.
const LAST: usize = 1_200;

/// RFC 9000 section 8.1, whatever is lost and sent again.
#[tokio::test]
async fn who_has_not_proved_its_address_is_sent_three_times_as_much_at_most() {
    let patience = Duration::from_secs(4); // several retransmissions
    let house = House::with(Settings { tls_timeout: patience, ..Settings::default() });
    let client = Client::of(&house);
    let hello = hello(&client, &house);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (mut sent, mut got, mut buffer) = (0, 0, [0; 2048]);
    for round in 0..3 {
        if round < 2 {
            socket.send_to(&hello, house.secure).await.unwrap();
            sent += hello.len();
        }
        let until = tokio::time::Instant::now() + patience / 3;
        while let Ok(heard) = tokio::time::timeout_at(until, socket.recv(&mut buffer)).await {
            got += heard.unwrap();
            assert!(got < 3 * sent + LAST, "{got} bytes for {sent}");
        }
    }
    assert!(got > sent, "it answers at all: {got}");
}
