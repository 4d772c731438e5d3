//! Clients without a ticket, or with misuse of one.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::Request;
use nearpath_p2p::control::{
    ControlConnection, ControlEnd, ControlEvent, DialError, PeerCallError, RelayStream,
};
use nearpath_p2p::message::{CallRefusal, JobReport, SignedToken};
use nearpath_p2p::ticket::{RendezvousKey, WorkerTicket};
use nearpath_rendezvous::{RateLimit, RendezvousLimits};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use nearpath_testkit::p2p::rendezvous::{
    RENDEZVOUS_TIMEOUT, TestRendezvous, next_event, unix_seconds, worker_id,
};

pub(crate) type RawControlSocket = WebSocketStream<TcpStream>;

pub(crate) async fn dial_path(
    addr: SocketAddr,
    path: &str,
    pass: Option<&str>,
) -> Result<RawControlSocket, Error> {
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
    client_async(request.body(()).unwrap(), stream)
        .await
        .map(|(socket, _)| socket)
}

async fn refused_status(addr: SocketAddr, path: &str, pass: Option<&str>) -> u16 {
    match within(dial_path(addr, path, pass)).await {
        Err(Error::Http(response)) => response.status().as_u16(),
        other => panic!("{other:?}"),
    }
}

/// Opens a control connection without a worker behind it, past its welcome.
pub(crate) async fn raw_connection(fixture: &TestRendezvous, name: &str) -> RawControlSocket {
    let mut socket = dial_path(
        fixture.rendezvous.addr,
        "/v1/control",
        Some(&fixture.ticket("sort", name).0),
    )
    .await
    .unwrap();
    assert!(
        within(socket.next())
            .await
            .unwrap()
            .unwrap()
            .to_text()
            .unwrap()
            .contains("welcome")
    );
    socket
}

/// Returns the last text of a connection.
async fn last_text(socket: &mut RawControlSocket) -> String {
    while let Some(Ok(message)) = within(socket.next()).await {
        if let Message::Text(text) = message {
            return text.to_string();
        }
    }
    String::from("none")
}

#[tokio::test]
async fn an_invalid_ticket_is_refused() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let addr = fixture.rendezvous.addr;
    let good = fixture.ticket("sort", "a").0;
    let forged = WorkerTicket {
        worker: worker_id("a"),
        job: "sort".parse().unwrap(),
        leader: true,
        until: unix_seconds() + 60,
    };
    let forged = forged.mint(&RendezvousKey::new([6; 32])).0;
    let old = fixture.ticket_until("sort", "a", unix_seconds() - 1).0;
    for pass in [
        None,
        Some(""),
        Some("x"),
        Some(&*forged),
        Some(&*old),
        Some(&good[..good.len() - 2]),
    ] {
        assert_eq!(
            refused_status(addr, "/v1/control", pass).await,
            401,
            "{pass:?}"
        );
        assert_eq!(
            refused_status(addr, "/v1/relay", pass).await,
            401,
            "{pass:?}"
        );
    }
    assert_eq!(
        refused_status(addr, "/v1/relay", Some(&good)).await,
        401,
        "a ticket is no pass"
    );
    assert_eq!(refused_status(addr, "/", Some(&good)).await, 404);
    assert_eq!(
        fixture.metric_value("nearpath_rendezvous_control_connections"),
        0
    );
    assert!(
        dial_path(addr, "/v1/control", Some(&good)).await.is_ok(),
        "the control: a good one opens"
    );
}

#[tokio::test]
async fn a_refused_ticket_is_not_retried() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (connection, mut events) =
        ControlConnection::open(fixture.control_settings(SignedToken("nonsense".into())));
    let ControlEvent::Ended(ControlEnd::TicketRefused(why)) = next_event(&mut events).await else {
        panic!("it goes on")
    };
    assert!(
        why.contains("401") && why.contains("nearpath rendezvous ticket"),
        "{why}"
    );
    assert!(matches!(
        within(connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT)).await,
        Err(PeerCallError::Ended(_) | PeerCallError::Closed)
    ));
    let relay = RelayStream::open(
        &fixture.control_settings(SignedToken(String::new())),
        &SignedToken("x.y".into()),
    )
    .await;
    assert!(matches!(relay, Err(DialError::Status { status: 401, .. })));
}

/// A relay token names one end of one session: neither another session's token nor a repeated one
/// joins two workers.
#[tokio::test]
async fn a_pass_of_another_session_is_refused() {
    let fixture = TestRendezvous::start(RendezvousLimits {
        relay_wait_timeout: Duration::from_millis(200),
        ..RendezvousLimits::default()
    });
    let (a, mut b) = (
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    );
    let one = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let _one = b.next_call().await;
    let two = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let mut first = RelayStream::open(&a.settings, &one.grant.relay_token)
        .await
        .unwrap();
    let mut other = RelayStream::open(&a.settings, &two.grant.relay_token)
        .await
        .unwrap();
    let mut repeated = RelayStream::open(&a.settings, &one.grant.relay_token)
        .await
        .unwrap();
    for relay in [&mut first, &mut other, &mut repeated] {
        assert!(within(relay.next()).await.unwrap().is_err());
    }
}

#[tokio::test]
async fn an_invalid_message_ends_the_connection() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let long = format!(
        r#"{{"type":"report","report":{{"report":"failed","reason":"{}"}}}}"#,
        "x".repeat(5000)
    );
    for bad in [
        Message::text("{"),
        Message::text(r#"{"type":"rule"}"#),
        Message::binary(vec![1]),
        Message::text(long),
    ] {
        let mut socket = raw_connection(&fixture, "a").await;
        socket.send(bad).await.unwrap();
        assert!(last_text(&mut socket).await.contains("unreadable"));
    }
    let mut socket = raw_connection(&fixture, "a").await;
    let huge = Message::text(format!(
        r#"{{"type":"call","about":"{}"}}"#,
        "x".repeat(100_000)
    ));
    let _ = socket.send(huge).await; // the rendezvous may close while this is still written
    assert_eq!(last_text(&mut socket).await, "none");
    eventually("all are gone", async || {
        fixture.metric_value("nearpath_rendezvous_control_connections") == 0
    })
    .await;
}

#[tokio::test]
async fn a_frame_that_is_too_long_for_a_relay_ends_it() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (a, mut b) = (
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    );
    let own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let others = b.next_call().await;
    let mut socket = dial_path(
        fixture.rendezvous.addr,
        "/v1/relay",
        Some(&own.grant.relay_token.0),
    )
    .await
    .unwrap();
    let mut second = RelayStream::open(&b.settings, &others.grant.relay_token)
        .await
        .unwrap();
    eventually("they are joined", async || {
        fixture.metric_value("nearpath_relay_open") == 1
    })
    .await;
    let _ = socket.send(Message::binary(vec![0; 200_000])).await; // as above
    assert!(within(second.next()).await.unwrap().is_err());
}

/// Excess messages are read more slowly; other connections do not notice.
#[tokio::test]
async fn a_flood_slows_its_own_connection_only() {
    let message_rate = RateLimit {
        per_second: 1,
        burst: 10,
    };
    let fixture = TestRendezvous::start(RendezvousLimits {
        message_rate,
        ..RendezvousLimits::default()
    });
    let mut flood = raw_connection(&fixture, "flood").await;
    let b = fixture.connect_worker("sort", "b").await;
    let report = r#"{"type":"report","report":{"report":"ready"}}"#;
    for _ in 0..100 {
        flood.feed(Message::text(report)).await.unwrap();
    }
    flood.flush().await.unwrap();
    let absent = within(b.connection.call(worker_id("c"), "", Duration::ZERO))
        .await
        .unwrap_err();
    assert_eq!(absent, PeerCallError::Refused(CallRefusal::Absent));
    eventually("it is held", async || {
        fixture.metric_value("nearpath_rendezvous_throttled_total") > 0
    })
    .await;
    assert!(
        fixture.metric_value("nearpath_rendezvous_undelivered_total") < 100,
        "all of it was read at once"
    );
}

/// A worker that does not read is disconnected, and its peers do not wait.
#[tokio::test]
async fn a_worker_that_does_not_read_is_disconnected() {
    let send_timeout = Duration::from_millis(300);
    let message_rate = RateLimit {
        per_second: 1_000_000,
        burst: 1_000_000,
    };
    let fixture = TestRendezvous::start(RendezvousLimits {
        send_timeout,
        message_rate,
        ..RendezvousLimits::default()
    });
    let stalled = raw_connection(&fixture, "stalled").await;
    let a = fixture.connect_worker("sort", "a").await;
    let why = "x".repeat(3000);
    let mut a = a;
    let lost = async {
        loop {
            for _ in 0..200 {
                a.connection.send_report(
                    Some(worker_id("stalled")),
                    JobReport::Failed {
                        reason: why.clone(),
                    },
                );
            }
            if let Ok(Some(ControlEvent::Undelivered { .. })) =
                tokio::time::timeout(Duration::from_millis(20), a.events.recv()).await
            {
                return;
            }
        }
    };
    within(lost).await;
    assert!(fixture.metric_value("nearpath_rendezvous_slow_total") > 0);
    drop(stalled);
}

/// A worker has its own budget; excess, and all unauthenticated clients, count against the shared
/// address.
#[tokio::test]
async fn too_many_connections_from_one_address_are_closed_at_once() {
    let fixture = TestRendezvous::start(RendezvousLimits {
        arrival_rate: RateLimit {
            per_second: 1,
            burst: 10,
        },
        ..RendezvousLimits::default()
    });
    let addr = fixture.rendezvous.addr;
    for worker in 0..100 {
        let ticket = fixture.ticket("sort", &format!("worker-{worker}"));
        assert!(
            dial_path(addr, "/v1/control", Some(&ticket.0))
                .await
                .is_ok(),
            "worker {worker} pays for itself"
        );
    }
    let (mut open, ticket) = (0, fixture.ticket("sort", "a"));
    for _ in 0..100 {
        open += usize::from(
            dial_path(addr, "/v1/control", Some(&ticket.0))
                .await
                .is_ok(),
        );
    }
    assert!(
        (20..100).contains(&open),
        "its own ten, and those of the address: {open}"
    );
    let metrics = fixture.registry.encode();
    assert!(
        metrics.contains(r#"nearpath_rendezvous_rejected_total{reason="address"}"#),
        "{metrics}"
    );
}

/// A silent or invalid client holds a slot for a short time only.
#[tokio::test]
async fn a_silent_connection_is_closed_after_the_handshake_timeout() {
    let limits = RendezvousLimits {
        handshake_timeout: Duration::from_millis(200),
        max_handshakes: 2,
        ..RendezvousLimits::default()
    };
    let fixture = TestRendezvous::start(limits);
    let addr = fixture.rendezvous.addr;
    let mut silent = [
        TcpStream::connect(addr).await.unwrap(),
        TcpStream::connect(addr).await.unwrap(),
    ];
    eventually("there is no place", async || {
        dial_path(addr, "/v1/control", Some(&fixture.ticket("sort", "a").0))
            .await
            .is_err()
    })
    .await;
    for stream in &mut silent {
        assert_eq!(within(stream.read(&mut [0])).await.unwrap_or(0), 0);
    }
    assert!(
        dial_path(addr, "/v1/control", Some(&fixture.ticket("sort", "a").0))
            .await
            .is_ok()
    );
    let mut other = TcpStream::connect(addr).await.unwrap();
    other
        .write_all(&b"GET / HTTP/1.1\r\nx: y\r\n".repeat(4000))
        .await
        .unwrap_or(());
    while within(other.read(&mut [0; 1024]))
        .await
        .is_ok_and(|n| n > 0)
    {}
}

#[tokio::test]
async fn a_dead_connection_is_closed() {
    let fixture = TestRendezvous::start(RendezvousLimits {
        silence_timeout: Duration::from_millis(300),
        ..RendezvousLimits::default()
    });
    let dead = raw_connection(&fixture, "a").await; // it does not read, so it does not answer pings
    let alive = fixture.connect_worker("sort", "b").await;
    eventually("both are here", async || {
        fixture.metric_value("nearpath_rendezvous_control_connections") == 2
    })
    .await;
    eventually("the dead one is gone", async || {
        fixture.metric_value("nearpath_rendezvous_control_connections") == 1
    })
    .await;
    drop(dead);
    let absent = within(alive.connection.call(worker_id("a"), "", Duration::ZERO))
        .await
        .unwrap_err();
    assert_eq!(absent, PeerCallError::Refused(CallRefusal::Absent));
}
