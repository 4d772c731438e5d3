//! Counters become samples, sleep and wake, and the pace of polls.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_types::FunctionSpec;
use nearpath_types::policy::{SCALE_TARGET, SCALE_TYPE, SCALE_ZERO, SCALE_ZERO_DURATION};

use super::super::load_counts::CallCount;
use super::*;

const ZERO_LABELS: &[(&str, &str)] = &[(SCALE_ZERO, "true"), (SCALE_ZERO_DURATION, "20s")];
const CAPACITY_LABELS: &[(&str, &str)] = &[(SCALE_TYPE, "capacity"), (SCALE_TARGET, "1")];

fn settings(labels: &[(&str, &str)]) -> ScaleSettings {
    let labels: BTreeMap<_, _> = labels
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    ScaleSettings::for_autoscaling(&labels).unwrap()
}

fn function(revision: u64, replicas: u32) -> DesiredFunction {
    let spec: FunctionSpec =
        serde_json::from_value(serde_json::json!({ "service": "work", "image": "file:///w" }))
            .unwrap();
    DesiredFunction {
        spec: Arc::new(spec),
        revision: Revision(revision),
        replicas,
        secrets: BTreeMap::new(),
    }
}

/// A scaler, polled once a second.
struct Polls {
    scaler: FunctionScaler,
    start: Instant,
    seconds: u64,
}

impl Polls {
    fn new(labels: &[(&str, &str)], replicas: u32) -> Self {
        let start = Instant::now();
        let scaler = FunctionScaler::new(settings(labels), &function(1, replicas), start);
        Self {
            scaler,
            start,
            seconds: 0,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.seconds)
    }

    /// Polls once a second, as many times. Instances are ready at once.
    fn poll(&mut self, times: u64, counts: &LoadCounts) -> Vec<ReplicaChange> {
        let polls = (0..times).filter_map(|_| {
            self.seconds += 1;
            let counts = LoadCounts {
                ready: self.replicas(),
                ..counts.clone()
            };
            self.scaler.observe(self.now(), &counts)
        });
        polls.collect()
    }

    fn replicas(&self) -> u32 {
        self.scaler.replicas(self.now())
    }

    fn pace(&self, has_callers: bool) -> PollPace {
        self.scaler.pace(self.now(), has_callers)
    }
}

fn idle() -> LoadCounts {
    LoadCounts::default()
}

fn with_open(open: u64) -> LoadCounts {
    LoadCounts {
        requests: CallCount {
            started: open,
            open,
        },
        ..idle()
    }
}

#[test]
fn open_requests_start_replicas() {
    let mut polls = Polls::new(CAPACITY_LABELS, 1);
    let changes = polls.poll(90, &with_open(6));
    assert_eq!(polls.replicas(), 7, "6 of 1 at 90 %: {changes:?}");
    assert_eq!(changes.first().map(|change| change.from), Some(1));
    assert_eq!(polls.pace(false), PollPace::Active);
}

#[test]
fn calls_past_the_gateway_count_as_requests() {
    let mut polls = Polls::new(CAPACITY_LABELS, 1);
    let calls = with_open(6).requests;
    let counts = LoadCounts {
        direct_calls: calls,
        ..idle()
    };
    polls.poll(90, &counts);
    assert_eq!(polls.replicas(), 7);
}

#[test]
fn a_function_without_calls_sleeps_and_wakes_once() {
    let mut polls = Polls::new(ZERO_LABELS, 1);
    let changes = polls.poll(25, &idle());
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0].reason, ScaleReason::NoTraffic);
    assert_eq!((polls.replicas(), polls.pace(true)), (0, PollPace::Parked));
    let now = polls.now();
    let woken = polls.scaler.wake(now).unwrap();
    assert_eq!((woken.from, woken.to), (0, 1));
    assert_eq!(woken.reason, ScaleReason::FirstTraffic);
    assert_eq!(polls.scaler.wake(now), None, "later calls share its start");
}

#[test]
fn every_kind_of_call_keeps_a_function_awake() {
    let mut polls = Polls::new(ZERO_LABELS, 1);
    let mut calls = CallCount::default();
    for _ in 0..60 {
        // They have ended by the time of each poll.
        calls.started += 1;
        let counts = LoadCounts {
            direct_calls: calls,
            ..idle()
        };
        assert_eq!(polls.poll(1, &counts), []);
    }
    let open = CallCount {
        started: 1,
        open: 1,
    };
    let counts = LoadCounts {
        connections: open,
        direct_calls: calls,
        ..idle()
    };
    assert_eq!(polls.poll(60, &counts), [], "a connection is open");
    let mut connections = open;
    connections.open = 0;
    for _ in 0..60 {
        connections.started += 1;
        let counts = LoadCounts {
            connections,
            direct_calls: calls,
            ..idle()
        };
        assert_eq!(polls.poll(1, &counts), [], "connections come and go");
    }
    let counts = LoadCounts {
        has_unseen_calls: true,
        connections,
        direct_calls: calls,
        ..idle()
    };
    assert_eq!(polls.poll(60, &counts), []);
    assert_eq!(polls.replicas(), 1);
}

#[test]
fn polls_become_rare_and_end() {
    let mut polls = Polls::new(ZERO_LABELS, 1);
    assert_eq!(polls.pace(false), PollPace::Active);
    polls.poll(15, &idle());
    assert_eq!(polls.pace(false), PollPace::Idle, "it waits for its sleep");
    let mut polls = Polls::new(CAPACITY_LABELS, 1);
    polls.poll(15, &idle());
    assert_eq!(polls.pace(false), PollPace::Parked);
    assert_eq!(
        polls.pace(true),
        PollPace::Idle,
        "calls may pass no gateway"
    );
    polls.poll(1, &with_open(1));
    assert_eq!(polls.pace(false), PollPace::Active);
}

#[test]
fn unseen_calls_change_replicas_by_cpu_time_only() {
    let counts = LoadCounts {
        has_unseen_calls: true,
        cpu_milli: Some(100),
        ..idle()
    };
    let mut polls = Polls::new(CAPACITY_LABELS, 5);
    polls.poll(300, &counts);
    assert_eq!((polls.replicas(), polls.pace(true)), (5, PollPace::Parked));
    let mut polls = Polls::new(&[(SCALE_TYPE, "cpu"), (SCALE_TARGET, "500")], 5);
    polls.poll(20, &counts);
    assert_eq!((polls.replicas(), polls.pace(true)), (5, PollPace::Active));
    polls.poll(280, &counts);
    assert_eq!((polls.replicas(), polls.pace(true)), (1, PollPace::Idle));
}

#[test]
fn replicas_that_a_user_sets_apply_at_once() {
    let mut polls = Polls::new(CAPACITY_LABELS, 1);
    polls.poll(5, &idle());
    let (now, all) = (polls.now(), settings(CAPACITY_LABELS));
    polls.scaler.update(all, &function(1, 4), now);
    assert_eq!(polls.replicas(), 4);
    polls.poll(5, &idle());
    assert_eq!(polls.replicas(), 4, "the load is not known for long enough");
    polls.poll(120, &idle());
    assert_eq!(polls.replicas(), 1);
    let now = polls.now();
    polls.scaler.continue_from(now, 0);
    assert_eq!(polls.replicas(), 0, "also without com.openfaas.scale.zero");
    assert_eq!(polls.scaler.wake(now).map(|change| change.to), Some(1));
    polls.poll(120, &idle());
    assert_eq!(polls.replicas(), 1, "it does not sleep by itself");
}

#[test]
fn a_deployment_wakes_and_a_change_of_bounds_applies() {
    let mut polls = Polls::new(ZERO_LABELS, 1);
    polls.poll(25, &idle());
    let (now, all) = (polls.now(), settings(ZERO_LABELS));
    polls.scaler.update(all, &function(1, 1), now);
    assert_eq!(polls.replicas(), 0, "nothing was deployed");
    let raised = ScaleSettings {
        min_replicas: 3,
        ..all
    };
    polls.scaler.update(raised, &function(1, 1), now);
    assert_eq!(polls.replicas(), 0, "it sleeps on");
    polls.scaler.update(raised, &function(2, 1), now);
    assert_eq!(polls.replicas(), 3);
}

#[test]
fn cpu_time_counts_for_its_own_type_only() {
    let busy = LoadCounts {
        cpu_milli: Some(4_000),
        ..with_open(1)
    };
    let mut polls = Polls::new(&[(SCALE_TYPE, "cpu"), (SCALE_TARGET, "500")], 1);
    polls.poll(90, &busy);
    assert_eq!(polls.replicas(), 9, "4000 of 500 at 90 %");
    let mut polls = Polls::new(CAPACITY_LABELS, 1);
    polls.poll(90, &busy);
    assert_eq!(polls.replicas(), 2, "1 of 1 at 90 %");
}
