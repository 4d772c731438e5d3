//! Who has no ticket, or misuses one.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::Request;
use nearpath_p2p::control::{CallError, DialError, Heard, Line, Over, RelayStream};
use nearpath_p2p::message::{Pass, Refusal, Report};
use nearpath_p2p::ticket::{Key, Ticket};
use nearpath_rendezvous::{Limits, Rate};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use nearpath_testkit::p2p::rendezvous::{House, SOON, id, next, now};

pub(crate) type Web = WebSocketStream<TcpStream>;

pub(crate) async fn dial(addr: SocketAddr, path: &str, pass: Option<&str>) -> Result<Web, Error> {
    let mut request = Request::get(format!("ws://{addr}{path}"))
        .header("host", addr.to_string())
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", generate_key());
    if let Some(pass) = pass {
        request = request.header("authorization", format!("Bearer {pass}"));
    }
    let stream = TcpStream::connect(addr).await.map_err(Error::Io)?;
    client_async(request.body(()).unwrap(), stream).await.map(|(web, _)| web)
}

async fn status(addr: SocketAddr, path: &str, pass: Option<&str>) -> u16 {
    match within(dial(addr, path, pass)).await {
        Err(Error::Http(response)) => response.status().as_u16(),
        other => panic!("{other:?}"),
    }
}

/// A line without a worker behind it, past its welcome.
pub(crate) async fn raw(house: &House, name: &str) -> Web {
    let mut web = dial(house.rendezvous.addr, "/v1/line", Some(&house.ticket("sort", name).0)).await.unwrap();
    assert!(within(web.next()).await.unwrap().unwrap().to_text().unwrap().contains("welcome"));
    web
}

/// The last word on a line.
async fn bye(web: &mut Web) -> String {
    while let Some(Ok(message)) = within(web.next()).await {
        if let Message::Text(text) = message {
            return text.to_string();
        }
    }
    String::from("none")
}

#[tokio::test]
async fn without_a_good_ticket_there_is_no_line() {
    let house = House::start(Limits::default());
    let addr = house.rendezvous.addr;
    let good = house.ticket("sort", "a").0;
    let forged = Ticket { you: id("a"), job: "sort".parse().unwrap(), leader: true, until: now() + 60 };
    let forged = forged.mint(&Key::new([6; 32])).0;
    let old = house.ticket_until("sort", "a", now() - 1).0;
    for pass in [None, Some(""), Some("x"), Some(&*forged), Some(&*old), Some(&good[..good.len() - 2])] {
        assert_eq!(status(addr, "/v1/line", pass).await, 401, "{pass:?}");
        assert_eq!(status(addr, "/v1/relay", pass).await, 401, "{pass:?}");
    }
    assert_eq!(status(addr, "/v1/relay", Some(&good)).await, 401, "a ticket is no pass");
    assert_eq!(status(addr, "/", Some(&good)).await, 404);
    assert_eq!(house.metric("nearpath_rendezvous_lines"), 0);
    assert!(dial(addr, "/v1/line", Some(&good)).await.is_ok(), "the control: a good one opens");
}

#[tokio::test]
async fn a_refused_ticket_is_not_shown_again() {
    let house = House::start(Limits::default());
    let (line, mut heard) = Line::open(house.settings(Pass("nonsense".into())));
    let Heard::Over(Over::Ticket(why)) = next(&mut heard).await else { panic!("it goes on") };
    assert!(why.contains("401") && why.contains("nearpath rendezvous ticket"), "{why}");
    assert!(matches!(within(line.call(id("b"), "", SOON)).await, Err(CallError::Over(_) | CallError::Closed)));
    let relay = RelayStream::open(&house.settings(Pass(String::new())), &Pass("x.y".into())).await;
    assert!(matches!(relay, Err(DialError::Status { status: 401, .. })));
}

/// A pass names one end of one session: with another session's, or one's own twice, nobody gets between two workers.
#[tokio::test]
async fn a_pass_of_another_session_joins_nothing() {
    let house = House::start(Limits { relay_wait: Duration::from_millis(200), ..Limits::default() });
    let (a, mut b) = (house.worker("sort", "a").await, house.worker("sort", "b").await);
    let one = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let _one = b.called().await;
    let two = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let mut first = RelayStream::open(&a.settings, &one.granted.pass).await.unwrap();
    let mut other = RelayStream::open(&a.settings, &two.granted.pass).await.unwrap();
    let mut twice = RelayStream::open(&a.settings, &one.granted.pass).await.unwrap();
    for relay in [&mut first, &mut other, &mut twice] {
        assert!(within(relay.next()).await.unwrap().is_err());
    }
}

#[tokio::test]
async fn what_is_no_message_ends_the_line() {
    let house = House::start(Limits::default());
    let long = format!(r#"{{"type":"report","report":{{"report":"failed","why":"{}"}}}}"#, "x".repeat(5000));
    for bad in [Message::text("{"), Message::text(r#"{"type":"rule"}"#), Message::binary(vec![1]), Message::text(long)]
    {
        let mut web = raw(&house, "a").await;
        web.send(bad).await.unwrap();
        assert!(bye(&mut web).await.contains("unreadable"));
    }
    let mut web = raw(&house, "a").await;
    let huge = Message::text(format!(r#"{{"type":"call","about":"{}"}}"#, "x".repeat(100_000)));
    let _ = web.send(huge).await; // the rendezvous may close while this is still written
    assert_eq!(bye(&mut web).await, "none");
    eventually("all are gone", async || house.metric("nearpath_rendezvous_lines") == 0).await;
}

#[tokio::test]
async fn a_frame_that_is_too_long_for_a_relay_ends_it() {
    let house = House::start(Limits::default());
    let (a, mut b) = (house.worker("sort", "a").await, house.worker("sort", "b").await);
    let own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let others = b.called().await;
    let mut web = dial(house.rendezvous.addr, "/v1/relay", Some(&own.granted.pass.0)).await.unwrap();
    let mut second = RelayStream::open(&b.settings, &others.granted.pass).await.unwrap();
    eventually("they are joined", async || house.metric("nearpath_relay_open") == 1).await;
    let _ = web.send(Message::binary(vec![0; 200_000])).await; // as above
    assert!(within(second.next()).await.unwrap().is_err());
}

/// Who says too much is read more slowly; the others do not notice.
#[tokio::test]
async fn a_flood_slows_its_own_line_only() {
    let said = Rate { per_second: 1, burst: 10 };
    let house = House::start(Limits { said, ..Limits::default() });
    let mut flood = raw(&house, "flood").await;
    let b = house.worker("sort", "b").await;
    let report = r#"{"type":"report","report":{"report":"ready"}}"#;
    for _ in 0..100 {
        flood.feed(Message::text(report)).await.unwrap();
    }
    flood.flush().await.unwrap();
    let absent = within(b.line.call(id("c"), "", Duration::ZERO)).await.unwrap_err();
    assert_eq!(absent, CallError::Refused(Refusal::Absent));
    eventually("it is held", async || house.metric("nearpath_rendezvous_throttled_total") > 0).await;
    assert!(house.metric("nearpath_rendezvous_undelivered_total") < 100, "all of it was read at once");
}

/// A worker that does not read is closed, and those who speak to it do not wait.
#[tokio::test]
async fn a_worker_that_does_not_read_loses_its_line() {
    let slow = Duration::from_millis(300);
    let said = Rate { per_second: 1_000_000, burst: 1_000_000 };
    let house = House::start(Limits { slow, said, ..Limits::default() });
    let deaf = raw(&house, "deaf").await;
    let a = house.worker("sort", "a").await;
    let why = "x".repeat(3000);
    let mut a = a;
    let lost = async {
        loop {
            for _ in 0..200 {
                a.line.report(Some(id("deaf")), Report::Failed { why: why.clone() });
            }
            if let Ok(Some(Heard::Undelivered { .. })) =
                tokio::time::timeout(Duration::from_millis(20), a.heard.recv()).await
            {
                return;
            }
        }
    };
    within(lost).await;
    assert!(house.metric("nearpath_rendezvous_slow_total") > 0);
    drop(deaf);
}

/// A worker has a budget of its own; what is beyond it, and whatever strangers do, costs the address that all share.
#[tokio::test]
async fn too_many_connections_from_one_address_are_closed_at_once() {
    let house = House::start(Limits { arrivals: Rate { per_second: 1, burst: 10 }, ..Limits::default() });
    let addr = house.rendezvous.addr;
    for worker in 0..100 {
        let ticket = house.ticket("sort", &format!("worker-{worker}"));
        assert!(dial(addr, "/v1/line", Some(&ticket.0)).await.is_ok(), "worker {worker} pays for itself");
    }
    let (mut open, ticket) = (0, house.ticket("sort", "a"));
    for _ in 0..100 {
        open += usize::from(dial(addr, "/v1/line", Some(&ticket.0)).await.is_ok());
    }
    assert!((20..100).contains(&open), "its own ten, and those of the address: {open}");
    let turned = house.registry.encode();
    assert!(turned.contains(r#"nearpath_rendezvous_turned_away_total{reason="address"}"#), "{turned}");
}

/// Who connects and says nothing, or something else, holds a place for a short time.
#[tokio::test]
async fn who_says_nothing_is_not_waited_for() {
    let limits = Limits { handshake: Duration::from_millis(200), unproven: 2, ..Limits::default() };
    let house = House::start(limits);
    let addr = house.rendezvous.addr;
    let mut silent = [TcpStream::connect(addr).await.unwrap(), TcpStream::connect(addr).await.unwrap()];
    eventually("there is no place", async || dial(addr, "/v1/line", Some(&house.ticket("sort", "a").0)).await.is_err())
        .await;
    for stream in &mut silent {
        assert_eq!(within(stream.read(&mut [0])).await.unwrap_or(0), 0);
    }
    assert!(dial(addr, "/v1/line", Some(&house.ticket("sort", "a").0)).await.is_ok());
    let mut other = TcpStream::connect(addr).await.unwrap();
    other.write_all(&b"GET / HTTP/1.1\r\nx: y\r\n".repeat(4000)).await.unwrap_or(());
    while within(other.read(&mut [0; 1024])).await.is_ok_and(|n| n > 0) {}
}

#[tokio::test]
async fn a_line_that_is_dead_is_noticed() {
    let house = House::start(Limits { silence: Duration::from_millis(300), ..Limits::default() });
    let dead = raw(&house, "a").await; // it does not read, so it does not answer pings
    let alive = house.worker("sort", "b").await;
    eventually("both are here", async || house.metric("nearpath_rendezvous_lines") == 2).await;
    eventually("the dead one is gone", async || house.metric("nearpath_rendezvous_lines") == 1).await;
    drop(dead);
    let absent = within(alive.line.call(id("a"), "", Duration::ZERO)).await.unwrap_err();
    assert_eq!(absent, CallError::Refused(Refusal::Absent));
}
