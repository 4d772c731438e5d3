//! Shutdown and restart of a rendezvous.

use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{ControlEvent, RelayStream};
use nearpath_p2p::migrate::StreamFrame;
use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::{eventually, within};

use nearpath_testkit::p2p::rendezvous::{RENDEZVOUS_TIMEOUT, TestRendezvous, free_port, worker_id};

#[tokio::test]
async fn a_drain_closes_control_connections_and_waits_for_relays() {
    let mut fixture = TestRendezvous::start(RendezvousLimits::default());
    let (mut a, mut b) = (
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    );
    let own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let others = b.next_call().await;
    let mut first = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    let mut second = RelayStream::open(&b.settings, &others.grant.relay_token)
        .await
        .unwrap();
    eventually("they are joined", async || {
        fixture.metric_value("nearpath_relay_open") == 1
    })
    .await;
    let drained = tokio::spawn(fixture.drain());
    let ControlEvent::Disconnected { why } = a.next_event().await else {
        panic!("no event of the shutdown")
    };
    assert!(why.contains("shutting down"), "{why}");
    for _ in 0..3 {
        first.send(StreamFrame::Text("still".into())).await.unwrap();
        assert_eq!(
            within(second.next()).await.unwrap().unwrap(),
            StreamFrame::Text("still".into())
        );
    }
    assert!(!drained.is_finished(), "a relay is open");
    first.close().await.unwrap();
    assert!(within(second.next()).await.is_none());
    within(drained).await.unwrap();
}

/// Restarted at the same address with the same key: workers reconnect, waiting calls are repeated,
/// earlier relay tokens are accepted, and messages of earlier sessions are answered.
#[tokio::test]
async fn after_a_restart_workers_reconnect_and_calls_are_repeated() {
    let addr = free_port();
    let fixture = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let (mut a, mut b) = (
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    );
    let mut own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let others = b.next_call().await;
    let waiting = tokio::spawn({
        let connection = a.connection.clone();
        async move {
            connection
                .call(worker_id("c"), "", RENDEZVOUS_TIMEOUT)
                .await
        }
    });
    eventually("it waits", async || {
        fixture.metric_value("nearpath_rendezvous_waiting") == 1
    })
    .await;
    drop(fixture);
    assert!(matches!(
        a.next_event().await,
        ControlEvent::Disconnected { .. }
    ));
    let fixture = TestRendezvous::start_at(addr, RendezvousLimits::default());
    eventually("both are back", async || {
        fixture.metric_value("nearpath_rendezvous_control_connections") == 2
    })
    .await;
    let mut c = fixture.connect_worker("sort", "c").await;
    let session = within(waiting).await.unwrap().unwrap();
    assert_eq!(c.next_call().await.grant.session, session.grant.session);
    own.send_message(nearpath_p2p::punch::agent::PunchMessage::FallBack);
    assert_eq!(
        within(own.next_message()).await,
        None,
        "the session of before is not known"
    );
    let mut first = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    let mut second = RelayStream::open(&b.settings, &others.grant.relay_token)
        .await
        .unwrap();
    first.send(StreamFrame::Text("again".into())).await.unwrap();
    assert_eq!(
        within(second.next()).await.unwrap().unwrap(),
        StreamFrame::Text("again".into())
    );
}
