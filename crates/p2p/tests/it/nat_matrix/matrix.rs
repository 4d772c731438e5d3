//! Every kind of NAT against every kind, over each transport alone.

use std::time::Duration;

use nearpath_p2p::driver::{DriverSettings, PeerIntroduction, SearchOutcome};
use nearpath_p2p::migrate::{RelayConnection, StreamPath, StreamPaths, memory_relays};
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_testkit::lab::NetworkLab;
use nearpath_testkit::lab::nat::{NatKind, NatPair};
use nearpath_testkit::need_nat;

use nearpath_testkit::p2p::exchange::{self, ExchangeResult, migration_settings};
use nearpath_testkit::p2p::introduction::{LabObservers, block_on, introduce_pair, pair_machines};
use nearpath_testkit::p2p::prediction;

/// Frames that the relay holds.
const RELAY_CAPACITY: usize = 8;
/// Bytes written after the path was found.
const PAYLOAD_BYTES: usize = 1 << 20;
/// Limit of a search that finds a path, on a busy machine. It ends with the path.
const DIRECT_SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs both sides, each on its machine, to their ends.
pub(crate) fn run_both(
    pair: &NatPair,
    introductions: [PeerIntroduction; 2],
    relays: [Option<Box<dyn RelayConnection>>; 2],
    transports: &[Transport],
    payload: usize,
    settings: &DriverSettings,
) -> [std::io::Result<ExchangeResult>; 2] {
    let sides = pair_machines(pair)
        .into_iter()
        .zip(introductions)
        .zip(relays);
    let mut went = std::thread::scope(|scope| {
        let threads: Vec<_> = sides
            .map(|((node, introduction), relay)| {
                let side = move || {
                    block_on(exchange::run_exchange(
                        introduction,
                        relay,
                        transports,
                        payload,
                        settings.clone(),
                    ))
                };
                scope.spawn(move || node.enter(side))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
            .into_iter()
    });
    [went.next().unwrap(), went.next().unwrap()]
}

/// Settings of a search of which it is known whether it finds a path. One that finds none takes its whole time.
pub(crate) fn search_settings(finds_path: bool) -> DriverSettings {
    let mut settings = migration_settings();
    if finds_path {
        settings.agent.search_timeout = DIRECT_SEARCH_TIMEOUT;
    }
    settings
}

/// Connects two workers behind such NATs, with a relay; every byte of both arrives.
pub(crate) fn connect_both(kinds: [NatKind; 2], transports: &[Transport]) -> [ExchangeResult; 2] {
    let pair = NetworkLab::nat_pair(kinds[0], kinds[1]).unwrap();
    let is_permitted = |transport: &Transport| prediction::permits_direct(kinds, *transport);
    connect_both_on(
        &pair,
        &LabObservers::start(&pair.internet),
        transports,
        PAYLOAD_BYTES,
        &search_settings(transports.iter().any(is_permitted)),
    )
}

/// Connects them on an existing internet.
pub(crate) fn connect_both_on(
    pair: &NatPair,
    watching: &LabObservers,
    transports: &[Transport],
    payload: usize,
    settings: &DriverSettings,
) -> [ExchangeResult; 2] {
    let (near, far) = memory_relays(RELAY_CAPACITY);
    let relays: [Option<Box<dyn RelayConnection>>; 2] = [Some(Box::new(near)), Some(Box::new(far))];
    let went = run_both(
        pair,
        introduce_pair(&watching.observers),
        relays,
        transports,
        payload,
        settings,
    );
    let went = went.map(|went| went.unwrap());
    assert_eq!(
        (went[0].sent, went[1].sent),
        (went[1].received, went[0].received)
    );
    went
}

fn assert_meets_as_predicted(kinds: [NatKind; 2], transport: Transport) {
    let went = connect_both(kinds, &[transport]);
    let permitted = prediction::permits_direct(kinds, transport);
    let path = if permitted {
        StreamPath::Direct
    } else {
        StreamPath::Relay
    };
    for went in went {
        let as_permitted = match went.verdict {
            SearchOutcome::Direct {
                transport: over, ..
            } => permitted && over == transport,
            SearchOutcome::Relayed(_) => !permitted,
            SearchOutcome::NotNeeded | SearchOutcome::Searching | SearchOutcome::Failed(_) => false,
        };
        assert!(as_permitted, "theory permits it: {permitted}; {went:?}");
        assert_eq!(
            went.migration_points,
            StreamPaths {
                outgoing: path,
                incoming: path
            }
        );
    }
}

/// One test per pair; those marked `whole` run with `make test-nat` only.
macro_rules! pair {
    ($name:ident, $transport:ident, $first:ident, $second:ident $(, $whole:ident)?) => {
        #[test]
        $(#[ignore = concat!(stringify!($whole), " matrix: make test-nat")])?
        fn $name() {
            need_nat!();
            assert_meets_as_predicted([NatKind::$first, NatKind::$second], $transport);
        }
    };
}

pair!(tcp_none_meets_none, Tcp, None, None, whole);
pair!(tcp_none_meets_full_cone, Tcp, None, FullCone, whole);
pair!(tcp_none_meets_restricted, Tcp, None, Restricted, whole);
pair!(
    tcp_none_meets_port_restricted,
    Tcp,
    None,
    PortRestricted,
    whole
);
pair!(tcp_none_meets_symmetric, Tcp, None, Symmetric);
pair!(tcp_none_meets_double, Tcp, None, Double, whole);
pair!(tcp_none_meets_firewall, Tcp, None, Firewall, whole);
pair!(tcp_none_meets_udp_blocked, Tcp, None, UdpBlocked, whole);
pair!(tcp_none_meets_v6_only, Tcp, None, V6Only, whole);
pair!(tcp_none_meets_dual_stack, Tcp, None, DualStack, whole);
pair!(
    tcp_full_cone_meets_full_cone,
    Tcp,
    FullCone,
    FullCone,
    whole
);
pair!(
    tcp_full_cone_meets_restricted,
    Tcp,
    FullCone,
    Restricted,
    whole
);
pair!(
    tcp_full_cone_meets_port_restricted,
    Tcp,
    FullCone,
    PortRestricted,
    whole
);
pair!(tcp_full_cone_meets_symmetric, Tcp, FullCone, Symmetric);
pair!(tcp_full_cone_meets_double, Tcp, FullCone, Double, whole);
pair!(tcp_full_cone_meets_firewall, Tcp, FullCone, Firewall, whole);
pair!(
    tcp_full_cone_meets_udp_blocked,
    Tcp,
    FullCone,
    UdpBlocked,
    whole
);
pair!(tcp_full_cone_meets_v6_only, Tcp, FullCone, V6Only, whole);
pair!(
    tcp_full_cone_meets_dual_stack,
    Tcp,
    FullCone,
    DualStack,
    whole
);
pair!(
    tcp_restricted_meets_restricted,
    Tcp,
    Restricted,
    Restricted,
    whole
);
pair!(
    tcp_restricted_meets_port_restricted,
    Tcp,
    Restricted,
    PortRestricted,
    whole
);
pair!(
    tcp_restricted_meets_symmetric,
    Tcp,
    Restricted,
    Symmetric,
    whole
);
pair!(tcp_restricted_meets_double, Tcp, Restricted, Double, whole);
pair!(
    tcp_restricted_meets_firewall,
    Tcp,
    Restricted,
    Firewall,
    whole
);
pair!(
    tcp_restricted_meets_udp_blocked,
    Tcp,
    Restricted,
    UdpBlocked
);
pair!(tcp_restricted_meets_v6_only, Tcp, Restricted, V6Only, whole);
pair!(
    tcp_restricted_meets_dual_stack,
    Tcp,
    Restricted,
    DualStack,
    whole
);
pair!(
    tcp_port_restricted_meets_port_restricted,
    Tcp,
    PortRestricted,
    PortRestricted
);
pair!(
    tcp_port_restricted_meets_symmetric,
    Tcp,
    PortRestricted,
    Symmetric
);
pair!(
    tcp_port_restricted_meets_double,
    Tcp,
    PortRestricted,
    Double,
    whole
);
pair!(
    tcp_port_restricted_meets_firewall,
    Tcp,
    PortRestricted,
    Firewall,
    whole
);
pair!(
    tcp_port_restricted_meets_udp_blocked,
    Tcp,
    PortRestricted,
    UdpBlocked,
    whole
);
pair!(
    tcp_port_restricted_meets_v6_only,
    Tcp,
    PortRestricted,
    V6Only,
    whole
);
pair!(
    tcp_port_restricted_meets_dual_stack,
    Tcp,
    PortRestricted,
    DualStack,
    whole
);
pair!(
    tcp_symmetric_meets_symmetric,
    Tcp,
    Symmetric,
    Symmetric,
    whole
);
pair!(tcp_symmetric_meets_double, Tcp, Symmetric, Double, whole);
pair!(
    tcp_symmetric_meets_firewall,
    Tcp,
    Symmetric,
    Firewall,
    whole
);
pair!(
    tcp_symmetric_meets_udp_blocked,
    Tcp,
    Symmetric,
    UdpBlocked,
    whole
);
pair!(tcp_symmetric_meets_v6_only, Tcp, Symmetric, V6Only, whole);
pair!(
    tcp_symmetric_meets_dual_stack,
    Tcp,
    Symmetric,
    DualStack,
    whole
);
pair!(tcp_double_meets_double, Tcp, Double, Double, whole);
pair!(tcp_double_meets_firewall, Tcp, Double, Firewall);
pair!(tcp_double_meets_udp_blocked, Tcp, Double, UdpBlocked, whole);
pair!(tcp_double_meets_v6_only, Tcp, Double, V6Only, whole);
pair!(tcp_double_meets_dual_stack, Tcp, Double, DualStack, whole);
pair!(tcp_firewall_meets_firewall, Tcp, Firewall, Firewall, whole);
pair!(
    tcp_firewall_meets_udp_blocked,
    Tcp,
    Firewall,
    UdpBlocked,
    whole
);
pair!(tcp_firewall_meets_v6_only, Tcp, Firewall, V6Only, whole);
pair!(
    tcp_firewall_meets_dual_stack,
    Tcp,
    Firewall,
    DualStack,
    whole
);
pair!(
    tcp_udp_blocked_meets_udp_blocked,
    Tcp,
    UdpBlocked,
    UdpBlocked,
    whole
);
pair!(
    tcp_udp_blocked_meets_v6_only,
    Tcp,
    UdpBlocked,
    V6Only,
    whole
);
pair!(
    tcp_udp_blocked_meets_dual_stack,
    Tcp,
    UdpBlocked,
    DualStack,
    whole
);
pair!(tcp_v6_only_meets_v6_only, Tcp, V6Only, V6Only, whole);
pair!(tcp_v6_only_meets_dual_stack, Tcp, V6Only, DualStack);
pair!(
    tcp_dual_stack_meets_dual_stack,
    Tcp,
    DualStack,
    DualStack,
    whole
);

pair!(udp_none_meets_none, Udp, None, None, whole);
pair!(udp_none_meets_full_cone, Udp, None, FullCone, whole);
pair!(udp_none_meets_restricted, Udp, None, Restricted, whole);
pair!(
    udp_none_meets_port_restricted,
    Udp,
    None,
    PortRestricted,
    whole
);
pair!(udp_none_meets_symmetric, Udp, None, Symmetric);
pair!(udp_none_meets_double, Udp, None, Double, whole);
pair!(udp_none_meets_firewall, Udp, None, Firewall, whole);
pair!(udp_none_meets_udp_blocked, Udp, None, UdpBlocked, whole);
pair!(udp_none_meets_v6_only, Udp, None, V6Only, whole);
pair!(udp_none_meets_dual_stack, Udp, None, DualStack, whole);
pair!(
    udp_full_cone_meets_full_cone,
    Udp,
    FullCone,
    FullCone,
    whole
);
pair!(
    udp_full_cone_meets_restricted,
    Udp,
    FullCone,
    Restricted,
    whole
);
pair!(
    udp_full_cone_meets_port_restricted,
    Udp,
    FullCone,
    PortRestricted,
    whole
);
pair!(udp_full_cone_meets_symmetric, Udp, FullCone, Symmetric);
pair!(udp_full_cone_meets_double, Udp, FullCone, Double, whole);
pair!(udp_full_cone_meets_firewall, Udp, FullCone, Firewall, whole);
pair!(
    udp_full_cone_meets_udp_blocked,
    Udp,
    FullCone,
    UdpBlocked,
    whole
);
pair!(udp_full_cone_meets_v6_only, Udp, FullCone, V6Only, whole);
pair!(
    udp_full_cone_meets_dual_stack,
    Udp,
    FullCone,
    DualStack,
    whole
);
pair!(
    udp_restricted_meets_restricted,
    Udp,
    Restricted,
    Restricted,
    whole
);
pair!(
    udp_restricted_meets_port_restricted,
    Udp,
    Restricted,
    PortRestricted,
    whole
);
pair!(
    udp_restricted_meets_symmetric,
    Udp,
    Restricted,
    Symmetric,
    whole
);
pair!(udp_restricted_meets_double, Udp, Restricted, Double, whole);
pair!(
    udp_restricted_meets_firewall,
    Udp,
    Restricted,
    Firewall,
    whole
);
pair!(
    udp_restricted_meets_udp_blocked,
    Udp,
    Restricted,
    UdpBlocked
);
pair!(udp_restricted_meets_v6_only, Udp, Restricted, V6Only, whole);
pair!(
    udp_restricted_meets_dual_stack,
    Udp,
    Restricted,
    DualStack,
    whole
);
pair!(
    udp_port_restricted_meets_port_restricted,
    Udp,
    PortRestricted,
    PortRestricted
);
pair!(
    udp_port_restricted_meets_symmetric,
    Udp,
    PortRestricted,
    Symmetric
);
pair!(
    udp_port_restricted_meets_double,
    Udp,
    PortRestricted,
    Double,
    whole
);
pair!(
    udp_port_restricted_meets_firewall,
    Udp,
    PortRestricted,
    Firewall,
    whole
);
pair!(
    udp_port_restricted_meets_udp_blocked,
    Udp,
    PortRestricted,
    UdpBlocked,
    whole
);
pair!(
    udp_port_restricted_meets_v6_only,
    Udp,
    PortRestricted,
    V6Only,
    whole
);
pair!(
    udp_port_restricted_meets_dual_stack,
    Udp,
    PortRestricted,
    DualStack,
    whole
);
pair!(
    udp_symmetric_meets_symmetric,
    Udp,
    Symmetric,
    Symmetric,
    whole
);
pair!(udp_symmetric_meets_double, Udp, Symmetric, Double, whole);
pair!(
    udp_symmetric_meets_firewall,
    Udp,
    Symmetric,
    Firewall,
    whole
);
pair!(
    udp_symmetric_meets_udp_blocked,
    Udp,
    Symmetric,
    UdpBlocked,
    whole
);
pair!(udp_symmetric_meets_v6_only, Udp, Symmetric, V6Only, whole);
pair!(
    udp_symmetric_meets_dual_stack,
    Udp,
    Symmetric,
    DualStack,
    whole
);
pair!(udp_double_meets_double, Udp, Double, Double, whole);
pair!(udp_double_meets_firewall, Udp, Double, Firewall);
pair!(udp_double_meets_udp_blocked, Udp, Double, UdpBlocked, whole);
pair!(udp_double_meets_v6_only, Udp, Double, V6Only, whole);
pair!(udp_double_meets_dual_stack, Udp, Double, DualStack, whole);
pair!(udp_firewall_meets_firewall, Udp, Firewall, Firewall, whole);
pair!(
    udp_firewall_meets_udp_blocked,
    Udp,
    Firewall,
    UdpBlocked,
    whole
);
pair!(udp_firewall_meets_v6_only, Udp, Firewall, V6Only, whole);
pair!(
    udp_firewall_meets_dual_stack,
    Udp,
    Firewall,
    DualStack,
    whole
);
pair!(
    udp_udp_blocked_meets_udp_blocked,
    Udp,
    UdpBlocked,
    UdpBlocked,
    whole
);
pair!(
    udp_udp_blocked_meets_v6_only,
    Udp,
    UdpBlocked,
    V6Only,
    whole
);
pair!(
    udp_udp_blocked_meets_dual_stack,
    Udp,
    UdpBlocked,
    DualStack,
    whole
);
pair!(udp_v6_only_meets_v6_only, Udp, V6Only, V6Only, whole);
pair!(udp_v6_only_meets_dual_stack, Udp, V6Only, DualStack);
pair!(
    udp_dual_stack_meets_dual_stack,
    Udp,
    DualStack,
    DualStack,
    whole
);

pair!(tcp_none_meets_masquerade, Tcp, None, Masquerade, whole);
pair!(
    tcp_full_cone_meets_masquerade,
    Tcp,
    FullCone,
    Masquerade,
    whole
);
pair!(
    tcp_restricted_meets_masquerade,
    Tcp,
    Restricted,
    Masquerade,
    whole
);
pair!(
    tcp_port_restricted_meets_masquerade,
    Tcp,
    PortRestricted,
    Masquerade
);
pair!(tcp_masquerade_meets_masquerade, Tcp, Masquerade, Masquerade);
pair!(
    tcp_masquerade_meets_symmetric,
    Tcp,
    Masquerade,
    Symmetric,
    whole
);
pair!(tcp_masquerade_meets_double, Tcp, Masquerade, Double, whole);
pair!(
    tcp_masquerade_meets_firewall,
    Tcp,
    Masquerade,
    Firewall,
    whole
);
pair!(
    tcp_masquerade_meets_udp_blocked,
    Tcp,
    Masquerade,
    UdpBlocked,
    whole
);
pair!(tcp_masquerade_meets_v6_only, Tcp, Masquerade, V6Only, whole);
pair!(
    tcp_masquerade_meets_dual_stack,
    Tcp,
    Masquerade,
    DualStack,
    whole
);

pair!(udp_none_meets_masquerade, Udp, None, Masquerade, whole);
pair!(
    udp_full_cone_meets_masquerade,
    Udp,
    FullCone,
    Masquerade,
    whole
);
pair!(
    udp_restricted_meets_masquerade,
    Udp,
    Restricted,
    Masquerade,
    whole
);
pair!(
    udp_port_restricted_meets_masquerade,
    Udp,
    PortRestricted,
    Masquerade
);
pair!(udp_masquerade_meets_masquerade, Udp, Masquerade, Masquerade);
pair!(
    udp_masquerade_meets_symmetric,
    Udp,
    Masquerade,
    Symmetric,
    whole
);
pair!(udp_masquerade_meets_double, Udp, Masquerade, Double, whole);
pair!(
    udp_masquerade_meets_firewall,
    Udp,
    Masquerade,
    Firewall,
    whole
);
pair!(
    udp_masquerade_meets_udp_blocked,
    Udp,
    Masquerade,
    UdpBlocked,
    whole
);
pair!(udp_masquerade_meets_v6_only, Udp, Masquerade, V6Only, whole);
pair!(
    udp_masquerade_meets_dual_stack,
    Udp,
    Masquerade,
    DualStack,
    whole
);
