//! Workers that die, and processes that are no workers.

use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::p2p::rendezvous::TestRendezvous;

use super::worker_process::{EdgeLoad, TestJob, begin_all};

fn check_death_in_mid_stream(over: &'static [&'static str]) {
    let (rendezvous, job) = (
        TestRendezvous::start(RendezvousLimits::default()),
        TestJob::new(),
    );
    let mut from = ["map.0", "map.1"].map(|name| job.spawn_worker(&rendezvous, None, name));
    let mut to = ["reduce.0", "reduce.1"].map(|name| job.spawn_worker(&rendezvous, None, name));
    begin_all(
        &mut from,
        &mut to,
        1,
        &EdgeLoad {
            transports: over,
            path: Some("punch"),
            pause: true,
            ..EdgeLoad::default()
        },
    );
    from.iter()
        .for_each(|worker| assert_eq!(worker.next_line(), "half"));
    from[0].kill_process();
    for worker in &to {
        let result = worker.attempt_result();
        assert!(
            result
                .failure
                .as_ref()
                .is_some_and(|why| why.contains("map")),
            "{result:?}"
        );
    }
    from[1].send_line(&"go".into());
    assert!(from[1].attempt_result().failure.is_some());
    from[0] = job.spawn_worker(&rendezvous, None, "map.0");
    begin_all(
        &mut from,
        &mut to,
        2,
        &EdgeLoad {
            transports: over,
            ..EdgeLoad::default()
        },
    );
    from.iter()
        .chain(&to)
        .for_each(|worker| drop(worker.attempt_result().assert_success()));
}

#[test]
fn a_death_in_mid_stream_is_reported_and_the_next_attempt_succeeds() {
    check_death_in_mid_stream(&["tcp"]);
}

/// No kernel reports the end of the process: QUIC has to time out.
#[test]
#[ignore = "takes half a minute: make test-nat"]
fn a_death_in_mid_stream_is_reported_over_udp() {
    check_death_in_mid_stream(&["udp"]);
}

#[test]
fn a_worker_that_dies_while_it_connects_is_reported_as_lost() {
    let (rendezvous, job) = (
        TestRendezvous::start(RendezvousLimits::default()),
        TestJob::new(),
    );
    let (mut from, mut to) = (
        job.spawn_worker(&rendezvous, None, "map.0"),
        job.spawn_worker(&rendezvous, None, "reduce.0"),
    );
    let load = EdgeLoad {
        connect_timeout: 2.0,
        ..EdgeLoad::default()
    };
    from.begin_attempt(1, &[], &["reduce.0".to_owned()], &load);
    to.kill_process();
    let result = from.attempt_result();
    assert!(
        result.is_lost() && result.failure.unwrap().contains("did not answer"),
        "a producer waits for an answer"
    );
    let mut to = job.spawn_worker(&rendezvous, None, "reduce.0");
    from.kill_process();
    to.begin_attempt(2, &["map.0".to_owned()], &[], &load);
    let result = to.attempt_result();
    assert!(
        result.is_lost() && result.failure.unwrap().contains("did not call"),
        "a consumer waits for a call"
    );
}

/// A ticket opens the rendezvous; only a certificate makes a worker of the job.
#[test]
fn a_worker_with_a_ticket_but_without_an_identity_of_the_job_is_refused() {
    let (rendezvous, job, other_job) = (
        TestRendezvous::start(RendezvousLimits::default()),
        TestJob::new(),
        TestJob::new(),
    );
    let mut load = EdgeLoad {
        connect_timeout: 3.0,
        ..EdgeLoad::default()
    };
    let (mut from, mut to) = (
        other_job.spawn_worker(&rendezvous, None, "map.0"),
        job.spawn_worker(&rendezvous, None, "reduce.0"),
    );
    from.begin_attempt(1, &[], &["reduce.0".to_owned()], &load);
    to.begin_attempt(1, &["map.0".to_owned()], &[], &load);
    for result in [from.attempt_result(), to.attempt_result()] {
        assert!(result.is_lost(), "{result:?}");
        assert_eq!(result.stats["inputs"][0]["bytes"].as_u64().unwrap_or(0), 0);
        assert!(
            result
                .failure
                .as_ref()
                .is_some_and(|why| why.contains("certificate refused (")),
            "{result:?}"
        );
    }
    load.connect_timeout = 20.0;
    let mut from = job.spawn_worker(&rendezvous, None, "map.0");
    from.begin_attempt(2, &[], &["reduce.0".to_owned()], &load);
    to.begin_attempt(2, &["map.0".to_owned()], &[], &load);
    from.attempt_result().assert_success();
    to.attempt_result().assert_success();
}
