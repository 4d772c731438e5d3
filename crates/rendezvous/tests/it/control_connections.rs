//! Control connections: calls, messages, reports.

use std::time::Duration;

use nearpath_p2p::control::{ControlConnection, ControlEnd, ControlEvent, PeerCallError};
use nearpath_p2p::message::{CallRefusal, CloseReason, JobReport};
use nearpath_p2p::punch::agent::PunchMessage;
use nearpath_p2p::punch::candidate::CandidateKind;
use nearpath_p2p::punch::{Candidate, Transport};
use nearpath_rendezvous::{RendezvousLimits, state};
use nearpath_testkit::within;

use nearpath_testkit::p2p::rendezvous::{
    RENDEZVOUS_TIMEOUT, TestRendezvous, next_event, unix_seconds, worker_id,
};

#[tokio::test]
async fn two_workers_are_introduced_and_exchange_messages() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (a, mut b) = (
        fixture.connect_worker("sort", "a").await,
        fixture.connect_worker("sort", "b").await,
    );
    let mut own = within(
        a.connection
            .call(worker_id("b"), "edge 1", RENDEZVOUS_TIMEOUT),
    )
    .await
    .unwrap();
    let mut others = b.next_call().await;
    assert_eq!(
        (own.grant.session, own.grant.secret),
        (others.grant.session, others.grant.secret)
    );
    assert_eq!(
        (&own.grant.peer, &others.grant.peer),
        (&worker_id("b"), &worker_id("a"))
    );
    assert_eq!(others.grant.about, "edge 1");
    let offer = |port| {
        let one = Candidate::new(
            CandidateKind::Host,
            Transport::Tcp,
            ([192, 0, 2, 1], port).into(),
            1,
        );
        PunchMessage::Offer(vec![one; 3])
    };
    for port in 0..50 {
        own.send_message(offer(port));
        others.send_message(offer(port));
    }
    for port in 0..50 {
        assert_eq!(within(others.next_message()).await, Some(offer(port)));
        assert_eq!(within(own.next_message()).await, Some(offer(port)));
    }
    drop(own);
    assert_eq!(
        within(others.next_message()).await,
        None,
        "the other side has hung up"
    );
}

#[tokio::test]
async fn a_late_peer_is_waited_for_and_a_missing_peer_is_absent() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let a = fixture.connect_worker("sort", "a").await;
    let late = a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT);
    let never = a
        .connection
        .call(worker_id("c"), "", Duration::from_millis(50));
    let (early, mut b) = tokio::join!(never, fixture.connect_worker("sort", "b"));
    assert_eq!(
        early.unwrap_err(),
        PeerCallError::Refused(CallRefusal::Absent)
    );
    let session = within(late).await.unwrap();
    assert_eq!(b.next_call().await.grant.session, session.grant.session);
    let other = fixture.connect_worker("other", "c").await;
    let strange = within(
        a.connection
            .call(worker_id("c"), "", Duration::from_millis(50)),
    )
    .await;
    assert_eq!(
        strange.unwrap_err(),
        PeerCallError::Refused(CallRefusal::Absent),
        "of another job"
    );
    drop(other);
}

#[tokio::test]
async fn reports_reach_the_leader_and_come_back_without_one() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let mut a = fixture.connect_worker("sort", "a").await;
    a.connection.send_report(None, JobReport::Ready);
    assert!(matches!(
        a.next_event().await,
        ControlEvent::Undelivered { to: None }
    ));
    let mut leader = fixture.connect_worker("sort", "leader").await;
    let all = [
        JobReport::Ready,
        JobReport::Available {
            output: "part-7".into(),
        },
        JobReport::Failed {
            reason: "no room".into(),
        },
        JobReport::Other {
            body: serde_json::json!({"rows": 12}),
        },
        JobReport::Finished,
    ];
    all.iter()
        .for_each(|report| a.connection.send_report(None, report.clone()));
    for sent in all {
        let ControlEvent::Report { from, report } = leader.next_event().await else {
            panic!("another event")
        };
        assert_eq!((from, report), (worker_id("a"), sent));
    }
    leader
        .connection
        .send_report(Some(worker_id("a")), JobReport::Ready);
    assert!(matches!(
        a.next_event().await,
        ControlEvent::Report {
            report: JobReport::Ready,
            ..
        }
    ));
}

#[tokio::test]
async fn a_second_connection_of_a_worker_displaces_the_first() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let mut first = fixture.connect_worker("sort", "a").await;
    let _second = fixture.connect_worker("sort", "a").await;
    assert!(matches!(
        first.next_event().await,
        ControlEvent::Ended(ControlEnd::ClosedByRendezvous(CloseReason::Displaced))
    ));
    let refused = within(
        first
            .connection
            .call(worker_id("b"), "", RENDEZVOUS_TIMEOUT),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(
            refused,
            PeerCallError::Ended(ControlEnd::ClosedByRendezvous(CloseReason::Displaced))
                | PeerCallError::Closed
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_control_connection_ends_with_its_ticket() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let (_connection, mut events) = ControlConnection::open(
        fixture.control_settings(fixture.ticket_until("sort", "a", unix_seconds() + 2)),
    );
    assert!(matches!(
        next_event(&mut events).await,
        ControlEvent::Connected(_)
    ));
    assert!(matches!(
        next_event(&mut events).await,
        ControlEvent::Ended(ControlEnd::ClosedByRendezvous(CloseReason::Expired))
    ));
}

#[tokio::test]
async fn a_worker_refused_by_a_full_rendezvous_reconnects() {
    let state = state::StateLimits {
        max_job_connections: 1,
        ..state::StateLimits::default()
    };
    let fixture = TestRendezvous::start(RendezvousLimits {
        state,
        ..RendezvousLimits::default()
    });
    let first = fixture.connect_worker("sort", "a").await;
    let (_connection, mut events) =
        ControlConnection::open(fixture.control_settings(fixture.ticket("sort", "b")));
    assert!(matches!(
        next_event(&mut events).await,
        ControlEvent::Connected(_)
    ));
    let ControlEvent::Disconnected { why } = next_event(&mut events).await else {
        panic!("it was let in")
    };
    assert!(why.contains("as many workers"), "{why}");
    drop(first);
    let stays_connected = async {
        loop {
            let connected = matches!(next_event(&mut events).await, ControlEvent::Connected(_));
            if connected
                && tokio::time::timeout(Duration::from_millis(300), events.recv())
                    .await
                    .is_err()
            {
                return;
            }
        }
    };
    within(stays_connected).await;
}

#[tokio::test]
async fn a_call_to_an_unreachable_rendezvous_times_out() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let settings = nearpath_p2p::control::ControlSettings {
        url: format!("ws://{}", nearpath_testkit::p2p::rendezvous::free_port())
            .parse()
            .unwrap(),
        ..fixture.control_settings(fixture.ticket("sort", "a"))
    };
    let (connection, mut events) = ControlConnection::open(settings);
    let ControlEvent::Disconnected { why } = next_event(&mut events).await else {
        panic!("there is somebody")
    };
    assert!(
        why.contains("cannot connect to the rendezvous ws://127.0.0.1"),
        "{why}"
    );
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    assert_eq!(
        within(connection.call(worker_id("b"), "", Duration::ZERO))
            .await
            .unwrap_err(),
        PeerCallError::Unreachable
    );
}
