//! A hundred connections in a row, on links with delay and loss.

use std::time::Duration;

use nearpath_p2p::driver::SearchOutcome;
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_testkit::lab::nat::{NatKind, NatPlan};
use nearpath_testkit::lab::{LinkConditions, NetworkLab};
use nearpath_testkit::need_nat;

use super::matrix::connect_both_on;
use nearpath_testkit::p2p::exchange::migration_settings;
use nearpath_testkit::p2p::introduction::LabObservers;

const TIMES: usize = 100;

/// Counts the direct connections, on both sides. In all runs every byte arrives.
fn direct(kinds: [NatKind; 2], transport: Transport, conditions: &LinkConditions) -> usize {
    let [first, second] = kinds.map(|kind| NatPlan {
        conditions: conditions.clone(),
        ..kind.into()
    });
    let pair = NetworkLab::nat_pair(first, second).unwrap();
    let watching = LabObservers::start(&pair.internet);
    let is_direct = |verdict| matches!(verdict, SearchOutcome::Direct { .. });
    let settings = migration_settings();
    let meetings =
        (0..TIMES).map(|_| connect_both_on(&pair, &watching, &[transport], 10_000, &settings));
    meetings
        .filter(|went| went.iter().all(|went| is_direct(went.verdict)))
        .count()
}

macro_rules! often {
    ($name:ident, $transport:ident, $first:ident, $second:ident, $loss:literal) => {
        #[test]
        #[ignore = "takes a minute: make test-nat"]
        fn $name() {
            need_nat!();
            let conditions = LinkConditions {
                delay: Duration::from_millis(5),
                loss: $loss,
                seed: 3,
                ..LinkConditions::default()
            };
            let times = direct([NatKind::$first, NatKind::$second], $transport, &conditions);
            assert!(times >= TIMES - 1, "{times} of {TIMES}");
        }
    };
}

often!(
    tcp_port_restricted_meets_port_restricted,
    Tcp,
    PortRestricted,
    PortRestricted,
    0.0
);
often!(
    tcp_port_restricted_meets_port_restricted_where_packets_are_lost,
    Tcp,
    PortRestricted,
    PortRestricted,
    0.01
);
often!(
    tcp_symmetric_meets_restricted,
    Tcp,
    Symmetric,
    Restricted,
    0.0
);
often!(
    udp_port_restricted_meets_port_restricted,
    Udp,
    PortRestricted,
    PortRestricted,
    0.0
);
often!(
    udp_port_restricted_meets_port_restricted_where_packets_are_lost,
    Udp,
    PortRestricted,
    PortRestricted,
    0.01
);
often!(
    udp_symmetric_meets_restricted,
    Udp,
    Symmetric,
    Restricted,
    0.0
);
often!(
    tcp_masquerade_meets_masquerade,
    Tcp,
    Masquerade,
    Masquerade,
    0.01
);
often!(
    udp_masquerade_meets_masquerade,
    Udp,
    Masquerade,
    Masquerade,
    0.01
);
