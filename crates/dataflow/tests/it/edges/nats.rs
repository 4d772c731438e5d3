//! Behind NATs, through a rendezvous that both sites reach.

use nearpath_testkit::lab::nat::{Family, Internet, Kind, Plan};
use nearpath_testkit::lab::{Lab, Link, Node};
use nearpath_testkit::need_nat;
use nearpath_testkit::p2p::rendezvous::House;

use super::worker_process::{Crew, Load, begin};

const LOAD: Load =
    Load { batches: 300, size: 10_000, over: &["tcp", "udp"], path: Some("punch"), pause: false, patience: 60.0 };

/// Two workers on each of two machines, each of those to each of these. By which path all their edges went.
fn paths(house: &House, machines: [&Node; 2], load: &Load) -> Vec<String> {
    let crew = Crew::new();
    let mut from = ["map.0", "map.1"].map(|name| crew.hire(house, Some(machines[0]), name));
    let mut to = ["reduce.0", "reduce.1"].map(|name| crew.hire(house, Some(machines[1]), name));
    begin(&mut from, &mut to, 1, load);
    let mut paths: Vec<_> = from.iter().chain(&to).flat_map(|hand| hand.went().well().0).collect();
    assert_eq!(paths.len(), 8);
    paths.dedup();
    paths
}

fn between(kinds: [Kind; 2], family: Family, load: &Load) -> Vec<String> {
    let pair = Lab::pair(kinds[0], kinds[1]).unwrap();
    let house = House::on(&pair.internet, family);
    paths(&house, [&pair.first.machine().node, &pair.second.machine().node], load)
}

#[test]
fn port_restricted_nats_let_edges_through() {
    need_nat!();
    let pair = Lab::pair(Kind::PortRestricted, Kind::PortRestricted).unwrap();
    let house = House::on(&pair.internet, Family::V4);
    let crew = Crew::new();
    for (attempt, over) in [(1, &["tcp"]), (2, &["udp"])] {
        let mut from = [crew.hire(&house, Some(&pair.first.machine().node), "map.0")];
        let mut to = [crew.hire(&house, Some(&pair.second.machine().node), "reduce.0")];
        begin(&mut from, &mut to, attempt, &Load { over, ..LOAD });
        assert_eq!((from[0].went().well().0, to[0].went().well().0), (vec!["punch".into()], vec!["punch".into()]));
    }
}

#[test]
fn symmetric_nats_leave_edges_on_the_relay() {
    need_nat!();
    let load = Load { path: None, ..LOAD };
    assert_eq!(between([Kind::Symmetric, Kind::Symmetric], Family::V4, &load), ["relay"]);
}

#[test]
fn where_there_is_ipv6_alone_edges_go_over_it() {
    need_nat!();
    let paths = between([Kind::V6Only, Kind::V6Only], Family::V6, &LOAD);
    assert_eq!(paths, ["punch"]);
}

/// The NAT turns nothing around: the two reach each other by their own addresses, or not at all.
#[test]
fn behind_one_nat_edges_do_not_leave_it() {
    need_nat!();
    for hairpin in [false, true] {
        let mut internet = Internet::new(&Link::default()).unwrap();
        let mut site = internet.site(Plan { hairpin, ..Kind::Symmetric.into() }).unwrap();
        internet.machine(&mut site).unwrap();
        let house = House::on(&internet, Family::V4);
        let paths = paths(&house, [&site.machines[0].node, &site.machines[1].node], &LOAD);
        assert_eq!(paths, ["punch"], "turns around: {hairpin}");
    }
}
