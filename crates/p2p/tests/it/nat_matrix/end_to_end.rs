//! Everything together: tickets, control connections, observers and relay of a rendezvous, and
//! punching between two sites.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_p2p::control::{self, ControlConnection, ControlEvent};
use nearpath_p2p::driver::{LocalPorts, RelayReason, SearchOutcome};
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_p2p::punch::nat::{NatBehaviour, NatReport};
use nearpath_testkit::lab::nat::{IpFamily, NatKind, NatPair, NatPlan};
use nearpath_testkit::lab::{LinkConditions, NetworkLab};
use nearpath_testkit::need_nat;
use nearpath_testkit::p2p::rendezvous::{TestRendezvous, unix_seconds};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::Trust;
use nearpath_wire::p2p_tls;

use nearpath_testkit::p2p::exchange::{self, EXCHANGE_TIMEOUT, ExchangeResult};
use nearpath_testkit::p2p::introduction::{block_on, credentials, pair_machines};
use nearpath_testkit::p2p::prediction;

const HOUR: Duration = Duration::from_secs(3600);

fn settings(fixture: &TestRendezvous, you: &SpiffeId) -> control::ControlSettings {
    fixture.control_settings(fixture.issue_ticket(
        "sort",
        you.clone(),
        false,
        unix_seconds() + 3600,
    ))
}

/// Runs a worker from its ticket to its end. The one named `a` calls.
async fn run_worker(
    settings: control::ControlSettings,
    me: SpiffeId,
    peer: SpiffeId,
    job: &Authority,
    over: &[Transport],
) -> ExchangeResult {
    let (connection, mut events) = ControlConnection::open(settings);
    let session = if me.to_string() < peer.to_string() {
        connection
            .call(peer.clone(), "", EXCHANGE_TIMEOUT)
            .await
            .unwrap()
    } else {
        loop {
            match events.recv().await.unwrap() {
                ControlEvent::IncomingCall(session) => break session,
                ControlEvent::Connected(_) => (),
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let trust = Trust::new("test", &[job.certificate().clone()]).unwrap();
    let pair = Arc::new(p2p_tls::PeerTlsConfig::new(&credentials(job, &me), &trust, peer).unwrap());
    let link = connection
        .connect(
            session,
            pair,
            LocalPorts::bind(over).unwrap(),
            exchange::migration_settings(),
        )
        .await
        .unwrap();
    exchange::exchange_bytes(link, 100_000, 1).await.unwrap()
}

fn connect_both(pair: &NatPair, over: &[Transport]) -> [ExchangeResult; 2] {
    let fixture = TestRendezvous::start_on(&pair.internet, IpFamily::V4);
    let job = Authority::new("test", SystemTime::now(), HOUR).unwrap();
    let ids = ["a", "b"].map(|name| SpiffeId::for_gateway("test", name));
    let went = thread::scope(|scope| {
        let threads = [0, 1].map(|at| {
            let (node, settings, job) =
                (pair_machines(pair)[at], settings(&fixture, &ids[at]), &job);
            let (me, peer) = (ids[at].clone(), ids[1 - at].clone());
            let working = async move {
                tokio::time::timeout(EXCHANGE_TIMEOUT, run_worker(settings, me, peer, job, over))
                    .await
                    .expect("nobody hangs")
            };
            scope.spawn(move || node.enter(|| block_on(working)))
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(
        (went[0].sent, went[1].sent),
        (went[1].received, went[0].received)
    );
    went
}

fn transports_of(went: [ExchangeResult; 2]) -> [Option<Transport>; 2] {
    went.map(|went| match went.verdict {
        SearchOutcome::Direct { transport, .. } => Some(transport),
        _ => None,
    })
}

#[test]
fn two_workers_with_tickets_connect_directly() {
    need_nat!();
    let pair = NetworkLab::nat_pair(NatKind::PortRestricted, NatKind::Double).unwrap();
    // On a busy machine UDP may overtake TCP.
    let [one, other] = transports_of(connect_both(&pair, &[Tcp, Udp]));
    assert!(one.is_some() && one == other, "{one:?} {other:?}");
}

#[test]
fn two_workers_with_tickets_connect_over_lossy_udp() {
    need_nat!();
    let conditions = LinkConditions {
        delay: Duration::from_millis(20),
        loss: 0.01,
        seed: 9,
        ..LinkConditions::default()
    };
    let plan = |kind: NatKind| NatPlan {
        conditions: conditions.clone(),
        ..kind.into()
    };
    let pair = NetworkLab::nat_pair(plan(NatKind::Symmetric), plan(NatKind::Restricted)).unwrap();
    assert_eq!(transports_of(connect_both(&pair, &[Udp])), [Some(Udp); 2]);
}

#[test]
fn two_workers_with_tickets_fall_back_to_the_relay() {
    need_nat!();
    let pair = NetworkLab::nat_pair(NatKind::Symmetric, NatKind::PortRestricted).unwrap();
    let outcomes = connect_both(&pair, &[Tcp, Udp]).map(|went| went.verdict);
    let settled = |verdict: &SearchOutcome| {
        matches!(
            verdict,
            SearchOutcome::Relayed(RelayReason::NoPath | RelayReason::PeerGaveUp)
        )
    };
    assert!(outcomes.iter().all(settled), "{outcomes:?}");
}

/// Returns the NAT report of a machine at that site.
fn report(kind: NatKind, hairpin: bool) -> NatReport {
    let pair = NetworkLab::nat_pair(
        NatPlan {
            hairpin,
            ..kind.into()
        },
        NatKind::None,
    )
    .unwrap();
    let fixture = TestRendezvous::start_on(&pair.internet, IpFamily::V4);
    let settings = settings(&fixture, &SpiffeId::for_gateway("test", "a"));
    pair_machines(&pair)[0].enter(|| {
        block_on(async {
            let (connection, mut events) = ControlConnection::open(settings);
            tokio::spawn(async move { while events.recv().await.is_some() {} });
            tokio::time::timeout(EXCHANGE_TIMEOUT, connection.detect_nat())
                .await
                .expect("nobody hangs")
                .unwrap()
        })
    })
}

macro_rules! detection_tests {
    ($($name:ident: $kind:ident, $hairpin:literal;)*) => {
        $(#[test]
        fn $name() {
            need_nat!();
            let there = prediction::nat_behaviour(NatKind::$kind, IpFamily::V4).unwrap();
            let report = report(NatKind::$kind, $hairpin).behaviour().unwrap();
            let kind = |one: NatBehaviour| (one.translates, one.mapping, one.filtering, one.udp);
            assert_eq!(kind(report), kind(there));
            assert_eq!(report.hairpins, $hairpin || !there.translates);
        })*
    };
}

detection_tests! {
    no_nat_is_detected: None, false;
    a_full_cone_is_detected: FullCone, false;
    a_restricted_cone_is_detected: Restricted, false;
    a_port_restricted_cone_that_turns_packets_around_is_detected: PortRestricted, true;
    a_masquerade_is_detected: Masquerade, false;
    a_symmetric_nat_is_detected: Symmetric, false;
    a_double_nat_is_detected: Double, false;
    a_firewall_is_detected: Firewall, false;
}

#[test]
fn blocked_udp_is_reported() {
    need_nat!();
    let report = report(NatKind::UdpBlocked, false);
    assert_eq!((report.udp, report.reflexive), (Some(false), None));
}
