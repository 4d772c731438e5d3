//! A hundred times in a row, on lines that delay and lose packets.

use std::time::Duration;

use nearpath_p2p::driver::Verdict;
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_testkit::lab::nat::{Kind, Plan};
use nearpath_testkit::lab::{Lab, Link};
use nearpath_testkit::need_nat;

use super::matrix::meet_on;
use nearpath_testkit::p2p::introduction::Watching;

const TIMES: usize = 100;

/// How many of them had a direct connection, on both sides. In all of them every byte arrived.
fn direct(kinds: [Kind; 2], transport: Transport, line: &Link) -> usize {
    let [first, second] = kinds.map(|kind| Plan { line: line.clone(), ..kind.into() });
    let pair = Lab::pair(first, second).unwrap();
    let watching = Watching::begin(&pair.internet);
    let is_direct = |verdict| matches!(verdict, Verdict::Direct { .. });
    let meetings = (0..TIMES).map(|_| meet_on(&pair, &watching, &[transport], 10_000));
    meetings.filter(|went| went.iter().all(|went| is_direct(went.verdict))).count()
}

macro_rules! often {
    ($name:ident, $transport:ident, $first:ident, $second:ident, $loss:literal) => {
        #[test]
        #[ignore = "takes a minute: make test-nat"]
        fn $name() {
            need_nat!();
            let line = Link { delay: Duration::from_millis(5), loss: $loss, seed: 3, ..Link::default() };
            let times = direct([Kind::$first, Kind::$second], $transport, &line);
            assert!(times >= TIMES - 1, "{times} of {TIMES}");
        }
    };
}

often!(tcp_port_restricted_meets_port_restricted, Tcp, PortRestricted, PortRestricted, 0.0);
often!(tcp_port_restricted_meets_port_restricted_where_packets_are_lost, Tcp, PortRestricted, PortRestricted, 0.01);
often!(tcp_symmetric_meets_restricted, Tcp, Symmetric, Restricted, 0.0);
often!(udp_port_restricted_meets_port_restricted, Udp, PortRestricted, PortRestricted, 0.0);
often!(udp_port_restricted_meets_port_restricted_where_packets_are_lost, Udp, PortRestricted, PortRestricted, 0.01);
often!(udp_symmetric_meets_restricted, Udp, Symmetric, Restricted, 0.0);
