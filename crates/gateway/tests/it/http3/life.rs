//! How connections move and end.

use h3::error::StreamError;
use http::Request;
use nearpath_gateway::Settings;
use nearpath_testkit::{eventually, within};

use super::client::{Client, Line, Stream, finish, url};
use crate::house::{House, held, mirror, ms};

async fn inflight(house: &House, number: usize) {
    let text = format!("nearpath_inflight{{function_name=\"echo.openfaas-fn\"}} {number}");
    eventually(&text, async || house.metrics().contains(&text)).await;
}

async fn get(line: &mut Line) -> Stream {
    try_get(line).await.unwrap()
}

async fn try_get(line: &mut Line) -> Result<Stream, StreamError> {
    let request = Request::get(url("/function/echo")).body(()).unwrap();
    let mut stream = within(line.requests.send_request(request)).await?;
    stream.finish().await?;
    Ok(stream)
}

/// Ports are hashed: of so many, each of the two threads would get some.
const MOVES: usize = 16;
/// What has not come then does not come: packets went to a thread that does not know their connection.
const LOST: std::time::Duration = std::time::Duration::from_secs(15);

/// How many requests of one connection ended well, whose client moved while they ran.
async fn moved(house: &House) -> usize {
    let (at, go) = held().await;
    house.echo(at);
    let client = Client::of(house);
    let mut line = client.connect().await;
    for well in 0..MOVES {
        let Ok(mut stream) = try_get(&mut line).await else { return well };
        if tokio::time::timeout(LOST, inflight(house, 1)).await.is_err() {
            return well;
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.endpoint.rebind(socket).unwrap();
        go.add_permits(1);
        match tokio::time::timeout(LOST, finish(&mut stream)).await {
            Ok(Ok(answer)) => assert_eq!(answer.body, "ok"),
            _ => return well,
        }
        inflight(house, 0).await;
    }
    MOVES
}

#[tokio::test]
async fn a_request_survives_its_clients_move() {
    let house = House::open();
    assert_eq!(moved(&house).await, MOVES);
    assert!(house.metrics().contains("nearpath_http3_connections_total 1"), "{}", house.metrics());
}

/// Packets from a new address are taken before anybody has proved to be there: who sends them could be anybody.
#[tokio::test]
async fn who_moves_is_known_by_the_address_that_it_proved() {
    let house = House::open();
    house.echo(mirror().await);
    let client = Client::of(&house);
    let mut line = client.connect().await;
    client.endpoint.rebind(std::net::UdpSocket::bind("127.0.0.2:0").unwrap()).unwrap();
    for _ in 0..3 {
        let answer = line.get("/function/echo").await;
        assert!(answer.body.contains("x-forwarded-for: 127.0.0.1\n"), "{}", answer.body);
    }
}

#[tokio::test]
async fn control_without_steering_it_does_not() {
    assert!(moved(&House::unsteered()).await < MOVES);
}

#[tokio::test]
async fn who_is_asked_is_answered_before_the_end_and_newcomers_go_elsewhere() {
    let (at, go) = held().await;
    let mut house = House::with(Settings { drain_timeout: std::time::Duration::from_secs(600), ..Settings::default() });
    house.echo(at);
    let client = Client::of(&house);
    let mut line = client.connect().await;
    let mut running = get(&mut line).await;
    inflight(&house, 1).await;
    let drained = tokio::spawn(house.drain());
    // What was on its way when GOAWAY went is refused; after it came the client sends nothing more.
    let refused = async || match line.requests.send_request(Request::get(url("/healthz")).body(()).unwrap()).await {
        Ok(mut stream) => {
            let _ = stream.finish().await; // refused already
            finish(&mut stream).await.is_err_and(|error| error.to_string().contains("H3_REQUEST_REJECTED"))
        }
        Err(error) => error.to_string().contains("closing"),
    };
    eventually("new requests are refused", refused).await;
    eventually("new connections are refused", async || {
        matches!(within(Client::of(&house).connecting()).await, Err(quinn::ConnectionError::ConnectionClosed(_)))
    })
    .await;
    assert!(!drained.is_finished());
    go.add_permits(1);
    assert_eq!(finish(&mut running).await.unwrap().body, "ok");
    within(drained).await.unwrap();
    let closed = within(line.quic.closed()).await;
    assert!(
        matches!(&closed, quinn::ConnectionError::ApplicationClosed(close) if u64::from(close.error_code) == 0x100),
        "{closed}"
    );
}

/// The first octets of a variable-length integer's number of 62 bits (RFC 9000 section 16), where they are all of it.
async fn number(stream: &mut quinn::RecvStream) -> u8 {
    let mut octet = [0];
    within(stream.read_exact(&mut octet)).await.unwrap();
    assert!(octet[0] < 0x40, "one octet is enough for what is read here");
    octet[0]
}

/// RFC 9114 section 5.2: what GOAWAY names, and all after it, was not taken, and a client may send it again elsewhere.
#[tokio::test]
async fn goaway_names_the_first_request_that_was_not_taken() {
    let (at, go) = held().await;
    let mut house = House::open();
    house.echo(at);
    let quic = within(Client::of(&house).connecting()).await.unwrap();
    let mut control = loop {
        let mut stream = within(quic.accept_uni()).await.unwrap();
        if number(&mut stream).await == 0 {
            break stream;
        }
    };
    let (mut send, mut receive) = within(quic.open_bi()).await.unwrap();
    send.write_all(&super::early::get("/function/echo")).await.unwrap();
    send.finish().unwrap();
    inflight(&house, 1).await;
    let drained = tokio::spawn(house.drain());
    assert_eq!(number(&mut control).await, 4, "SETTINGS");
    let length = number(&mut control).await;
    within(control.read_exact(&mut vec![0; usize::from(length)])).await.unwrap();
    let goaway = [number(&mut control).await, number(&mut control).await, number(&mut control).await];
    assert_eq!(goaway, [7, 1, 4], "type, length, and the stream after the first request's, which is 0");
    go.add_permits(1);
    let answer = within(receive.read_to_end(4096)).await.unwrap();
    assert!(answer.ends_with(b"ok"), "{answer:?}");
    quic.close(0x100_u32.into(), b"");
    within(drained).await.unwrap();
}

/// Octets that come on a control stream before the first GOAWAY.
async fn prelude(quic: &quinn::Connection) -> u32 {
    loop {
        let mut stream = within(quic.accept_uni()).await.unwrap();
        if number(&mut stream).await == 0 {
            assert_eq!(number(&mut stream).await, 4, "SETTINGS");
            return 3 + u32::from(number(&mut stream).await);
        }
    }
}

#[tokio::test]
async fn who_takes_no_goaway_does_not_hold_up_the_drain() {
    let settings =
        Settings { drain_timeout: std::time::Duration::from_secs(600), header_timeout: ms(200), ..Settings::default() };
    let mut house = House::with(settings);
    let mut client = Client::of(&house);
    let full = prelude(&within(client.connecting()).await.unwrap()).await;
    let mut narrow = quinn::TransportConfig::default();
    narrow.stream_receive_window(full.into());
    client.config.transport_config(std::sync::Arc::new(narrow));
    let quic = within(client.connecting()).await.unwrap();
    let _unread = within(quic.accept_uni()).await.unwrap(); // it speaks HTTP/3 by now
    within(house.drain()).await;
}

#[tokio::test]
async fn what_takes_too_long_is_cut_and_told() {
    let (at, _go) = held().await;
    let mut house = House::with(Settings { drain_timeout: ms(100), ..Settings::default() });
    house.echo(at);
    let client = Client::of(&house);
    let mut line = client.connect().await;
    let mut stream = get(&mut line).await;
    inflight(&house, 1).await;
    within(house.drain()).await;
    assert!(finish(&mut stream).await.is_err());
    within(line.quic.closed()).await;
    eventually("it is recorded", async || house.log.all().len() == 1).await;
    assert_eq!(house.log.all()[0]["reason"], "draining");
}

#[tokio::test]
async fn connections_are_spread_over_the_threads() {
    let house = House::open();
    house.echo(mirror().await);
    for _ in 0..16 {
        assert_eq!(Client::of(&house).connect().await.get("/function/echo").await.status, 200);
    }
}
