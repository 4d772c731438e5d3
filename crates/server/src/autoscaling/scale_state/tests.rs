//! The node gets the replicas of autoscalers, and everything else from the controller.

use std::time::Duration;

use nearpath_types::{FunctionSpec, Revision};
use serde_json::json;

use super::super::load_counts::CallCount;
use super::*;

fn function(name: &str, replicas: u32, labels: &[&str], calls: &str) -> DesiredFunction {
    let labels: BTreeMap<_, _> = labels
        .iter()
        .map(|label| label.split_once('=').unwrap())
        .map(|(key, value)| (format!("com.openfaas.scale.{key}"), value.to_owned()))
        .collect();
    let spec: FunctionSpec = serde_json::from_value(json!({
        "service": name, "image": "file:///w", "labels": labels,
        "annotations": { "nearpath.io/calls": calls },
    }))
    .unwrap();
    DesiredFunction {
        spec: Arc::new(spec),
        revision: Revision(1),
        replicas,
        secrets: BTreeMap::new(),
    }
}

fn stored(functions: impl IntoIterator<Item = DesiredFunction>) -> DesiredState {
    DesiredState {
        functions: functions.into_iter().collect(),
        ..DesiredState::default()
    }
}

fn id(name: &str) -> FunctionId {
    name.parse().unwrap()
}

fn replicas(state: &ScaleState, name: &str) -> u32 {
    state.desired().functions.get(&id(name)).unwrap().replicas
}

/// Polls a function for so many seconds, with so many requests open. Instances are ready at once.
fn poll(state: &mut ScaleState, name: &str, from: Instant, seconds: u64, open: u64) -> Instant {
    let times = (1..=seconds).map(|second| from + Duration::from_secs(second));
    times.fold(from, |_, now| {
        let counts = LoadCounts {
            requests: CallCount {
                started: open,
                open,
            },
            ready: replicas(state, name),
            ..LoadCounts::default()
        };
        state.observe(&id(name), now, &counts);
        now
    })
}

#[test]
fn only_autoscaled_functions_change() {
    let (mut state, now) = (ScaleState::new(None), Instant::now());
    let auto = function("auto", 1, &["type=capacity", "target=1"], "");
    let plain = function("plain", 3, &["min=2", "max=9"], "");
    state.apply_stored(stored([auto, plain.clone()]), now);
    assert_eq!(state.poll_targets(now).len(), 1);
    let now = poll(&mut state, "auto", now, 90, 6);
    assert_eq!(replicas(&state, "auto"), 7);
    assert_eq!(replicas(&state, "plain"), 3);
    assert!(state.status(&id("plain"), now).is_none());
    assert_eq!(state.wake(&id("plain"), now), None);
    assert!(!state.continue_from(&id("plain"), now, 5));
    let relabelled = function("auto", 1, &["min=1"], "");
    state.apply_stored(stored([relabelled, plain]), now);
    assert_eq!(
        replicas(&state, "auto"),
        1,
        "the stored number counts again"
    );
    assert!(state.poll_targets(now).is_empty());
}

#[test]
fn all_else_is_the_controllers() {
    let (mut state, now) = (ScaleState::new(None), Instant::now());
    let controller = DesiredState {
        nodes: ["a".parse().unwrap()].into(),
        ..stored([function("plain", 3, &[], "")])
    };
    state.apply_stored(controller.clone(), now);
    assert_eq!(state.desired(), controller);
    state.apply_stored(DesiredState::default(), now);
    assert_eq!(state.desired(), DesiredState::default());
}

#[test]
fn a_state_of_other_functions_keeps_the_replicas() {
    let (mut state, now) = (ScaleState::new(None), Instant::now());
    let auto = || function("auto", 1, &["type=capacity", "target=1"], "");
    state.apply_stored(stored([auto()]), now);
    let now = poll(&mut state, "auto", now, 90, 6);
    state.apply_stored(stored([auto(), function("new", 1, &[], "")]), now);
    assert_eq!(replicas(&state, "auto"), 7);
    state.apply_stored(stored([]), now);
    state.apply_stored(stored([auto()]), now);
    assert_eq!(replicas(&state, "auto"), 1, "a new function");
}

#[test]
fn a_sleeping_function_is_woken_here_and_polled_again() {
    let (mut state, now) = (ScaleState::new(None), Instant::now());
    let auto = function("auto", 1, &["zero=true", "zero-duration=2s"], "");
    state.apply_stored(stored([auto]), now);
    let now = poll(&mut state, "auto", now, 5, 0);
    assert_eq!(replicas(&state, "auto"), 0);
    assert_eq!(state.pace(now), PollPace::Parked);
    assert!(state.poll_targets(now).is_empty());
    assert!(state.wake(&id("auto"), now).flatten().is_some());
    assert_eq!(state.wake(&id("auto"), now), Some(None));
    assert_eq!(replicas(&state, "auto"), 1);
    assert_eq!(state.pace(now), PollPace::Active);
}

#[test]
fn only_callers_that_run_keep_polls_going() {
    let (mut state, now) = (ScaleState::new(None), Instant::now());
    let auto = || function("auto", 1, &["type=rps"], "");
    let front = |replicas, calls: &str| function("front", replicas, &[], calls);
    state.apply_stored(stored([auto(), front(1, "auto")]), now);
    let now = poll(&mut state, "auto", now, 15, 0);
    assert_eq!(state.pace(now), PollPace::Idle);
    assert!(state.poll_targets(now)[0].has_callers);
    state.apply_stored(stored([auto(), front(0, "auto")]), now);
    assert_eq!(state.pace(now), PollPace::Parked);
    state.apply_stored(stored([auto(), front(1, "other")]), now);
    assert_eq!(state.pace(now), PollPace::Parked);
    assert!(!state.poll_targets(now)[0].has_callers);
}

#[test]
fn a_function_with_events_does_not_sleep() {
    let (mut state, now) = (ScaleState::new(None), Instant::now());
    let mut auto = function("auto", 1, &["zero=true", "zero-duration=2s"], "");
    let spec = Arc::make_mut(&mut auto.spec);
    for (key, value) in [("chain", "shop"), ("subscribes", "orders/#")] {
        spec.annotations
            .insert(format!("nearpath.io/{key}"), value.into());
    }
    state.apply_stored(stored([auto]), now);
    let now = poll(&mut state, "auto", now, 60, 0);
    assert_eq!(replicas(&state, "auto"), 1);
    assert_eq!(state.pace(now), PollPace::Parked);
}

#[test]
fn functions_of_other_nodes_have_no_autoscaler_here() {
    let mut state = ScaleState::new(Some("a".parse().unwrap()));
    let mut auto = function("auto", 1, &["type=rps"], "");
    let spec = Arc::make_mut(&mut auto.spec);
    spec.annotations
        .insert("nearpath.io/nodes".into(), "b".into());
    let now = Instant::now();
    state.apply_stored(stored([auto]), now);
    assert!(state.poll_targets(now).is_empty() && state.status(&id("auto"), now).is_none());
}
