use super::*;
use proptest::prelude::*;

fn hello(node: &str, incarnation: u64) -> StateFrame {
    StateFrame::Hello(NodeHello {
        protocol: PROTOCOL,
        node: node.parse().unwrap(),
        incarnation: NodeIncarnation(incarnation),
        version: "0.1.0".to_owned(),
        started: 1,
    })
}

fn loads(functions: &[(&str, u32)]) -> BTreeMap<FunctionId, FunctionLoad> {
    let load = |ready| FunctionLoad { ready, requests: 0 };
    let entries = functions.iter();
    entries
        .map(|(id, ready)| (id.parse().unwrap(), load(*ready)))
        .collect()
}

fn part(functions: &[(&str, u32)], complete: bool) -> StateFrame {
    let set = loads(functions);
    StateFrame::State(StatePart { set, complete })
}

fn change(number: u64, set: &[(&str, u32)], removed: &[&str]) -> StateFrame {
    StateFrame::Change(StateChange {
        number,
        set: loads(set),
        removed: removed.iter().map(|id| id.parse().unwrap()).collect(),
    })
}

fn apply_all(view: &mut PeerView, frames: Vec<StateFrame>) {
    for frame in frames {
        view.apply(frame).unwrap();
    }
}

fn functions_of(view: &PeerView) -> BTreeMap<FunctionId, FunctionLoad> {
    let functions = view.functions();
    functions
        .iter()
        .map(|(id, load)| (id.clone(), **load))
        .collect()
}

fn complete_view() -> PeerView {
    let mut view = PeerView::new("b".parse().unwrap());
    let first = part(&[("x", 1)], false);
    apply_all(&mut view, vec![hello("b", 1), first]);
    assert!(
        !view.is_complete() && view.functions().is_empty(),
        "half of a state"
    );
    assert_eq!(
        view.apply(part(&[("y", 2)], true)),
        Ok(ViewEvent::Completed)
    );
    view
}

#[test]
fn a_whole_state_is_seen_at_once_and_changes_follow() {
    let mut view = complete_view();
    assert_eq!(functions_of(&view), loads(&[("x", 1), ("y", 2)]));
    let next = change(1, &[("z", 0)], &["x", "unknown"]);
    assert_eq!(view.apply(next), Ok(ViewEvent::Changed));
    assert_eq!(functions_of(&view), loads(&[("y", 2), ("z", 0)]));
    assert_eq!(
        view.apply(StateFrame::Draining(true)),
        Ok(ViewEvent::Changed)
    );
    assert_eq!(
        view.apply(StateFrame::Draining(true)),
        Ok(ViewEvent::Unchanged)
    );
    assert!(view.is_draining());
    for ignored in [StateFrame::Heartbeat, StateFrame::Unknown] {
        assert_eq!(view.apply(ignored), Ok(ViewEvent::Unchanged));
    }
}

#[test]
fn the_old_state_stays_until_the_new_one_of_the_same_run_is_complete() {
    let mut view = complete_view();
    let gap = ViewFault::Gap {
        received: 7,
        last: 0,
    };
    assert_eq!(view.apply(change(7, &[], &["x"])), Err(gap));
    let draining = StateFrame::Draining(true);
    apply_all(
        &mut view,
        vec![hello("b", 1), draining, part(&[("z", 1)], false)],
    );
    assert_eq!(functions_of(&view), loads(&[("x", 1), ("y", 2)]));
    assert!(!view.is_draining());
    view.apply(part(&[("y", 2)], true)).unwrap();
    assert_eq!(functions_of(&view), loads(&[("y", 2), ("z", 1)]));
    assert!(view.is_draining());
}

#[test]
fn another_run_and_a_node_that_was_down_begin_empty() {
    let mut view = complete_view();
    view.begin_subscription();
    assert_eq!(view.apply(hello("b", 2)), Ok(ViewEvent::Changed));
    assert!(!view.is_complete() && view.functions().is_empty());
    let mut view = complete_view();
    view.clear();
    assert!(!view.is_complete() && view.functions().is_empty());
    assert_eq!(view.hello().unwrap().incarnation, NodeIncarnation(1));
}

#[test]
fn the_state_of_a_replaced_process_stays_until_that_of_its_successor_is_complete() {
    let mut view = complete_view();
    assert_eq!(view.apply(StateFrame::Replaced), Ok(ViewEvent::Replaced));
    view.begin_subscription();
    // The old process again, then its successor.
    for run in [1, 2] {
        apply_all(&mut view, vec![hello("b", run), part(&[("z", 1)], false)]);
        assert_eq!(functions_of(&view), loads(&[("x", 1), ("y", 2)]));
        view.begin_subscription();
    }
    // Only one run follows.
    view.apply(hello("b", 3)).unwrap();
    assert!(!view.is_complete());
    let mut view = complete_view();
    view.apply(StateFrame::Replaced).unwrap();
    view.clear();
    apply_all(&mut view, vec![hello("b", 2)]);
    assert!(!view.is_complete(), "it was down");
}

#[test]
fn frames_out_of_place_are_faults() {
    let after = |frames: Vec<StateFrame>, last: StateFrame| {
        let mut view = PeerView::new("b".parse().unwrap());
        apply_all(&mut view, frames);
        view.apply(last).unwrap_err()
    };
    let whole = || vec![hello("b", 1), part(&[], true)];
    assert_eq!(after(vec![], StateFrame::Heartbeat), ViewFault::NoHello);
    assert_eq!(
        after(vec![], hello("c", 1)),
        ViewFault::OtherNode("c".parse().unwrap())
    );
    let mut other = hello("b", 1);
    if let StateFrame::Hello(hello) = &mut other {
        hello.protocol = 2;
    }
    assert_eq!(after(vec![], other), ViewFault::Protocol(2));
    for (frames, last) in [
        (whole(), hello("b", 1)),
        (whole(), part(&[], false)),
        (vec![hello("b", 1)], change(1, &[], &[])),
    ] {
        assert!(matches!(after(frames, last), ViewFault::Unexpected(_)));
    }
    let mut repeated = whole();
    repeated.push(change(1, &[], &[]));
    assert!(matches!(
        after(repeated, change(1, &[], &[])),
        ViewFault::Gap { .. }
    ));
}

#[test]
fn too_many_functions_are_a_fault_and_never_seen() {
    let ids = |numbers: std::ops::Range<usize>| {
        let load = FunctionLoad::default();
        numbers
            .map(move |number| (format!("f{number}").parse().unwrap(), load))
            .collect()
    };
    let mut view = PeerView::new("b".parse().unwrap());
    let set = ids(0..MAX_FUNCTIONS);
    let complete = true;
    apply_all(
        &mut view,
        vec![
            hello("b", 1),
            StateFrame::State(StatePart { set, complete }),
        ],
    );
    let (number, set) = (1, ids(MAX_FUNCTIONS..MAX_FUNCTIONS + 1));
    let more = StateChange {
        number,
        set,
        removed: Vec::new(),
    };
    assert_eq!(
        view.apply(StateFrame::Change(more)),
        Err(ViewFault::TooManyFunctions)
    );
    assert_eq!(view.functions().len(), MAX_FUNCTIONS);
}

fn any_frame() -> impl Strategy<Value = StateFrame> {
    let set = || prop::collection::vec((0u8..6, 0u32..3), 0..4);
    let name = |number: u8| format!("f{number}").parse::<FunctionId>().unwrap();
    let to_loads = move |set: Vec<(u8, u32)>| {
        let load = |ready| FunctionLoad { ready, requests: 0 };
        set.into_iter()
            .map(|(id, ready)| (name(id), load(ready)))
            .collect()
    };
    prop_oneof![
        2 => (0u64..2).prop_map(|run| hello("b", run)),
        4 => (set(), any::<bool>())
            .prop_map(move |(set, complete)| {
                StateFrame::State(StatePart { set: to_loads(set), complete })
            }),
        4 => (1u64..4, set(), prop::collection::vec(0u8..6, 0..3)).prop_map(
            move |(number, set, removed)| {
                let (set, removed) = (to_loads(set), removed.into_iter().map(name).collect());
                StateFrame::Change(StateChange { number, set, removed })
            }
        ),
        1 => any::<bool>().prop_map(StateFrame::Draining),
        1 => Just(StateFrame::Heartbeat),
        1 => Just(StateFrame::Replaced),
    ]
}

proptest! {
    /// A reader sees the last whole state with the changes that followed, and nothing else.
    #[test]
    fn any_frames_show_whole_states_only(frames in prop::collection::vec(any_frame(), 0..40)) {
        let mut view = PeerView::new("b".parse().unwrap());
        let (mut expected, mut collected) = (None, BTreeMap::new());
        let (mut run, mut is_replaced) = (None, false);
        for frame in frames {
            let before = functions_of(&view);
            let applied = view.apply(frame.clone());
            if applied.is_err() {
                prop_assert_eq!(functions_of(&view), before);
                continue;
            }
            match frame {
                StateFrame::Hello(hello) => {
                    collected = BTreeMap::new();
                    let is_other = run.replace(hello.incarnation) != Some(hello.incarnation);
                    if is_other && !std::mem::take(&mut is_replaced) {
                        expected = None;
                    }
                }
                StateFrame::Replaced => {
                    is_replaced = true;
                    view.begin_subscription();
                }
                StateFrame::State(part) => {
                    collected.extend(part.set);
                    if part.complete {
                        expected = Some(collected.clone());
                    }
                }
                StateFrame::Change(change) => {
                    let functions = expected.as_mut().unwrap();
                    for id in &change.removed {
                        functions.remove(id);
                    }
                    functions.extend(change.set);
                }
                _ => {}
            }
            prop_assert_eq!(view.is_complete(), expected.is_some());
            prop_assert_eq!(functions_of(&view), expected.clone().unwrap_or_default());
        }
    }
}
