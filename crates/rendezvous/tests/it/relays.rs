//! The relay: bytes both ways, in order, bounded, and with an end that is told from a break.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{Meeting, RelayStream};
use nearpath_p2p::migrate::Piece;
use nearpath_rendezvous::{Limits, Rate};
use nearpath_testkit::{eventually, within};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use nearpath_testkit::p2p::rendezvous::{House, SOON, Worker, id};

use crate::unauthorized::dial;

/// A session of two workers of this job.
async fn met(house: &House, job: &str) -> (Worker, Meeting, Worker, Meeting) {
    let (a, mut b) = (house.worker(job, "a").await, house.worker(job, "b").await);
    let own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let others = b.called().await;
    (a, own, b, others)
}

pub(crate) async fn joined(house: &House, job: &str) -> (RelayStream, RelayStream) {
    let (a, own, b, others) = met(house, job).await;
    let first = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    (first, RelayStream::open(&b.settings, &others.granted.pass).await.unwrap())
}

fn bytes(seed: usize, len: usize) -> Bytes {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8).collect()
}

/// Frames of all sizes and words between them; both ends at once.
#[tokio::test]
async fn all_arrives_both_ways_and_in_order() {
    let house = House::start(Limits::default());
    let (a, own, b, others) = met(&house, "sort").await;
    let pieces = |salt: usize| {
        (0..300).map(move |at| match at % 7 {
            6 => Piece::Word(format!("word {salt} {at}")),
            _ => Piece::Bytes(bytes(salt + at, at * 997 % 32_768)),
        })
    };
    let both = async |settings, pass, own: usize, others: usize| {
        let relay = RelayStream::open(settings, pass).await.unwrap();
        let (mut to, mut from) = relay.split();
        let send = async {
            for piece in pieces(own) {
                to.send(piece).await.unwrap();
            }
        };
        let hear = async {
            for piece in pieces(others) {
                assert_eq!(from.next().await.unwrap().unwrap(), piece);
            }
        };
        tokio::join!(send, hear);
        to.close().await.unwrap();
        assert!(from.next().await.is_none(), "a proper close is no error");
    };
    let (one, other) = (both(&a.settings, &own.granted.pass, 1, 2), both(&b.settings, &others.granted.pass, 2, 1));
    within(async { tokio::join!(one, other) }).await;
    assert!(house.metric("nearpath_relay_bytes_total") > 4_000_000);
    eventually("the relay is over", async || house.metric("nearpath_relay_open") == 0).await;
}

/// Whoever comes first may write at once.
#[tokio::test]
async fn what_is_written_before_the_other_end_comes_waits() {
    let house = House::start(Limits::default());
    let (a, own, b, others) = met(&house, "sort").await;
    let mut first = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    for at in 0..3 {
        first.send(Piece::Bytes(bytes(at, 100))).await.unwrap();
    }
    eventually("it waits", async || house.metric("nearpath_relay_waiting") == 1).await;
    let mut second = RelayStream::open(&b.settings, &others.granted.pass).await.unwrap();
    for at in 0..3 {
        assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Bytes(bytes(at, 100)));
    }
}

/// The last frames before a close arrive; the end that closes first loses nothing of what the other had sent before.
#[tokio::test]
async fn a_close_comes_after_the_last_frame() {
    let house = House::start(Limits::default());
    let (mut first, mut second) = joined(&house, "sort").await;
    for at in 0..50 {
        first.feed(Piece::Bytes(bytes(at, 20_000))).await.unwrap();
    }
    first.close().await.unwrap();
    for at in 0..50 {
        assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Bytes(bytes(at, 20_000)));
    }
    assert!(within(second.next()).await.is_none());
    assert!(within(first.next()).await.is_none());
}

#[tokio::test]
async fn a_break_is_an_error_at_the_other_end() {
    let house = House::start(Limits::default());
    let (first, mut second) = joined(&house, "sort").await;
    drop(first);
    let error = within(second.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
    assert!(within(second.next()).await.is_none());
}

/// A proxy that is restarted says so to both ends of what it passes on.
#[tokio::test]
async fn a_close_that_was_not_meant_is_a_break() {
    let house = House::start(Limits::default());
    let (_a, own, b, others) = met(&house, "sort").await;
    let mut first = dial(house.rendezvous.addr, "/v1/relay", Some(&own.granted.pass.0)).await.unwrap();
    let mut second = RelayStream::open(&b.settings, &others.granted.pass).await.unwrap();
    first.send(Message::text("piece")).await.unwrap();
    assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Word("piece".into()));
    first.close(Some(CloseFrame { code: CloseCode::Away, reason: "going away".into() })).await.unwrap();
    let error = within(second.next()).await.expect("this is no end").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
}

/// An end that does not read stops the other, not the rendezvous.
#[tokio::test]
async fn who_does_not_read_stops_who_writes() {
    let house = House::start(Limits::default());
    let (first, mut second) = joined(&house, "sort").await;
    let (mut to, _from) = first.split();
    let piece = bytes(1, 32_768);
    let mut sent = 0_usize;
    let stuck = async {
        loop {
            to.send(Piece::Bytes(piece.clone())).await.unwrap();
            sent += piece.len();
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(2), stuck).await.is_err());
    assert!(sent < 64 << 20, "sockets hold some megabytes, the relay next to nothing: {sent}");
    let held = usize::try_from(house.metric("nearpath_relay_bytes_total")).unwrap();
    assert!(held <= sent, "{held} {sent}");
    let mut read = 0;
    while read < sent {
        let Piece::Bytes(bytes) = within(second.next()).await.unwrap().unwrap() else { panic!("a word") };
        read += bytes.len();
    }
}

/// An end that does nothing for a while, not even answer pings, is there all the same.
#[tokio::test]
async fn who_pauses_is_not_gone() {
    let house = House::start(Limits { silence: Duration::from_millis(150), ..Limits::default() });
    let (mut first, mut second) = joined(&house, "sort").await;
    first.send(Piece::Word("before".into())).await.unwrap();
    eventually("it is there", async || house.metric("nearpath_relay_bytes_total") > 0).await;
    tokio::time::sleep(Duration::from_secs(1)).await; // nobody reads, both are silent
    first.send(Piece::Word("after".into())).await.unwrap();
    for word in ["before", "after"] {
        assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Word(word.into()));
    }
}

#[tokio::test]
async fn an_end_that_comes_alone_is_told_so() {
    let house = House::start(Limits { relay_wait: Duration::from_millis(100), ..Limits::default() });
    let (a, own, ..) = met(&house, "sort").await;
    let mut first = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    let error = within(first.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("did not come"), "{error}");
}

/// An end that was cut while it waited comes again, and is the one that is joined.
#[tokio::test]
async fn who_comes_again_takes_its_own_place() {
    let house = House::start(Limits::default());
    let (a, own, b, others) = met(&house, "sort").await;
    let mut older = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    eventually("it waits", async || house.metric("nearpath_relay_waiting") == 1).await;
    let mut newer = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    assert!(within(older.next()).await.unwrap().is_err(), "the older one is over");
    let mut second = RelayStream::open(&b.settings, &others.granted.pass).await.unwrap();
    newer.send(Piece::Word("here".into())).await.unwrap();
    assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Word("here".into()));
}

#[tokio::test]
async fn a_relay_without_bytes_comes_to_its_end() {
    let relay_idle = Duration::from_millis(200);
    let house = House::start(Limits { relay_idle, silence: Duration::from_millis(300), ..Limits::default() });
    let (first, mut second) = joined(&house, "sort").await;
    tokio::spawn(async move {
        let mut first = first;
        while let Some(Ok(_)) = first.next().await {} // answers when it is asked whether it is there
    });
    let error = within(second.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

/// Four megabytes at sixteen a second take about a quarter of one; a burst of one goes at once.
#[tokio::test]
async fn a_jobs_relays_share_its_rate() {
    let rate = Rate { per_second: 4 << 20, burst: 256 << 10 }; // far below what a busy machine still carries
    let house = House::start(Limits { job_rate: Some(rate), ..Limits::default() });
    let begun = std::time::Instant::now();
    let one = async |name: &str| {
        let (a, b) = (format!("{name}-a"), format!("{name}-b"));
        let (caller, mut called) = (house.worker("sort", &a).await, house.worker("sort", &b).await);
        let own = within(caller.line.call(id(&b), "", SOON)).await.unwrap();
        let others = called.called().await;
        let mut from = RelayStream::open(&caller.settings, &own.granted.pass).await.unwrap();
        let mut to = RelayStream::open(&called.settings, &others.granted.pass).await.unwrap();
        let send = async {
            for at in 0..64 {
                from.send(Piece::Bytes(bytes(at, 32_768))).await.unwrap();
            }
        };
        let hear = async {
            for _ in 0..64 {
                to.next().await.unwrap().unwrap();
            }
        };
        tokio::join!(send, hear);
    };
    within(async { tokio::join!(one("x"), one("y")) }).await;
    assert!(begun.elapsed() >= Duration::from_millis(150), "no rate held it: {:?}", begun.elapsed());
    assert!(house.metric("nearpath_rendezvous_throttled_total") > 0);
}
