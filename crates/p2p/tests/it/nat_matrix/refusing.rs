//! Routers that refuse packets of strangers with an RST or an ICMP error, and keep no flow of them.

use nearpath_p2p::driver::SearchOutcome;
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_testkit::lab::NetworkLab;
use nearpath_testkit::lab::nat::{NatKind, NatPlan};
use nearpath_testkit::need_nat;
use nearpath_testkit::p2p::introduction::LabObservers;

use super::matrix::{connect_both_on, search_settings};

fn assert_direct(kinds: [NatKind; 2], transport: Transport) {
    let [first, second] = kinds.map(|kind| NatPlan {
        refuses_packets: true,
        ..kind.into()
    });
    let pair = NetworkLab::nat_pair(first, second).unwrap();
    let watching = LabObservers::start(&pair.internet);
    let went = connect_both_on(
        &pair,
        &watching,
        &[transport],
        10_000,
        &search_settings(true),
    );
    let is_direct = |verdict| matches!(verdict, SearchOutcome::Direct { .. });
    assert!(went.iter().all(|went| is_direct(went.verdict)), "{went:?}");
}

macro_rules! refusing {
    ($($name:ident: $transport:ident, $first:ident, $second:ident;)*) => {
        $(#[test]
        fn $name() {
            need_nat!();
            assert_direct([NatKind::$first, NatKind::$second], $transport);
        })*
    };
}

refusing! {
    tcp_port_restricted_meets_port_restricted: Tcp, PortRestricted, PortRestricted;
    udp_port_restricted_meets_port_restricted: Udp, PortRestricted, PortRestricted;
    tcp_firewall_meets_masquerade: Tcp, Firewall, Masquerade;
    tcp_v6_only_meets_v6_only: Tcp, V6Only, V6Only;
    udp_v6_only_meets_v6_only: Udp, V6Only, V6Only;
}
