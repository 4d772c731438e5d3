//! Beyond the matrix: what is preferred, who is let in, and ways without a relay.

use std::thread;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_p2p::driver::{Ports, Verdict};
use nearpath_p2p::link::{Link, connect};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::punch::session::Role;
use nearpath_testkit::lab::Lab;
use nearpath_testkit::lab::nat::{Kind, Plan};
use nearpath_testkit::need_nat;
use nearpath_types::SpiffeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::matrix::{meet, run_both};
use nearpath_testkit::p2p::exchange::{DEADLINE, settings};
use nearpath_testkit::p2p::introduction::{Watching, introduce, introduce_as, machines, on_a_runtime, side_of};

const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Udp];

fn is_over(verdict: Verdict, wanted: Transport) -> bool {
    matches!(verdict, Verdict::Direct { transport, .. } if transport == wanted)
}

#[test]
fn tcp_is_taken_where_both_work() {
    need_nat!();
    let went = meet([Kind::None, Kind::Firewall], &BOTH);
    assert!(went.iter().all(|went| is_over(went.verdict, Transport::Tcp)), "{went:?}");
}

#[test]
fn without_a_relay_the_direct_way_is_waited_for() {
    need_nat!();
    let pair = Lab::pair(Kind::PortRestricted, Kind::PortRestricted).unwrap();
    let watching = Watching::begin(&pair.internet);
    let went = run_both(&pair, introduce(&watching.observers), [None, None], &BOTH, 1000, &settings());
    let went = went.map(Result::unwrap);
    assert!(went.iter().all(|went| matches!(went.verdict, Verdict::Direct { .. })), "{went:?}");
    assert_eq!((went[0].sent, went[1].sent), (went[1].came, went[0].came));
}

#[test]
fn without_a_relay_and_a_direct_way_the_error_says_so() {
    need_nat!();
    let pair = Lab::pair(Kind::Symmetric, Kind::Symmetric).unwrap();
    let watching = Watching::begin(&pair.internet);
    let went = run_both(&pair, introduce(&watching.observers), [None, None], &BOTH, 1000, &settings());
    let texts = went.map(|went| went.unwrap_err().to_string());
    assert!(texts.iter().all(|text| text.contains("direct way")), "{texts:?}");
}

/// The rendezvous may be mistaken, or lie: certificates decide.
#[test]
fn who_is_of_another_authority_is_no_peer() {
    need_nat!();
    let pair = Lab::pair(Kind::None, Kind::None).unwrap();
    let watching = Watching::begin(&pair.internet);
    let [true_one, other] =
        [0; 2].map(|_| Authority::new("test", SystemTime::now(), Duration::from_secs(3600)).unwrap());
    let ids = ["a", "b"].map(|node| SpiffeId::gateway("test", node));
    for transports in [&[Transport::Tcp], &[Transport::Udp]] {
        let sides = introduce_as(&watching.observers, [&ids[0], &ids[1]], [&true_one, &other]);
        let went = run_both(&pair, sides, [None, None], transports, 1000, &settings());
        assert!(went.iter().all(Result::is_err), "{transports:?} {went:?}");
    }
}

/// One side speaks first: the other one's NAT must let that in.
async fn ping(link: &mut Link, first: bool) {
    if first {
        link.write_all(b"x").await.unwrap();
        link.flush().await.unwrap();
    }
    link.read_exact(&mut [0]).await.unwrap();
    if !first {
        link.write_all(b"x").await.unwrap();
        link.flush().await.unwrap();
    }
}

/// A NAT forgets after twelve seconds; what keeps it from that goes every ten.
#[test]
#[ignore = "takes half a minute: make test-nat"]
fn an_idle_way_over_udp_is_not_forgotten_by_nats() {
    need_nat!();
    let plan = Plan { lifetime: Duration::from_secs(12), ..Kind::PortRestricted.into() };
    let pair = Lab::pair(plan.clone(), plan).unwrap();
    let watching = Watching::begin(&pair.internet);
    thread::scope(|scope| {
        for (node, introduction) in machines(&pair).into_iter().zip(introduce(&watching.observers)) {
            let (leads, side) = (introduction.session.role == Role::Leader, side_of(&introduction));
            let idle = async move {
                let ports = Ports::bind(&[Transport::Udp]).unwrap();
                let mut link = connect(ports, introduction, side, None, settings()).await.unwrap();
                ping(&mut link, leads).await;
                tokio::time::sleep(Duration::from_secs(25)).await;
                ping(&mut link, leads).await;
                link.close().await.unwrap();
            };
            let in_time = async { tokio::time::timeout(DEADLINE, idle).await.expect("nobody hangs") };
            scope.spawn(move || node.enter(|| on_a_runtime(in_time)));
        }
    });
}
