//! Workers behind NATs, with a rendezvous that both sites reach.

use nearpath_testkit::lab::nat::{IpFamily, LabInternet, NatKind, NatPlan};
use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};
use nearpath_testkit::need_nat;
use nearpath_testkit::p2p::rendezvous::TestRendezvous;

use super::worker_process::{EdgeLoad, TestJob, begin_all};

const PUNCH_LOAD: EdgeLoad = EdgeLoad {
    batches: 300,
    size: 10_000,
    transports: &["tcp", "udp"],
    path: Some("punch"),
    pause: false,
    connect_timeout: 60.0,
};

/// Runs two workers on each of two machines, with an edge from each of the first to each of the
/// second. Returns the paths of all edges.
fn edge_paths(
    rendezvous: &TestRendezvous,
    machines: [&LabNode; 2],
    load: &EdgeLoad,
) -> Vec<String> {
    let job = TestJob::new();
    let mut from =
        ["map.0", "map.1"].map(|name| job.spawn_worker(rendezvous, Some(machines[0]), name));
    let mut to =
        ["reduce.0", "reduce.1"].map(|name| job.spawn_worker(rendezvous, Some(machines[1]), name));
    begin_all(&mut from, &mut to, 1, load);
    let mut paths: Vec<_> = from
        .iter()
        .chain(&to)
        .flat_map(|worker| worker.attempt_result().assert_success().0)
        .collect();
    assert_eq!(paths.len(), 8);
    paths.dedup();
    paths
}

fn paths_between(kinds: [NatKind; 2], family: IpFamily, load: &EdgeLoad) -> Vec<String> {
    let pair = NetworkLab::nat_pair(kinds[0], kinds[1]).unwrap();
    let rendezvous = TestRendezvous::start_on(&pair.internet, family);
    edge_paths(
        &rendezvous,
        [
            &pair.first.first_machine().node,
            &pair.second.first_machine().node,
        ],
        load,
    )
}

#[test]
fn edges_punch_through_port_restricted_nats() {
    need_nat!();
    let pair = NetworkLab::nat_pair(NatKind::PortRestricted, NatKind::PortRestricted).unwrap();
    let rendezvous = TestRendezvous::start_on(&pair.internet, IpFamily::V4);
    let job = TestJob::new();
    for (attempt, over) in [(1, &["tcp"]), (2, &["udp"])] {
        let mut from =
            [job.spawn_worker(&rendezvous, Some(&pair.first.first_machine().node), "map.0")];
        let mut to = [job.spawn_worker(
            &rendezvous,
            Some(&pair.second.first_machine().node),
            "reduce.0",
        )];
        begin_all(
            &mut from,
            &mut to,
            attempt,
            &EdgeLoad {
                transports: over,
                ..PUNCH_LOAD
            },
        );
        assert_eq!(
            (
                from[0].attempt_result().assert_success().0,
                to[0].attempt_result().assert_success().0
            ),
            (vec!["punch".into()], vec!["punch".into()])
        );
    }
}

#[test]
fn symmetric_nats_leave_edges_on_the_relay() {
    need_nat!();
    let load = EdgeLoad {
        path: None,
        ..PUNCH_LOAD
    };
    assert_eq!(
        paths_between(
            [NatKind::Symmetric, NatKind::Symmetric],
            IpFamily::V4,
            &load
        ),
        ["relay"]
    );
}

#[test]
fn edges_use_ipv6_where_there_is_no_ipv4() {
    need_nat!();
    let paths = paths_between(
        [NatKind::V6Only, NatKind::V6Only],
        IpFamily::V6,
        &PUNCH_LOAD,
    );
    assert_eq!(paths, ["punch"]);
}

/// Without hairpinning, the two workers reach each other only by their own addresses.
#[test]
fn edges_behind_one_nat_stay_behind_it() {
    need_nat!();
    for hairpin in [false, true] {
        let mut internet = LabInternet::new(&LinkConditions::default()).unwrap();
        let mut site = internet
            .add_site(NatPlan {
                hairpin,
                ..NatKind::Symmetric.into()
            })
            .unwrap();
        internet.add_machine(&mut site).unwrap();
        let rendezvous = TestRendezvous::start_on(&internet, IpFamily::V4);
        let paths = edge_paths(
            &rendezvous,
            [&site.machines[0].node, &site.machines[1].node],
            &PUNCH_LOAD,
        );
        assert_eq!(paths, ["punch"], "turns around: {hairpin}");
    }
}
