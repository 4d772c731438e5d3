//! Beyond the matrix: preferences, authentication, and links without a relay.

use std::thread;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_p2p::driver::{LocalPorts, SearchOutcome};
use nearpath_p2p::link::{P2pLink, connect_link};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::punch::session::SessionRole;
use nearpath_testkit::lab::NetworkLab;
use nearpath_testkit::lab::nat::{NatKind, NatPlan};
use nearpath_testkit::need_nat;
use nearpath_types::SpiffeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::matrix::{connect_both, run_both};
use nearpath_testkit::p2p::exchange::{EXCHANGE_TIMEOUT, migration_settings};
use nearpath_testkit::p2p::introduction::{
    LabObservers, block_on, introduce_as, introduce_pair, pair_machines, side_of,
};

const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Udp];

fn is_direct_over(verdict: SearchOutcome, wanted: Transport) -> bool {
    matches!(verdict, SearchOutcome::Direct { transport, .. } if transport == wanted)
}

#[test]
fn tcp_is_preferred_where_both_transports_work() {
    need_nat!();
    let went = connect_both([NatKind::None, NatKind::Firewall], &BOTH);
    assert!(
        went.iter()
            .all(|went| is_direct_over(went.verdict, Transport::Tcp)),
        "{went:?}"
    );
}

#[test]
fn without_a_relay_writes_wait_for_the_direct_connection() {
    need_nat!();
    let pair = NetworkLab::nat_pair(NatKind::PortRestricted, NatKind::PortRestricted).unwrap();
    let watching = LabObservers::start(&pair.internet);
    let went = run_both(
        &pair,
        introduce_pair(&watching.observers),
        [None, None],
        &BOTH,
        1000,
        &migration_settings(),
    );
    let went = went.map(Result::unwrap);
    assert!(
        went.iter()
            .all(|went| matches!(went.verdict, SearchOutcome::Direct { .. })),
        "{went:?}"
    );
    assert_eq!(
        (went[0].sent, went[1].sent),
        (went[1].received, went[0].received)
    );
}

#[test]
fn without_a_relay_and_direct_connection_linking_fails() {
    need_nat!();
    let pair = NetworkLab::nat_pair(NatKind::Symmetric, NatKind::Symmetric).unwrap();
    let watching = LabObservers::start(&pair.internet);
    let went = run_both(
        &pair,
        introduce_pair(&watching.observers),
        [None, None],
        &BOTH,
        1000,
        &migration_settings(),
    );
    let texts = went.map(|went| went.unwrap_err().to_string());
    assert!(
        texts.iter().all(|text| text.contains("direct connection")),
        "{texts:?}"
    );
}

/// The rendezvous may be wrong or malicious: certificates decide.
#[test]
fn a_peer_of_another_authority_is_rejected() {
    need_nat!();
    let pair = NetworkLab::nat_pair(NatKind::None, NatKind::None).unwrap();
    let watching = LabObservers::start(&pair.internet);
    let [true_one, other] = [0; 2]
        .map(|_| Authority::new("test", SystemTime::now(), Duration::from_secs(3600)).unwrap());
    let ids = ["a", "b"].map(|node| SpiffeId::for_gateway("test", node));
    for transports in [&[Transport::Tcp], &[Transport::Udp]] {
        let sides = introduce_as(&watching.observers, [&ids[0], &ids[1]], [&true_one, &other]);
        let went = run_both(
            &pair,
            sides,
            [None, None],
            transports,
            1000,
            &migration_settings(),
        );
        assert!(went.iter().all(Result::is_err), "{transports:?} {went:?}");
    }
}

/// Sends a byte from one side first: the other side's NAT must admit it.
async fn send_byte(link: &mut P2pLink, first: bool) {
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

/// The NAT forgets after twelve seconds; keepalives go every ten.
#[test]
#[ignore = "takes half a minute: make test-nat"]
fn an_idle_udp_connection_keeps_its_nat_mapping() {
    need_nat!();
    let plan = NatPlan {
        lifetime: Duration::from_secs(12),
        ..NatKind::PortRestricted.into()
    };
    let pair = NetworkLab::nat_pair(plan.clone(), plan).unwrap();
    let watching = LabObservers::start(&pair.internet);
    thread::scope(|scope| {
        for (node, introduction) in pair_machines(&pair)
            .into_iter()
            .zip(introduce_pair(&watching.observers))
        {
            let (leads, side) = (
                introduction.session.role == SessionRole::Leader,
                side_of(&introduction),
            );
            let idle = async move {
                let ports = LocalPorts::bind(&[Transport::Udp]).unwrap();
                let mut link = connect_link(ports, introduction, side, None, migration_settings())
                    .await
                    .unwrap();
                send_byte(&mut link, leads).await;
                tokio::time::sleep(Duration::from_secs(25)).await; // twice the NAT's lifetime
                send_byte(&mut link, leads).await;
                link.close().await.unwrap();
            };
            let in_time = async {
                tokio::time::timeout(EXCHANGE_TIMEOUT, idle)
                    .await
                    .expect("nobody hangs")
            };
            scope.spawn(move || node.enter(|| block_on(in_time)));
        }
    });
}
