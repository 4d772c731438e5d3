//! Lines: calls, words, reports.

use std::time::Duration;

use nearpath_p2p::control::{CallError, Heard, Line, Over};
use nearpath_p2p::message::{Bye, Refusal, Report};
use nearpath_p2p::punch::agent::Message;
use nearpath_p2p::punch::candidate::Kind;
use nearpath_p2p::punch::{Candidate, Transport};
use nearpath_rendezvous::{Limits, state};
use nearpath_testkit::within;

use nearpath_testkit::p2p::rendezvous::{House, SOON, id, next, now};

#[tokio::test]
async fn two_workers_are_introduced_and_speak() {
    let house = House::start(Limits::default());
    let (a, mut b) = (house.worker("sort", "a").await, house.worker("sort", "b").await);
    let mut own = within(a.line.call(id("b"), "edge 1", SOON)).await.unwrap();
    let mut others = b.called().await;
    assert_eq!((own.granted.session, own.granted.secret), (others.granted.session, others.granted.secret));
    assert_eq!((&own.granted.peer, &others.granted.peer), (&id("b"), &id("a")));
    assert_eq!(others.granted.about, "edge 1");
    let offer = |port| {
        let one = Candidate::new(Kind::Host, Transport::Tcp, ([192, 0, 2, 1], port).into(), 1);
        Message::Offer(vec![one; 3])
    };
    for port in 0..50 {
        own.tell(offer(port));
        others.tell(offer(port));
    }
    for port in 0..50 {
        assert_eq!(within(others.hear()).await, Some(offer(port)));
        assert_eq!(within(own.hear()).await, Some(offer(port)));
    }
    drop(own);
    assert_eq!(within(others.hear()).await, None, "the other side has hung up");
}

#[tokio::test]
async fn who_comes_later_is_waited_for_and_who_does_not_come_is_absent() {
    let house = House::start(Limits::default());
    let a = house.worker("sort", "a").await;
    let late = a.line.call(id("b"), "", SOON);
    let never = a.line.call(id("c"), "", Duration::from_millis(50));
    let (early, mut b) = tokio::join!(never, house.worker("sort", "b"));
    assert_eq!(early.unwrap_err(), CallError::Refused(Refusal::Absent));
    let meeting = within(late).await.unwrap();
    assert_eq!(b.called().await.granted.session, meeting.granted.session);
    let other = house.worker("other", "c").await;
    let strange = within(a.line.call(id("c"), "", Duration::from_millis(50))).await;
    assert_eq!(strange.unwrap_err(), CallError::Refused(Refusal::Absent), "of another job");
    drop(other);
}

#[tokio::test]
async fn reports_reach_the_leader_and_come_back_without_one() {
    let house = House::start(Limits::default());
    let mut a = house.worker("sort", "a").await;
    a.line.report(None, Report::Ready);
    assert!(matches!(a.next().await, Heard::Undelivered { to: None }));
    let mut leader = house.worker("sort", "leader").await;
    let all = [
        Report::Ready,
        Report::Available { output: "part-7".into() },
        Report::Failed { why: "no room".into() },
        Report::Other { body: serde_json::json!({"rows": 12}) },
        Report::Finished,
    ];
    all.iter().for_each(|report| a.line.report(None, report.clone()));
    for said in all {
        let Heard::Report { from, report } = leader.next().await else { panic!("another word") };
        assert_eq!((from, report), (id("a"), said));
    }
    leader.line.report(Some(id("a")), Report::Ready);
    assert!(matches!(a.next().await, Heard::Report { report: Report::Ready, .. }));
}

#[tokio::test]
async fn the_same_worker_twice_is_the_newer_one() {
    let house = House::start(Limits::default());
    let mut first = house.worker("sort", "a").await;
    let _second = house.worker("sort", "a").await;
    assert!(matches!(first.next().await, Heard::Over(Over::Said(Bye::Displaced))));
    let refused = within(first.line.call(id("b"), "", SOON)).await.unwrap_err();
    assert!(matches!(refused, CallError::Over(Over::Said(Bye::Displaced)) | CallError::Closed), "{refused:?}");
}

#[tokio::test]
async fn a_line_ends_with_its_ticket() {
    let house = House::start(Limits::default());
    let (_line, mut heard) = Line::open(house.settings(house.ticket_until("sort", "a", now() + 2)));
    assert!(matches!(next(&mut heard).await, Heard::Here(_)));
    assert!(matches!(next(&mut heard).await, Heard::Over(Over::Said(Bye::Expired))));
}

#[tokio::test]
async fn a_full_rendezvous_says_so_and_the_worker_comes_again() {
    let desk = state::Limits { lines_of_a_job: 1, ..state::Limits::default() };
    let house = House::start(Limits { desk, ..Limits::default() });
    let first = house.worker("sort", "a").await;
    let (_line, mut heard) = Line::open(house.settings(house.ticket("sort", "b")));
    assert!(matches!(next(&mut heard).await, Heard::Here(_)));
    let Heard::Away { why } = next(&mut heard).await else { panic!("it was let in") };
    assert!(why.contains("as many workers"), "{why}");
    drop(first);
    let stays = async {
        loop {
            let here = matches!(next(&mut heard).await, Heard::Here(_));
            if here && tokio::time::timeout(Duration::from_millis(300), heard.recv()).await.is_err() {
                return;
            }
        }
    };
    within(stays).await;
}

#[tokio::test]
async fn nobody_waits_for_ever_for_a_rendezvous_that_is_not_there() {
    let house = House::start(Limits::default());
    let settings = nearpath_p2p::control::Settings {
        place: format!("ws://{}", nearpath_testkit::p2p::rendezvous::free()).parse().unwrap(),
        ..house.settings(house.ticket("sort", "a"))
    };
    let (line, mut heard) = Line::open(settings);
    let Heard::Away { why } = next(&mut heard).await else { panic!("there is somebody") };
    assert!(why.contains("cannot connect to the rendezvous ws://127.0.0.1"), "{why}");
    tokio::spawn(async move { while heard.recv().await.is_some() {} });
    assert_eq!(within(line.call(id("b"), "", Duration::ZERO)).await.unwrap_err(), CallError::Away);
}
