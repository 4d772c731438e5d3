//! Edges on loopback: tests that run on every machine.

use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::p2p::rendezvous::{TestRendezvous, free_port};

use super::worker_process::{EdgeLoad, TestJob, WorkerProcess, begin_all};

fn assert_all_used_path(workers: &[WorkerProcess], path: &str) {
    for worker in workers {
        let (paths, _) = worker.attempt_result().assert_success();
        assert!(
            !paths.is_empty() && paths.iter().all(|taken| taken == path),
            "{}: {paths:?}",
            worker.name
        );
    }
}

#[test]
fn workers_stream_to_each_other_over_either_transport() {
    let (rendezvous, job) = (
        TestRendezvous::start(RendezvousLimits::default()),
        TestJob::new(),
    );
    let mut from =
        ["map.0", "map.1", "map.2"].map(|name| job.spawn_worker(&rendezvous, None, name));
    let mut to =
        ["word_count.0", "word_count.1"].map(|name| job.spawn_worker(&rendezvous, None, name));
    for (attempt, over) in [(1, &["tcp"]), (2, &["udp"])] {
        begin_all(
            &mut from,
            &mut to,
            attempt,
            &EdgeLoad {
                transports: over,
                path: Some("punch"),
                ..EdgeLoad::default()
            },
        );
        assert_all_used_path(&from, "punch");
        assert_all_used_path(&to, "punch");
    }
}

#[test]
fn without_a_direct_path_the_relay_carries_and_counts_all_bytes() {
    let (rendezvous, job) = (
        TestRendezvous::start(RendezvousLimits::default()),
        TestJob::new(),
    );
    let (mut from, mut to) = (
        [job.spawn_worker(&rendezvous, None, "map.0")],
        [job.spawn_worker(&rendezvous, None, "reduce.0")],
    );
    begin_all(
        &mut from,
        &mut to,
        1,
        &EdgeLoad {
            transports: &[],
            ..EdgeLoad::default()
        },
    );
    for result in [from[0].attempt_result(), to[0].attempt_result()] {
        let (paths, relayed) = result.assert_success();
        assert_eq!(paths, ["relay"]);
        assert!((2_000_000..2_200_000).contains(&relayed), "{relayed}");
    }
}

#[test]
fn edges_survive_a_restart_of_the_rendezvous() {
    let (addr, job) = (free_port(), TestJob::new());
    let rendezvous = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let mut from = ["map.0", "map.1"].map(|name| job.spawn_worker(&rendezvous, None, name));
    let mut to = ["reduce.0", "reduce.1"].map(|name| job.spawn_worker(&rendezvous, None, name));
    begin_all(
        &mut from,
        &mut to,
        1,
        &EdgeLoad {
            path: Some("punch"),
            pause: true,
            ..EdgeLoad::default()
        },
    );
    from.iter()
        .for_each(|worker| assert_eq!(worker.next_line(), "half"));
    drop(rendezvous);
    from.iter_mut()
        .for_each(|worker| worker.send_line(&"go".into()));
    assert_all_used_path(&from, "punch");
    assert_all_used_path(&to, "punch");
    let _rendezvous = TestRendezvous::start_at(addr, RendezvousLimits::default());
    begin_all(
        &mut from,
        &mut to,
        2,
        &EdgeLoad {
            path: Some("punch"),
            ..EdgeLoad::default()
        },
    ); // as soon as the connections are back
    assert_all_used_path(&from, "punch");
    assert_all_used_path(&to, "punch");
}

/// The attempt goes on: no stream starts again.
#[test]
fn relayed_edges_survive_a_restart_of_the_rendezvous() {
    let (addr, job) = (free_port(), TestJob::new());
    let rendezvous = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let mut from = ["map.0", "map.1"].map(|name| job.spawn_worker(&rendezvous, None, name));
    let mut to = ["reduce.0", "reduce.1"].map(|name| job.spawn_worker(&rendezvous, None, name));
    begin_all(
        &mut from,
        &mut to,
        1,
        &EdgeLoad {
            transports: &[],
            pause: true,
            ..EdgeLoad::default()
        },
    );
    from.iter()
        .for_each(|worker| assert_eq!(worker.next_line(), "half"));
    drop(rendezvous);
    from.iter_mut()
        .for_each(|worker| worker.send_line(&"go".into()));
    let second = TestRendezvous::start_at(addr, RendezvousLimits::default());
    assert_all_used_path(&from, "relay");
    assert_all_used_path(&to, "relay");
    assert_eq!(
        second.metric_value("nearpath_relay_joined_total"),
        4,
        "all relayed links reconnected"
    );
}

#[test]
fn edges_wait_for_a_worker_that_starts_later() {
    let (rendezvous, job) = (
        TestRendezvous::start(RendezvousLimits::default()),
        TestJob::new(),
    );
    let (mut from, mut to) = (
        job.spawn_worker(&rendezvous, None, "map.0"),
        job.spawn_worker(&rendezvous, None, "reduce.0"),
    );
    let load = EdgeLoad::default();
    from.begin_attempt(1, &[], &[to.name.clone(), "reduce.1".to_owned()], &load);
    to.begin_attempt(1, &["map.0".to_owned()], &[], &load);
    let mut late_worker = job.spawn_worker(&rendezvous, None, "reduce.1");
    late_worker.begin_attempt(1, &["map.0".to_owned()], &[], &load);
    for worker in [from, to, late_worker] {
        worker.attempt_result().assert_success();
    }
}
