//! The relay: frames both ways, in order, bounded, with an end that differs from a break.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{PeerSession, RelayStream};
use nearpath_p2p::migrate::StreamFrame;
use nearpath_rendezvous::{RateLimit, RendezvousLimits};
use nearpath_testkit::{eventually, within};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use nearpath_testkit::p2p::rendezvous::{
    RENDEZVOUS_TIMEOUT, TestRendezvous, TestWorker, worker_id,
};

use crate::unauthorized::dial_path;

/// Creates a session of two workers of this job.
async fn granted_session(
    fixture: &TestRendezvous,
    job: &str,
) -> (TestWorker, PeerSession, TestWorker, PeerSession) {
    let (a, mut b) = (
        fixture.connect_worker(job, "a").await,
        fixture.connect_worker(job, "b").await,
    );
    let own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let others = b.next_call().await;
    (a, own, b, others)
}

pub(crate) async fn joined_relay(
    fixture: &TestRendezvous,
    job: &str,
) -> (RelayStream, RelayStream) {
    let (a, own, b, others) = granted_session(fixture, job).await;
    let first = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    (
        first,
        RelayStream::open(&b.settings, &others.grant.relay_token)
            .await
            .unwrap(),
    )
}

fn pattern_bytes(seed: usize, len: usize) -> Bytes {
    (0..len)
        .map(|at| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8)
        .collect()
}

/// Frames of all sizes, with texts between them, both ways at once.
#[tokio::test]
async fn all_frames_arrive_both_ways_in_order() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (a, own, b, others) = granted_session(&fixture, "sort").await;
    let frames = |salt: usize| {
        (0..300).map(move |at| match at % 7 {
            6 => StreamFrame::Text(format!("word {salt} {at}")),
            _ => StreamFrame::Bytes(pattern_bytes(salt + at, at * 997 % 32_768)),
        })
    };
    let both = async |settings, pass, own: usize, others: usize| {
        let relay = RelayStream::open(settings, pass).await.unwrap();
        let (mut to, mut from) = relay.split();
        let send = async {
            for frame in frames(own) {
                to.send(frame).await.unwrap();
            }
        };
        let receive = async {
            for frame in frames(others) {
                assert_eq!(from.next().await.unwrap().unwrap(), frame);
            }
        };
        tokio::join!(send, receive);
        to.close().await.unwrap();
        assert!(from.next().await.is_none(), "a proper close is no error");
    };
    let (one, other) = (
        both(&a.settings, &own.grant.relay_token, 1, 2),
        both(&b.settings, &others.grant.relay_token, 2, 1),
    );
    within(async { tokio::join!(one, other) }).await;
    assert!(fixture.metric_value("nearpath_relay_bytes_total") > 4_000_000);
    eventually("the relay is over", async || {
        fixture.metric_value("nearpath_relay_open") == 0
    })
    .await;
}

/// The first end may write at once.
#[tokio::test]
async fn frames_written_before_the_other_end_joins_are_delivered() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (a, own, b, others) = granted_session(&fixture, "sort").await;
    let mut first = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    for at in 0..3 {
        first
            .send(StreamFrame::Bytes(pattern_bytes(at, 100)))
            .await
            .unwrap();
    }
    eventually("it waits", async || {
        fixture.metric_value("nearpath_relay_waiting") == 1
    })
    .await;
    let mut second = RelayStream::open(&b.settings, &others.grant.relay_token)
        .await
        .unwrap();
    for at in 0..3 {
        assert_eq!(
            within(second.next()).await.unwrap().unwrap(),
            StreamFrame::Bytes(pattern_bytes(at, 100))
        );
    }
}

/// The last frames before a close arrive; the closing end loses nothing that was sent before.
#[tokio::test]
async fn a_close_comes_after_the_last_frame() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (mut first, mut second) = joined_relay(&fixture, "sort").await;
    for at in 0..50 {
        first
            .feed(StreamFrame::Bytes(pattern_bytes(at, 20_000)))
            .await
            .unwrap();
    }
    first.close().await.unwrap();
    for at in 0..50 {
        assert_eq!(
            within(second.next()).await.unwrap().unwrap(),
            StreamFrame::Bytes(pattern_bytes(at, 20_000))
        );
    }
    assert!(within(second.next()).await.is_none());
    assert!(within(first.next()).await.is_none());
}

#[tokio::test]
async fn a_break_is_an_error_at_the_other_end() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (first, mut second) = joined_relay(&fixture, "sort").await;
    drop(first);
    let error = within(second.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("disconnected"), "{error}");
    assert!(within(second.next()).await.is_none());
}

/// A restarted proxy closes both ends with its own code.
#[tokio::test]
async fn an_abnormal_close_is_an_error() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (_a, own, b, others) = granted_session(&fixture, "sort").await;
    let mut first = dial_path(
        fixture.rendezvous.addr,
        "/v1/relay",
        Some(&own.grant.relay_token.0),
    )
    .await
    .unwrap();
    let mut second = RelayStream::open(&b.settings, &others.grant.relay_token)
        .await
        .unwrap();
    first.send(Message::text("piece")).await.unwrap();
    assert_eq!(
        within(second.next()).await.unwrap().unwrap(),
        StreamFrame::Text("piece".into())
    );
    first
        .close(Some(CloseFrame {
            code: CloseCode::Away,
            reason: "going away".into(),
        }))
        .await
        .unwrap();
    let error = within(second.next())
        .await
        .expect("this is no end")
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
}

/// An end that does not read stops the other end, not the rendezvous.
#[tokio::test]
async fn an_end_that_does_not_read_stops_the_writer() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (first, mut second) = joined_relay(&fixture, "sort").await;
    let (mut to, _from) = first.split();
    let frame = pattern_bytes(1, 32_768);
    let mut sent = 0_usize;
    let stuck = async {
        loop {
            to.send(StreamFrame::Bytes(frame.clone())).await.unwrap();
            sent += frame.len();
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(2), stuck)
            .await
            .is_err()
    );
    assert!(
        sent < 64 << 20,
        "sockets hold some megabytes, the relay next to nothing: {sent}"
    );
    let held = usize::try_from(fixture.metric_value("nearpath_relay_bytes_total")).unwrap();
    assert!(held <= sent, "{held} {sent}");
    let mut read = 0;
    while read < sent {
        let StreamFrame::Bytes(bytes) = within(second.next()).await.unwrap().unwrap() else {
            panic!("a text frame")
        };
        read += bytes.len();
    }
}

/// An end that answers no ping for a while stays connected.
#[tokio::test]
async fn a_paused_end_stays_connected() {
    let fixture = TestRendezvous::start(RendezvousLimits {
        silence_timeout: Duration::from_millis(150),
        ..RendezvousLimits::default()
    });
    let (mut first, mut second) = joined_relay(&fixture, "sort").await;
    first
        .send(StreamFrame::Text("before".into()))
        .await
        .unwrap();
    eventually("it is there", async || {
        fixture.metric_value("nearpath_relay_bytes_total") > 0
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await; // neither end reads or writes
    first.send(StreamFrame::Text("after".into())).await.unwrap();
    for text in ["before", "after"] {
        assert_eq!(
            within(second.next()).await.unwrap().unwrap(),
            StreamFrame::Text(text.into())
        );
    }
}

#[tokio::test]
async fn an_end_without_a_peer_is_closed_with_the_reason() {
    let fixture = TestRendezvous::start(RendezvousLimits {
        relay_wait_timeout: Duration::from_millis(100),
        ..RendezvousLimits::default()
    });
    let (a, own, ..) = granted_session(&fixture, "sort").await;
    let mut first = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    let error = within(first.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("did not connect"), "{error}");
}

/// An end that was cut while waiting reconnects and is joined.
#[tokio::test]
async fn a_reconnected_waiting_end_replaces_the_older() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (a, own, b, others) = granted_session(&fixture, "sort").await;
    let mut older = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    eventually("it waits", async || {
        fixture.metric_value("nearpath_relay_waiting") == 1
    })
    .await;
    let mut newer = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    assert!(
        within(older.next()).await.unwrap().is_err(),
        "the older one is over"
    );
    let mut second = RelayStream::open(&b.settings, &others.grant.relay_token)
        .await
        .unwrap();
    newer.send(StreamFrame::Text("here".into())).await.unwrap();
    assert_eq!(
        within(second.next()).await.unwrap().unwrap(),
        StreamFrame::Text("here".into())
    );
}

#[tokio::test]
async fn an_idle_relay_is_closed() {
    let relay_idle_timeout = Duration::from_millis(200);
    let fixture = TestRendezvous::start(RendezvousLimits {
        relay_idle_timeout,
        silence_timeout: Duration::from_millis(300),
        ..RendezvousLimits::default()
    });
    let (first, mut second) = joined_relay(&fixture, "sort").await;
    tokio::spawn(async move {
        let mut first = first;
        while let Some(Ok(_)) = first.next().await {} // answers pings
    });
    let error = within(second.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

/// Four megabytes exceed the rate by far; a burst passes at once.
#[tokio::test]
async fn a_jobs_relays_share_its_rate() {
    let rate = RateLimit {
        per_second: 4 << 20,
        burst: 256 << 10,
    }; // far below the throughput of a busy machine
    let fixture = TestRendezvous::start(RendezvousLimits {
        job_rate: Some(rate),
        ..RendezvousLimits::default()
    });
    let begun = std::time::Instant::now();
    let one = async |name: &str| {
        let (a, b) = (format!("{name}-a"), format!("{name}-b"));
        let (caller, mut called) = (
            fixture.connect_worker("sort", &a).await,
            fixture.connect_worker("sort", &b).await,
        );
        let own = within(
            caller
                .connection
                .call(worker_id(&b), "", RENDEZVOUS_TIMEOUT),
        )
        .await
        .unwrap();
        let others = called.next_call().await;
        let mut from = RelayStream::open(&caller.settings, &own.grant.relay_token)
            .await
            .unwrap();
        let mut to = RelayStream::open(&called.settings, &others.grant.relay_token)
            .await
            .unwrap();
        let send = async {
            for at in 0..64 {
                from.send(StreamFrame::Bytes(pattern_bytes(at, 32_768)))
                    .await
                    .unwrap();
            }
        };
        let receive = async {
            for _ in 0..64 {
                to.next().await.unwrap().unwrap();
            }
        };
        tokio::join!(send, receive);
    };
    within(async { tokio::join!(one("x"), one("y")) }).await;
    assert!(
        begun.elapsed() >= Duration::from_millis(150),
        "no rate held it: {:?}",
        begun.elapsed()
    );
    assert!(fixture.metric_value("nearpath_rendezvous_throttled_total") > 0);
}
