//! All parts at once: tickets, lines, observers and relay of a rendezvous that both sites reach, and the punching between them.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_p2p::control::{self, Heard, Line};
use nearpath_p2p::driver::{Ports, Verdict, Why};
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_p2p::punch::nat::{Behaviour, Report};
use nearpath_testkit::lab::nat::{Family, Kind, Pair, Plan};
use nearpath_testkit::lab::{Lab, Link};
use nearpath_testkit::need_nat;
use nearpath_testkit::p2p::rendezvous::{House, now};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::Trust;
use nearpath_wire::pair;

use nearpath_testkit::p2p::exchange::{self, DEADLINE, Went};
use nearpath_testkit::p2p::introduction::{credentials, machines, on_a_runtime};
use nearpath_testkit::p2p::prediction;

const HOUR: Duration = Duration::from_secs(3600);

fn settings(house: &House, you: &SpiffeId) -> control::Settings {
    house.settings(house.admit("sort", you.clone(), false, now() + 3600))
}

/// One worker, from its ticket to the end. The one that is named `a` calls.
async fn work(settings: control::Settings, me: SpiffeId, peer: SpiffeId, job: &Authority, over: &[Transport]) -> Went {
    let (line, mut heard) = Line::open(settings);
    let meeting = if me.to_string() < peer.to_string() {
        line.call(peer.clone(), "", DEADLINE).await.unwrap()
    } else {
        loop {
            match heard.recv().await.unwrap() {
                Heard::Called(meeting) => break meeting,
                Heard::Here(_) => (),
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::spawn(async move { while heard.recv().await.is_some() {} });
    let trust = Trust::new("test", &[job.certificate().clone()]).unwrap();
    let pair = Arc::new(pair::Pair::new(&credentials(job, &me), &trust, peer).unwrap());
    let link = line.connect(meeting, pair, Ports::bind(over).unwrap(), exchange::settings()).await.unwrap();
    exchange::exchange(link, 100_000, 1).await.unwrap()
}

fn meet(pair: &Pair, over: &[Transport]) -> [Went; 2] {
    let house = House::on(&pair.internet, Family::V4);
    let job = Authority::new("test", SystemTime::now(), HOUR).unwrap();
    let ids = ["a", "b"].map(|name| SpiffeId::gateway("test", name));
    let went = thread::scope(|scope| {
        let threads = [0, 1].map(|at| {
            let (node, settings, job) = (machines(pair)[at], settings(&house, &ids[at]), &job);
            let (me, peer) = (ids[at].clone(), ids[1 - at].clone());
            let working = async move {
                tokio::time::timeout(DEADLINE, work(settings, me, peer, job, over)).await.expect("nobody hangs")
            };
            scope.spawn(move || node.enter(|| on_a_runtime(working)))
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!((went[0].sent, went[1].sent), (went[1].came, went[0].came));
    went
}

fn over(went: [Went; 2]) -> [Option<Transport>; 2] {
    went.map(|went| match went.verdict {
        Verdict::Direct { transport, .. } => Some(transport),
        _ => None,
    })
}

#[test]
fn from_tickets_to_a_direct_way() {
    need_nat!();
    let pair = Lab::pair(Kind::PortRestricted, Kind::Double).unwrap();
    assert_eq!(over(meet(&pair, &[Tcp, Udp])), [Some(Tcp); 2]);
}

#[test]
fn from_tickets_to_a_direct_way_over_udp_far_away_where_packets_are_lost() {
    need_nat!();
    let line = Link { delay: Duration::from_millis(20), loss: 0.01, seed: 9, ..Link::default() };
    let plan = |kind: Kind| Plan { line: line.clone(), ..kind.into() };
    let pair = Lab::pair(plan(Kind::Symmetric), plan(Kind::Restricted)).unwrap();
    assert_eq!(over(meet(&pair, &[Udp])), [Some(Udp); 2]);
}

#[test]
fn from_tickets_to_the_relay() {
    need_nat!();
    let pair = Lab::pair(Kind::Symmetric, Kind::PortRestricted).unwrap();
    let verdicts = meet(&pair, &[Tcp, Udp]).map(|went| went.verdict);
    let settled = |verdict: &Verdict| matches!(verdict, Verdict::Relayed(Why::NoPath | Why::PeerGaveUp));
    assert!(verdicts.iter().all(settled), "{verdicts:?}");
}

/// What the rendezvous tells a machine of that site.
fn told(kind: Kind, hairpin: bool) -> Report {
    let pair = Lab::pair(Plan { hairpin, ..kind.into() }, Kind::None).unwrap();
    let house = House::on(&pair.internet, Family::V4);
    let settings = settings(&house, &SpiffeId::gateway("test", "a"));
    machines(&pair)[0].enter(|| {
        on_a_runtime(async {
            let (line, mut heard) = Line::open(settings);
            tokio::spawn(async move { while heard.recv().await.is_some() {} });
            tokio::time::timeout(DEADLINE, line.nat()).await.expect("nobody hangs").unwrap()
        })
    })
}

macro_rules! kind_is_told {
    ($($name:ident: $kind:ident, $hairpin:literal;)*) => {
        $(#[test]
        fn $name() {
            need_nat!();
            let there = prediction::behaviour(Kind::$kind, Family::V4).unwrap();
            let told = told(Kind::$kind, $hairpin).behaviour().unwrap();
            let kind = |one: Behaviour| (one.translates, one.mapping, one.filtering, one.udp);
            assert_eq!(kind(told), kind(there));
            assert_eq!(told.hairpins, $hairpin || !there.translates);
        })*
    };
}

kind_is_told! {
    no_nat_is_told: None, false;
    a_full_cone_is_told: FullCone, false;
    a_restricted_cone_is_told: Restricted, false;
    a_port_restricted_cone_that_turns_packets_around_is_told: PortRestricted, true;
    a_symmetric_nat_is_told: Symmetric, false;
    a_double_nat_is_told: Double, false;
    a_firewall_is_told: Firewall, false;
}

#[test]
fn udp_that_is_blocked_is_told() {
    need_nat!();
    let told = told(Kind::UdpBlocked, false);
    assert_eq!((told.udp, told.reflexive), (Some(false), None));
}
