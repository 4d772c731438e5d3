use std::collections::BTreeSet;
use std::time::Duration;

use nearpath_types::Resources;
use proptest::prelude::*;

use super::*;

fn spec(name: &str) -> FunctionSpec {
    let mut spec = FunctionSpec::named(name.parse().unwrap());
    spec.image = "file:///srv/echo".into();
    spec
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn run(model: &mut Model, command: Command) -> Result<Outcome, Refusal> {
    let decision = decide(model, &command, at(1))?;
    decision.changes.into_iter().for_each(|change| model.apply(change));
    Ok(decision.outcome)
}

fn secret(text: &str) -> Secret {
    Secret(text.as_bytes().into())
}

fn replicas(model: &Model, name: &str) -> u32 {
    model.functions[&name.parse::<FunctionId>().unwrap()].replicas
}

#[test]
fn scaling_honours_zero_and_the_maximum() {
    let mut model = Model::default();
    let mut echo = spec("echo");
    echo.labels.insert("com.openfaas.scale.min".into(), "2".into());
    echo.labels.insert("com.openfaas.scale.max".into(), "4".into());
    run(&mut model, Command::Deploy(echo)).unwrap();
    assert_eq!(replicas(&model, "echo"), 2);
    let id: FunctionId = "echo".parse().unwrap();
    for (asked, got) in [(0, 0), (1, 1), (4, 4), (5, 4), (u64::MAX, 4)] {
        run(&mut model, Command::Scale(id.clone(), asked)).unwrap();
        assert_eq!(replicas(&model, "echo"), got, "{asked}");
    }
    assert_eq!(run(&mut model, Command::Wake(id.clone())), Ok(Outcome::Unchanged), "it is awake");
    run(&mut model, Command::Scale(id.clone(), 0)).unwrap();
    assert_eq!(run(&mut model, Command::Wake(id)), Ok(Outcome::Updated));
    assert_eq!(replicas(&model, "echo"), 2);
}

#[test]
fn a_deploy_keeps_birthday_and_replicas_and_wakes() {
    let mut model = Model::default();
    run(&mut model, Command::Deploy(spec("echo"))).unwrap();
    let id: FunctionId = "echo".parse().unwrap();
    run(&mut model, Command::Scale(id.clone(), 3)).unwrap();
    let decision = decide(&model, &Command::Update(spec("echo")), at(9)).unwrap();
    decision.changes.into_iter().for_each(|change| model.apply(change));
    assert_eq!((replicas(&model, "echo"), model.functions[&id].created_at), (3, at(1)));
    assert_eq!(model.functions[&id].revision, Revision(2));
    run(&mut model, Command::Scale(id.clone(), 0)).unwrap();
    run(&mut model, Command::Deploy(spec("echo"))).unwrap();
    assert_eq!(replicas(&model, "echo"), 1);
}

#[test]
fn revisions_survive_a_removal() {
    let mut model = Model::default();
    run(&mut model, Command::Deploy(spec("echo"))).unwrap();
    run(&mut model, Command::Remove("echo".parse().unwrap())).unwrap();
    run(&mut model, Command::Deploy(spec("echo"))).unwrap();
    assert_eq!(model.functions[&"echo".parse().unwrap()].revision, Revision(2));
}

#[test]
fn a_changed_secret_renews_its_users_only() {
    let mut model = Model::default();
    let id: SecretId = "openfaas-fn/key".parse().unwrap();
    run(&mut model, Command::CreateSecret(id.clone(), secret("old"))).unwrap();
    let mut user = spec("user");
    user.secrets = vec!["key".into()];
    run(&mut model, Command::Deploy(user)).unwrap();
    run(&mut model, Command::Deploy(spec("other"))).unwrap();
    assert_eq!(run(&mut model, Command::UpdateSecret(id.clone(), secret("old"))), Ok(Outcome::Unchanged));
    run(&mut model, Command::UpdateSecret(id.clone(), secret("new"))).unwrap();
    assert_eq!(model.functions[&"user".parse().unwrap()].revision, Revision(3));
    assert_eq!(model.functions[&"other".parse().unwrap()].revision, Revision(2));
    let desired = model.desired();
    let wanted = desired.functions.iter().find(|f| f.spec.service.as_str() == "user").unwrap();
    assert_eq!(wanted.secrets["key"], b"new");
    let refusal = run(&mut model, Command::RemoveSecret(id)).unwrap_err();
    assert!(matches!(&refusal, Refusal::SecretInUse(_, users) if users == "user"), "{refusal}");
}

#[test]
fn what_says_nothing_is_left_out() {
    let mut model = Model::default();
    run(&mut model, Command::CreateSecret("openfaas-fn/key".parse().unwrap(), secret("x"))).unwrap();
    let mut echo = spec("echo");
    echo.limits = Some(Resources { memory: Some(String::new()), cpu: Some("1".into()), pids: None });
    echo.secrets = vec!["key".into(), "key".into()];
    run(&mut model, Command::Deploy(echo)).unwrap();
    let kept = &model.functions[&"echo".parse().unwrap()].spec;
    assert_eq!(kept.limits, Some(Resources { memory: None, cpu: Some("1".into()), pids: None }));
    assert_eq!(kept.secrets, ["key"]);
}

#[test]
fn bad_specs_are_refused_by_the_name_of_the_field() {
    type Break = fn(&mut FunctionSpec);
    let broken: [(&str, Break); 12] = [
        ("image", |s| s.image.clear()),
        ("image", |s| s.image = "ghcr.io/openfaas/figlet:latest".into()),
        ("image", |s| s.image = "file://srv/echo".into()),
        ("image", |s| s.image = "file:///srv/../etc".into()),
        ("envVars", |s| drop(s.env_vars.insert("A=B".into(), "x".into()))),
        ("envVars", |s| drop(s.env_vars.insert("A".into(), "\0".into()))),
        ("envProcess", |s| s.env_process = "\0".into()),
        ("limits.memory", |s| s.limits = Some(Resources { memory: Some("much".into()), ..Resources::default() })),
        ("requests.cpu", |s| s.requests = Some(Resources { cpu: Some("1Gi".into()), ..Resources::default() })),
        ("limits.pids", |s| s.limits = Some(Resources { pids: Some(0), ..Resources::default() })),
        ("com.openfaas.scale.min", |s| drop(s.labels.insert("com.openfaas.scale.min".into(), "21".into()))),
        ("nearpath.io/queue", |s| drop(s.annotations.insert("nearpath.io/queue".into(), "-1".into()))),
    ];
    for (field, breaks) in broken {
        let mut spec = spec("echo");
        breaks(&mut spec);
        let refusal = decide(&Model::default(), &Command::Deploy(spec), at(1)).unwrap_err();
        assert!(refusal.to_string().starts_with(&format!("{field}:")), "{field}: {refusal}");
        assert_eq!(refusal.reason().status(), 400);
    }
    let mut needy = spec("echo");
    needy.secrets = vec!["key".into(), "cert".into()];
    let refusal = decide(&Model::default(), &Command::Deploy(needy), at(1)).unwrap_err();
    assert!(refusal.to_string().contains("key, cert"), "{refusal}");
}

pub(crate) fn any_command() -> impl Strategy<Value = Command> {
    let namespace = || prop::sample::select(vec!["openfaas-fn", "dev", "ops"]).prop_map(|n| n.parse().unwrap());
    let id = (prop::sample::select(vec!["a", "b"]), namespace())
        .prop_map(|(name, namespace)| FunctionId { name: name.parse().unwrap(), namespace });
    let key = (prop::sample::select(vec!["k", "l"]), namespace())
        .prop_map(|(name, namespace)| SecretId { namespace, name: name.parse().unwrap() });
    let value = "[xy]".prop_map(|text| secret(&text));
    let deployed =
        (id.clone(), prop::sample::subsequence(vec!["k", "l"], 0..=2), 1u32..4).prop_map(|(id, keys, max)| {
            let mut spec = spec(id.name.as_str());
            spec.namespace = id.namespace;
            spec.secrets = keys.into_iter().map(str::to_owned).collect();
            spec.labels.insert("com.openfaas.scale.max".into(), max.to_string());
            spec
        });
    prop_oneof![
        deployed.clone().prop_map(Command::Deploy),
        deployed.prop_map(Command::Update),
        id.clone().prop_map(Command::Remove),
        (id.clone(), 0u64..6).prop_map(|(id, n)| Command::Scale(id, n)),
        id.prop_map(Command::Wake),
        (key.clone(), value.clone()).prop_map(|(key, value)| Command::CreateSecret(key, value)),
        (key.clone(), value).prop_map(|(key, value)| Command::UpdateSecret(key, value)),
        key.prop_map(Command::RemoveSecret),
        namespace().prop_map(|name| Command::CreateNamespace(name, NamespaceEntry::default())),
        namespace().prop_map(Command::RemoveNamespace),
    ]
}

/// What holds in every model that commands can lead to.
fn is_sound(model: &Model) {
    for (id, function) in &model.functions {
        assert_eq!(*id, function.spec.id());
        assert!(model.has_namespace(&id.namespace), "{id} lives nowhere");
        assert!(function.replicas <= function.policy().scale_max, "{id} has too many replicas");
        assert!(function.revision <= model.revision, "{id} has a revision from the future");
    }
    let revisions: BTreeSet<_> = model.functions.values().map(|f| f.revision).collect();
    assert_eq!(revisions.len(), model.functions.len(), "two functions share a revision");
    assert!(model.secrets.keys().all(|id| model.has_namespace(&id.namespace)));
    for wanted in model.desired().functions {
        assert_eq!(wanted.secrets.len(), wanted.spec.secrets.len(), "a secret is missing");
    }
}

proptest! {
    #[test]
    fn every_model_is_sound(commands in prop::collection::vec(any_command(), 0..60)) {
        let mut model = Model::default();
        for command in commands {
            let before = model.clone();
            match run(&mut model, command.clone()) {
                Ok(Outcome::Unchanged) | Err(_) => prop_assert_eq!(&before, &model, "{:?}", command),
                Ok(_) => prop_assert_ne!(&before, &model, "{:?}", command),
            }
            prop_assert!(model.revision >= before.revision);
            is_sound(&model);
        }
    }
}
