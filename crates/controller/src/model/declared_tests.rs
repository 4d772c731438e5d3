//! Declared states on models that hold something else already.

use proptest::prelude::*;

use nearpath_types::policy::CALLS;

use super::tests::{
    any_calls, assert_addresses_sound, at_seconds, rebuilt_desired, run_command, secret_value,
    test_spec,
};
use super::*;

fn digest(text: &str) -> FolderDigest {
    FolderDigest(text.into())
}

/// A state for node `a` with functions of this node.
pub(super) fn state_of(specs: impl IntoIterator<Item = FunctionSpec>) -> DeclaredState {
    let functions = specs.into_iter().map(|spec| {
        let folder = Some(digest("content"));
        let (id, spec) = (spec.id(), spec.into());
        (id, DeclaredFunction { spec, folder })
    });
    DeclaredState {
        node: "a".parse().unwrap(),
        nodes: [("a".parse().unwrap(), "10.0.0.1:8444".to_owned())].into(),
        functions: functions.collect(),
        secrets: BTreeMap::new(),
    }
}

fn apply(
    model: &mut ControllerModel,
    state: &DeclaredState,
) -> Result<CommandOutcome, CommandRefusal> {
    run_command(
        model,
        ControllerCommand::ApplyDeclared(Arc::new(state.clone())),
    )
}

fn applied(state: &DeclaredState) -> ControllerModel {
    let mut model = ControllerModel::default();
    apply(&mut model, state).unwrap();
    model
}

fn function<'a>(model: &'a ControllerModel, name: &str) -> &'a DeployedFunction {
    &model.functions[&name.parse::<FunctionId>().unwrap()]
}

fn secret_id(text: &str) -> SecretId {
    text.parse().unwrap()
}

#[test]
fn an_unchanged_function_keeps_revision_and_replicas() {
    let mut state = state_of([test_spec("one"), test_spec("two")]);
    let mut model = applied(&state);
    let scale = ControllerCommand::Scale("two".parse().unwrap(), 3);
    run_command(&mut model, scale).unwrap();
    let before = function(&model, "two").clone();
    let one = state.functions.get_mut(&"one".parse().unwrap()).unwrap();
    Arc::make_mut(&mut one.spec).env_process = "./new".into();
    state
        .functions
        .append(&mut state_of([test_spec("three")]).functions);
    assert_eq!(apply(&mut model, &state), Ok(CommandOutcome::Updated));
    assert_eq!(function(&model, "two"), &before);
    let revision = |name| function(&model, name).revision;
    assert_eq!(
        (revision("one"), revision("three")),
        (Revision(3), Revision(4))
    );
}

#[test]
fn a_sleeping_function_stays_asleep_and_can_be_woken() {
    let mut state = state_of([test_spec("one")]);
    let mut model = applied(&state);
    let id: FunctionId = "one".parse().unwrap();
    run_command(&mut model, ControllerCommand::Scale(id.clone(), 0)).unwrap();
    state.functions.get_mut(&id).unwrap().folder = Some(digest("new"));
    apply(&mut model, &state).unwrap();
    let changed = function(&model, "one").clone();
    assert_eq!((changed.replicas, changed.revision), (0, Revision(2)));
    run_command(&mut model, ControllerCommand::Wake(id)).unwrap();
    assert_eq!(apply(&mut model, &state), Ok(CommandOutcome::Unchanged));
    assert_eq!(function(&model, "one").replicas, 1);
}

#[test]
fn new_content_of_a_folder_is_a_new_revision() {
    let mut state = state_of([test_spec("one")]);
    let mut model = applied(&state);
    let id: FunctionId = "one".parse().unwrap();
    state.functions.get_mut(&id).unwrap().folder = Some(digest("new"));
    apply(&mut model, &state).unwrap();
    assert_eq!(function(&model, "one").revision, Revision(2));
}

#[test]
fn equal_content_at_another_path_keeps_its_revision() {
    let mut state = state_of([test_spec("one")]);
    let mut model = applied(&state);
    let id: FunctionId = "one".parse().unwrap();
    let declared = state.functions.get_mut(&id).unwrap();
    Arc::make_mut(&mut declared.spec).image = "file:///srv/release-2".into();
    assert_eq!(apply(&mut model, &state), Ok(CommandOutcome::Updated));
    let moved = function(&model, "one");
    assert_eq!(
        (moved.revision, moved.spec.image.as_str()),
        (Revision(1), "file:///srv/release-2")
    );
}

#[test]
fn a_fault_in_one_function_leaves_all_as_they_were() {
    let names = ["one", "two", "three"];
    let mut model = applied(&state_of(names.map(test_spec)));
    let before = model.clone();
    let mut next = state_of(names.map(test_spec));
    for function in next.functions.values_mut() {
        Arc::make_mut(&mut function.spec).image = "file:///srv/new".into();
    }
    next.nodes.clear();
    let broken = next.functions.get_mut(&"two".parse().unwrap()).unwrap();
    Arc::make_mut(&mut broken.spec).image = "relative".into();
    let refusal = apply(&mut model, &next).unwrap_err();
    let text = refusal.to_string();
    assert!(
        text.starts_with("function two.openfaas-fn: image:"),
        "{text}"
    );
    assert_eq!(model, before);
}

#[test]
fn only_functions_of_this_node_need_their_secrets() {
    let mut here = test_spec("here");
    here.secrets = vec!["key".into()];
    let mut elsewhere = here.clone();
    elsewhere.service = "elsewhere".parse().unwrap();
    elsewhere
        .annotations
        .insert("nearpath.io/nodes".into(), "b".into());
    let mut state = state_of([here, elsewhere]);
    let refusal = apply(&mut ControllerModel::default(), &state).unwrap_err();
    let text = refusal.to_string();
    assert!(
        text.starts_with("function here.openfaas-fn: no such secret"),
        "{text}"
    );
    let key = secret_id("openfaas-fn/key");
    state.secrets.insert(key.clone(), secret_value("old"));
    let mut model = applied(&state);
    state.secrets.insert(key.clone(), secret_value("new"));
    apply(&mut model, &state).unwrap();
    let revision = |name| function(&model, name).revision;
    assert_eq!(
        (revision("elsewhere"), revision("here")),
        (Revision(1), Revision(3))
    );
    let desired = model.desired_state();
    let wanted = desired.functions.get(&"here".parse().unwrap()).unwrap();
    assert_eq!(wanted.secrets["key"], b"new");
}

#[test]
fn a_state_replaces_what_the_api_made() {
    let mut model = ControllerModel::default();
    for command in [
        ControllerCommand::CreateNamespace("dev".parse().unwrap(), NamespaceEntry::default()),
        ControllerCommand::CreateNamespace("ops".parse().unwrap(), NamespaceEntry::default()),
        ControllerCommand::CreateSecret(secret_id("dev/key"), secret_value("x")),
        ControllerCommand::Deploy(test_spec("old")),
    ] {
        run_command(&mut model, command).unwrap();
    }
    let mut new = test_spec("new");
    new.namespace = "dev".parse().unwrap();
    apply(&mut model, &state_of([new])).unwrap();
    let ids: Vec<_> = model.functions.keys().map(ToString::to_string).collect();
    assert_eq!(ids, ["new.dev"]);
    assert!(model.secrets.is_empty());
    let names: Vec<_> = model.namespaces.keys().map(Namespace::as_str).collect();
    assert_eq!(names, ["dev"]);
}

const NODES: [&str; 3] = ["", "a", "b"];

prop_compose! {
    fn any_function()(
        name in prop::sample::select(vec!["f", "g", "h"]),
        namespace in prop::sample::select(vec!["openfaas-fn", "dev", "ops"]),
        node in prop::sample::select(NODES.to_vec()),
        path in 0..2,
        content in prop::sample::select(vec!["x", "y"]),
        keys in prop::sample::subsequence(vec!["k", "l"], 0..=2),
        min in 1u32..3,
        calls in any_calls(),
    ) -> DeclaredFunction {
        let mut spec = test_spec(name);
        spec.namespace = namespace.parse().unwrap();
        spec.image = format!("file:///srv/{path}");
        spec.secrets = keys.into_iter().map(str::to_owned).collect();
        spec.labels.insert("com.openfaas.scale.min".into(), min.to_string());
        spec.annotations.insert(CALLS.into(), calls);
        if !node.is_empty() {
            spec.annotations.insert("nearpath.io/nodes".into(), node.into());
        }
        DeclaredFunction { spec: spec.into(), folder: (node != "b").then(|| digest(content)) }
    }
}

prop_compose! {
    pub(super) fn any_state()(
        functions in prop::collection::vec(any_function(), 0..6),
        value in prop::sample::select(vec!["1", "2"]),
        addresses in prop::collection::btree_map("[ab]", "[xy]", 0..3),
    ) -> DeclaredState {
        let mut state = state_of([]);
        for function in functions {
            if function.folder.is_some() {
                let namespace = &function.spec.namespace;
                let ids = function.spec.secrets.iter().map(|name| secret_id(&format!("{namespace}/{name}")));
                state.secrets.extend(ids.map(|id| (id, secret_value(value))));
            }
            state.functions.insert(function.spec.id(), function);
        }
        state.nodes = addresses.into_iter().map(|(name, address)| (name.parse().unwrap(), address)).collect();
        state
    }
}

/// The model without what depends on earlier states: revisions and numbers of addresses.
fn without_history(model: &ControllerModel) -> ControllerModel {
    let mut same = model.clone();
    for function in model.functions.values() {
        let mut function = function.clone();
        function.revision = Revision(0);
        same.apply_change(ModelChange::PutFunction(function));
    }
    same.revision = Revision(0);
    (same.addresses.numbers, same.addresses.pool) = Default::default();
    for (id, number) in model.addresses.numbers.keys().zip(2..) {
        let number = AddressNumber::try_from(number).unwrap();
        same.apply_change(ModelChange::PutAddress(id.clone(), number));
    }
    same
}

proptest! {
    #[test]
    fn the_last_state_alone_decides(states in prop::collection::vec(any_state(), 1..8)) {
        let mut model = ControllerModel::default();
        for state in &states {
            let before = model.clone();
            apply(&mut model, state).unwrap();
            prop_assert!(model.revision >= before.revision);
            prop_assert_eq!(model.desired_state(), rebuilt_desired(&model));
            assert_addresses_sound(&model);
            let revisions: BTreeSet<_> = model.functions.values().map(|one| one.revision).collect();
            prop_assert_eq!(revisions.len(), model.functions.len());
        }
        let last = applied(states.last().unwrap());
        prop_assert_eq!(without_history(&model), without_history(&last));
    }

    #[test]
    fn an_equal_state_changes_nothing(first in any_state(), second in any_state()) {
        let mut model = applied(&first);
        apply(&mut model, &second).unwrap();
        let again = ControllerCommand::ApplyDeclared(Arc::new(second));
        let decision = decide_command(&model, &again, at_seconds(7)).unwrap();
        prop_assert_eq!((decision.outcome, decision.changes), (CommandOutcome::Unchanged, vec![]));
    }
}
