use std::collections::BTreeSet;
use std::time::Duration;

use nearpath_types::InstanceResources;
use nearpath_types::policy::CALLS;
use proptest::prelude::*;

use super::*;

pub(crate) fn test_spec(name: &str) -> FunctionSpec {
    let mut spec = FunctionSpec::named(name.parse().unwrap());
    spec.image = "file:///srv/echo".into();
    spec
}

pub(super) fn at_seconds(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

pub(super) fn run_command(
    model: &mut ControllerModel,
    command: ControllerCommand,
) -> Result<CommandOutcome, CommandRefusal> {
    let decision = decide_command(model, &command, at_seconds(1))?;
    decision
        .changes
        .into_iter()
        .for_each(|change| model.apply_change(change));
    Ok(decision.outcome)
}

pub(super) fn secret_value(text: &str) -> SecretValue {
    SecretValue(text.as_bytes().into())
}

fn replicas_of(model: &ControllerModel, name: &str) -> u32 {
    model.functions[&name.parse::<FunctionId>().unwrap()].replicas
}

#[test]
fn scaling_respects_zero_and_the_maximum() {
    let mut model = ControllerModel::default();
    let mut echo = test_spec("echo");
    echo.labels
        .insert("com.openfaas.scale.min".into(), "2".into());
    echo.labels
        .insert("com.openfaas.scale.max".into(), "4".into());
    run_command(&mut model, ControllerCommand::Deploy(echo)).unwrap();
    assert_eq!(replicas_of(&model, "echo"), 2);
    let id: FunctionId = "echo".parse().unwrap();
    for (requested, got) in [(0, 0), (1, 1), (4, 4), (5, 4), (u64::MAX, 4)] {
        run_command(&mut model, ControllerCommand::Scale(id.clone(), requested)).unwrap();
        assert_eq!(replicas_of(&model, "echo"), got, "{requested}");
    }
    assert_eq!(
        run_command(&mut model, ControllerCommand::Wake(id.clone())),
        Ok(CommandOutcome::Unchanged),
        "it is awake"
    );
    run_command(&mut model, ControllerCommand::Scale(id.clone(), 0)).unwrap();
    assert_eq!(
        run_command(&mut model, ControllerCommand::Wake(id)),
        Ok(CommandOutcome::Updated)
    );
    assert_eq!(replicas_of(&model, "echo"), 2);
}

#[test]
fn a_deploy_keeps_creation_time_and_replicas_and_wakes() {
    let mut model = ControllerModel::default();
    run_command(&mut model, ControllerCommand::Deploy(test_spec("echo"))).unwrap();
    let id: FunctionId = "echo".parse().unwrap();
    run_command(&mut model, ControllerCommand::Scale(id.clone(), 3)).unwrap();
    let decision = decide_command(
        &model,
        &ControllerCommand::Update(test_spec("echo")),
        at_seconds(9),
    )
    .unwrap();
    decision
        .changes
        .into_iter()
        .for_each(|change| model.apply_change(change));
    assert_eq!(
        (replicas_of(&model, "echo"), model.functions[&id].created_at),
        (3, at_seconds(1))
    );
    assert_eq!(model.functions[&id].revision, Revision(2));
    run_command(&mut model, ControllerCommand::Scale(id.clone(), 0)).unwrap();
    run_command(&mut model, ControllerCommand::Deploy(test_spec("echo"))).unwrap();
    assert_eq!(replicas_of(&model, "echo"), 1);
}

#[test]
fn revisions_survive_a_removal() {
    let mut model = ControllerModel::default();
    run_command(&mut model, ControllerCommand::Deploy(test_spec("echo"))).unwrap();
    run_command(
        &mut model,
        ControllerCommand::Remove("echo".parse().unwrap()),
    )
    .unwrap();
    run_command(&mut model, ControllerCommand::Deploy(test_spec("echo"))).unwrap();
    assert_eq!(
        model.functions[&"echo".parse::<FunctionId>().unwrap()].revision,
        Revision(2)
    );
}

#[test]
fn a_changed_secret_renews_only_the_functions_that_use_it() {
    let mut model = ControllerModel::default();
    let id: SecretId = "openfaas-fn/key".parse().unwrap();
    run_command(
        &mut model,
        ControllerCommand::CreateSecret(id.clone(), secret_value("old")),
    )
    .unwrap();
    let mut user = test_spec("user");
    user.secrets = vec!["key".into()];
    run_command(&mut model, ControllerCommand::Deploy(user)).unwrap();
    run_command(&mut model, ControllerCommand::Deploy(test_spec("other"))).unwrap();
    assert_eq!(
        run_command(
            &mut model,
            ControllerCommand::UpdateSecret(id.clone(), secret_value("old"))
        ),
        Ok(CommandOutcome::Unchanged)
    );
    run_command(
        &mut model,
        ControllerCommand::UpdateSecret(id.clone(), secret_value("new")),
    )
    .unwrap();
    assert_eq!(
        model.functions[&"user".parse::<FunctionId>().unwrap()].revision,
        Revision(3)
    );
    assert_eq!(
        model.functions[&"other".parse::<FunctionId>().unwrap()].revision,
        Revision(2)
    );
    let desired = model.desired_state();
    let wanted = desired
        .functions
        .values()
        .find(|f| f.spec.service.as_str() == "user")
        .unwrap();
    assert_eq!(wanted.secrets["key"], b"new");
    let refusal = run_command(&mut model, ControllerCommand::RemoveSecret(id)).unwrap_err();
    assert!(
        matches!(&refusal, CommandRefusal::SecretInUse(_, users) if users == "user"),
        "{refusal}"
    );
}

#[test]
fn empty_quantities_and_duplicate_secrets_are_removed() {
    let mut model = ControllerModel::default();
    run_command(
        &mut model,
        ControllerCommand::CreateSecret("openfaas-fn/key".parse().unwrap(), secret_value("x")),
    )
    .unwrap();
    let mut echo = test_spec("echo");
    echo.limits = Some(InstanceResources {
        memory: Some(String::new()),
        cpu: Some("1".into()),
        pids: None,
    });
    echo.secrets = vec!["key".into(), "key".into()];
    run_command(&mut model, ControllerCommand::Deploy(echo)).unwrap();
    let kept = &model.functions[&"echo".parse::<FunctionId>().unwrap()].spec;
    assert_eq!(
        kept.limits,
        Some(InstanceResources {
            memory: None,
            cpu: Some("1".into()),
            pids: None
        })
    );
    assert_eq!(kept.secrets, ["key"]);
}

#[test]
fn bad_specs_are_refused_by_the_name_of_the_field() {
    type SpecEdit = fn(&mut FunctionSpec);
    let broken: [(&str, SpecEdit); 12] = [
        ("image", |s| s.image.clear()),
        ("image", |s| {
            s.image = "ghcr.io/openfaas/figlet:latest".into()
        }),
        ("image", |s| s.image = "file://srv/echo".into()),
        ("image", |s| s.image = "file:///srv/../etc".into()),
        ("envVars", |s| {
            drop(s.env_vars.insert("A=B".into(), "x".into()))
        }),
        ("envVars", |s| {
            drop(s.env_vars.insert("A".into(), "\0".into()))
        }),
        ("envProcess", |s| s.env_process = "\0".into()),
        ("limits.memory", |s| {
            s.limits = Some(InstanceResources {
                memory: Some("much".into()),
                ..InstanceResources::default()
            })
        }),
        ("requests.cpu", |s| {
            s.requests = Some(InstanceResources {
                cpu: Some("1Gi".into()),
                ..InstanceResources::default()
            })
        }),
        ("limits.pids", |s| {
            s.limits = Some(InstanceResources {
                pids: Some(0),
                ..InstanceResources::default()
            })
        }),
        ("com.openfaas.scale.min", |s| {
            drop(
                s.labels
                    .insert("com.openfaas.scale.min".into(), "21".into()),
            )
        }),
        ("nearpath.io/queue", |s| {
            drop(
                s.annotations
                    .insert("nearpath.io/queue".into(), "-1".into()),
            )
        }),
    ];
    for (field, break_spec) in broken {
        let mut spec = test_spec("echo");
        break_spec(&mut spec);
        let refusal = decide_command(
            &ControllerModel::default(),
            &ControllerCommand::Deploy(spec),
            at_seconds(1),
        )
        .unwrap_err();
        assert!(
            refusal.to_string().starts_with(&format!("{field}:")),
            "{field}: {refusal}"
        );
        assert_eq!(refusal.reason().status(), 400);
    }
    let mut with_missing_secrets = test_spec("echo");
    with_missing_secrets.secrets = vec!["key".into(), "cert".into()];
    let refusal = decide_command(
        &ControllerModel::default(),
        &ControllerCommand::Deploy(with_missing_secrets),
        at_seconds(1),
    )
    .unwrap_err();
    assert!(refusal.to_string().contains("key, cert"), "{refusal}");
}

/// Callees, perhaps the caller itself, of its namespace or another, and one that is never deployed.
pub(super) fn any_calls() -> impl Strategy<Value = String> + Clone {
    let callees = vec!["a", "f", "x=a", "b.dev", "g.ops", "missing"];
    prop::sample::subsequence(callees, 0..=3).prop_map(|callees| callees.join(","))
}

pub(crate) fn any_command() -> impl Strategy<Value = ControllerCommand> {
    let namespace =
        || prop::sample::select(vec!["openfaas-fn", "dev", "ops"]).prop_map(|n| n.parse().unwrap());
    let id = (prop::sample::select(vec!["a", "b"]), namespace()).prop_map(|(name, namespace)| {
        FunctionId {
            name: name.parse().unwrap(),
            namespace,
        }
    });
    let key = (prop::sample::select(vec!["k", "l"]), namespace()).prop_map(|(name, namespace)| {
        SecretId {
            namespace,
            name: name.parse().unwrap(),
        }
    });
    let value = "[xy]".prop_map(|text| secret_value(&text));
    let deployed = (
        id.clone(),
        prop::sample::subsequence(vec!["k", "l"], 0..=2),
        1u32..4,
        any_calls(),
    )
        .prop_map(|(id, keys, max, calls)| {
            let mut spec = test_spec(id.name.as_str());
            spec.namespace = id.namespace;
            spec.secrets = keys.into_iter().map(str::to_owned).collect();
            spec.labels
                .insert("com.openfaas.scale.max".into(), max.to_string());
            spec.annotations.insert(CALLS.into(), calls);
            spec
        });
    prop_oneof![
        deployed.clone().prop_map(ControllerCommand::Deploy),
        deployed.prop_map(ControllerCommand::Update),
        id.clone().prop_map(ControllerCommand::Remove),
        (id.clone(), 0u64..6).prop_map(|(id, n)| ControllerCommand::Scale(id, n)),
        id.prop_map(ControllerCommand::Wake),
        (key.clone(), value.clone())
            .prop_map(|(key, value)| ControllerCommand::CreateSecret(key, value)),
        (key.clone(), value).prop_map(|(key, value)| ControllerCommand::UpdateSecret(key, value)),
        key.prop_map(ControllerCommand::RemoveSecret),
        namespace()
            .prop_map(|name| ControllerCommand::CreateNamespace(name, NamespaceEntry::default())),
        namespace().prop_map(ControllerCommand::RemoveNamespace),
    ]
}

/// The desired state, from functions, secrets and addresses alone.
pub(super) fn rebuilt_desired(model: &ControllerModel) -> DesiredState {
    let functions = model.functions.values();
    let addresses = model.addresses.numbers.keys();
    DesiredState {
        functions: functions.map(|one| model.desired_function(one)).collect(),
        addresses: addresses
            .filter_map(|id| model.desired_address(id))
            .collect(),
        nodes: model.nodes.keys().cloned().collect(),
    }
}

fn any_change() -> impl Strategy<Value = ModelChange> {
    let secret = || prop::sample::select(vec!["dev/k", "dev/l", "ops/k"]);
    let secret = move || secret().prop_map(|id| id.parse::<SecretId>().unwrap());
    let names = || prop::sample::select(vec!["a.dev", "b.dev", "a.ops"]);
    let names = move || names().prop_map(|id| id.parse::<FunctionId>().unwrap());
    let keys = prop::sample::subsequence(vec!["k", "l"], 0..=2);
    let address = (2u16..5).prop_map(|number| AddressNumber::try_from(number).unwrap());
    // Of the settings of an older version, one may be invalid now.
    let queue = prop::sample::select(vec!["1", "1", "-1"]);
    let function = (names(), keys, 0u64..4, 0u32..3, any_calls(), queue).prop_map(
        |(id, keys, revision, replicas, calls, queue)| {
            let mut spec = test_spec(id.name.as_str());
            spec.namespace = id.namespace;
            spec.secrets = keys.into_iter().map(str::to_owned).collect();
            spec.annotations.insert(CALLS.into(), calls);
            spec.annotations
                .insert("nearpath.io/queue".into(), queue.into());
            DeployedFunction {
                spec: spec.into(),
                revision: Revision(revision),
                replicas,
                created_at: at_seconds(1),
                folder: None,
            }
        },
    );
    prop_oneof![
        4 => function.prop_map(ModelChange::PutFunction),
        1 => names().prop_map(ModelChange::DropFunction),
        3 => (secret(), "[xy]").prop_map(|(id, text)| ModelChange::PutSecret(id, secret_value(&text))),
        1 => secret().prop_map(ModelChange::DropSecret),
        2 => (names(), address).prop_map(|(id, number)| ModelChange::PutAddress(id, number)),
        1 => names().prop_map(ModelChange::DropAddress),
        1 => any::<[u8; 5]>().prop_map(|bits| ModelChange::AddressPrefix(AddressPrefix::from_random(bits))),
    ]
}

/// Names whose addresses deployed functions need, and how often.
pub(super) fn needed_names(model: &ControllerModel) -> BTreeMap<FunctionId, u32> {
    let mut needed = BTreeMap::new();
    for (id, function) in &model.functions {
        let policy = FunctionPolicy::from_spec(&function.spec);
        let callees = policy.map_or(Vec::new(), |policy| policy.calls);
        for name in callees.into_iter().chain([id.clone()]) {
            *needed.entry(name).or_insert(0) += 1;
        }
    }
    needed
}

/// The table, from functions, numbers and the last one.
fn rebuilt_addresses(model: &ControllerModel) -> VirtualAddressTable {
    let mut rebuilt = VirtualAddressTable {
        references: needed_names(model).into_iter().collect(),
        ..VirtualAddressTable::default()
    };
    for (id, number) in &model.addresses.numbers {
        rebuilt.put(id.clone(), *number);
    }
    let last = model.addresses.pool.last();
    last.into_iter()
        .for_each(|last| rebuilt.pool.set_last(last));
    rebuilt
}

/// Invariants of addresses, while numbers are free.
pub(super) fn assert_addresses_sound(model: &ControllerModel) {
    assert_eq!(
        model.addresses,
        rebuilt_addresses(model),
        "references or used numbers differ"
    );
    let named = model.addresses.numbers.keys();
    assert!(
        named.eq(needed_names(model).keys()),
        "an address is missing, or not released"
    );
}

/// Invariants of every model that commands can lead to.
pub(super) fn assert_sound(model: &ControllerModel) {
    for (id, function) in &model.functions {
        assert_eq!(*id, function.spec.id());
        assert!(model.has_namespace(&id.namespace), "{id} lives nowhere");
        assert!(
            function.replicas <= function.policy().scale_max,
            "{id} has too many replicas"
        );
        assert!(
            function.revision <= model.revision,
            "{id} has a revision from the future"
        );
    }
    let revisions: BTreeSet<_> = model.functions.values().map(|f| f.revision).collect();
    assert_eq!(
        revisions.len(),
        model.functions.len(),
        "two functions share a revision"
    );
    assert!(
        model
            .secrets
            .keys()
            .all(|id| model.has_namespace(&id.namespace))
    );
    assert_addresses_sound(model);
    assert_eq!(model.desired_state(), rebuilt_desired(model));
    for wanted in model.desired_state().functions.values() {
        assert_eq!(
            wanted.secrets.len(),
            wanted.spec.secrets.len(),
            "a secret is missing"
        );
    }
}

proptest! {
    #[test]
    fn every_model_is_sound(commands in prop::collection::vec(any_command(), 0..60)) {
        let mut model = ControllerModel::default();
        for command in commands {
            let before = model.clone();
            match run_command(&mut model, command.clone()) {
                Ok(CommandOutcome::Unchanged) | Err(_) => prop_assert_eq!(&before, &model, "{:?}", command),
                Ok(_) => prop_assert_ne!(&before, &model, "{:?}", command),
            }
            prop_assert!(model.revision >= before.revision);
            assert_sound(&model);
        }
    }

    // Changes that no command makes, too: a row of an older version may name a missing secret.
    #[test]
    fn renewed_entries_equal_a_rebuilt_desired_state(changes in prop::collection::vec(any_change(), 0..60)) {
        let mut model = ControllerModel::default();
        for change in changes {
            model.apply_change(change);
            prop_assert_eq!(model.desired_state(), rebuilt_desired(&model));
            let references = model.addresses.references.clone().into_iter();
            prop_assert_eq!(references.collect::<BTreeMap<_, _>>(), needed_names(&model));
        }
    }
}

#[test]
fn an_entry_that_is_not_renewed_is_noticed() {
    let mut model = ControllerModel::default();
    run_command(&mut model, ControllerCommand::Deploy(test_spec("echo"))).unwrap();
    let id: FunctionId = "echo".parse().unwrap();
    model.functions[&id].replicas = 7;
    assert_ne!(model.desired_state(), rebuilt_desired(&model));
    model.renew_desired(&id);
    assert_eq!(model.desired_state(), rebuilt_desired(&model));
}

#[test]
fn a_decision_leaves_the_entries_of_other_functions_alone() {
    let mut model = ControllerModel::default();
    for name in ["a", "b", "c"] {
        run_command(&mut model, ControllerCommand::Deploy(test_spec(name))).unwrap();
    }
    let before = model.desired_state();
    let id: FunctionId = "b".parse().unwrap();
    run_command(&mut model, ControllerCommand::Scale(id.clone(), 0)).unwrap();
    let after = model.desired_state();
    let changed: Vec<_> = after.functions.changes_since(&before.functions).collect();
    assert_eq!(changed.iter().map(|one| one.id).collect::<Vec<_>>(), [&id]);
}
