//! The end of a rendezvous, and its beginning anew.

use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{Heard, RelayStream};
use nearpath_p2p::migrate::Piece;
use nearpath_rendezvous::Limits;
use nearpath_testkit::{eventually, within};

use nearpath_testkit::p2p::rendezvous::{House, SOON, free, id};

#[tokio::test]
async fn a_drain_tells_lines_and_waits_for_relays() {
    let mut house = House::start(Limits::default());
    let (mut a, mut b) = (house.worker("sort", "a").await, house.worker("sort", "b").await);
    let own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let others = b.called().await;
    let mut first = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    let mut second = RelayStream::open(&b.settings, &others.granted.pass).await.unwrap();
    eventually("they are joined", async || house.metric("nearpath_relay_open") == 1).await;
    let drained = tokio::spawn(house.drain());
    let Heard::Away { why } = a.next().await else { panic!("no word of it") };
    assert!(why.contains("going down"), "{why}");
    for _ in 0..3 {
        first.send(Piece::Word("still".into())).await.unwrap();
        assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Word("still".into()));
    }
    assert!(!drained.is_finished(), "a relay is open");
    first.close().await.unwrap();
    assert!(within(second.next()).await.is_none());
    within(drained).await.unwrap();
}

/// Killed and started anew at the same place, with the same key: lines come back by themselves, calls that waited are
/// made again, passes of before open relays, and words about sessions of before are answered.
#[tokio::test]
async fn after_a_restart_everybody_goes_on() {
    let addr = free();
    let house = House::start_at(addr, Limits::default());
    let (mut a, mut b) = (house.worker("sort", "a").await, house.worker("sort", "b").await);
    let mut own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let others = b.called().await;
    let waiting = tokio::spawn({
        let line = a.line.clone();
        async move { line.call(id("c"), "", SOON).await }
    });
    eventually("it waits", async || house.metric("nearpath_rendezvous_waiting") == 1).await;
    drop(house);
    assert!(matches!(a.next().await, Heard::Away { .. }));
    let house = House::start_at(addr, Limits::default());
    eventually("both are back", async || house.metric("nearpath_rendezvous_lines") == 2).await;
    let mut c = house.worker("sort", "c").await;
    let meeting = within(waiting).await.unwrap().unwrap();
    assert_eq!(c.called().await.granted.session, meeting.granted.session);
    own.tell(nearpath_p2p::punch::agent::Message::Relay);
    assert_eq!(within(own.hear()).await, None, "the session of before is not known");
    let mut first = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    let mut second = RelayStream::open(&b.settings, &others.granted.pass).await.unwrap();
    first.send(Piece::Word("again".into())).await.unwrap();
    assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Word("again".into()));
}
