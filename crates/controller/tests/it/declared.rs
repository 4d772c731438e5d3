//! A controller whose state a folder declares.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_controller::{CommandOutcome, DeclaredFunction, DeclaredState, FolderDigest};
use nearpath_types::{FunctionId, FunctionSpec, Revision};

use crate::fixture::{ControllerFixture, spec_json};

const SOURCE: &str = "/srv/app";

async fn declared_fixture() -> ControllerFixture {
    ControllerFixture::new()
        .await
        .reopen_declared_in(Some(SOURCE.into()))
        .await
}

/// A state with these functions, each with the content of its folder.
fn state_of(functions: &[(&str, &str)]) -> DeclaredState {
    let function = |(name, content): &(&str, &str)| {
        let mut spec = FunctionSpec::named(name.parse().unwrap());
        spec.image = format!("file:///srv/{name}");
        let folder = Some(FolderDigest((*content).into()));
        let (id, spec) = (spec.id(), spec.into());
        (id, DeclaredFunction { spec, folder })
    };
    DeclaredState {
        node: "a".parse().unwrap(),
        nodes: [("a".parse().unwrap(), "10.0.0.1:8444".to_owned())].into(),
        functions: functions.iter().map(function).collect(),
        secrets: BTreeMap::new(),
    }
}

async fn apply(
    fixture: &ControllerFixture,
    state: &DeclaredState,
) -> Result<CommandOutcome, String> {
    let applied = fixture.controller.apply_declared(Arc::new(state.clone()));
    applied.await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_state_survives_a_restart_without_its_source() {
    let fixture = declared_fixture().await;
    let state = state_of(&[("one", "x"), ("two", "x")]);
    assert_eq!(apply(&fixture, &state).await, Ok(CommandOutcome::Updated));
    let before = fixture.controller.model();
    let fixture = fixture.reopen_declared_in(Some(SOURCE.into())).await;
    assert_eq!(*fixture.controller.model(), *before);
    assert_eq!(fixture.controller.model().node_addresses(), state.nodes);
    assert_eq!(fixture.fleet.desired_function("two").unwrap().replicas, 1);
    assert_eq!(apply(&fixture, &state).await, Ok(CommandOutcome::Unchanged));
}

#[tokio::test]
async fn an_equal_or_refused_state_publishes_nothing() {
    let fixture = declared_fixture().await;
    let mut state = state_of(&[("one", "x"), ("two", "x"), ("three", "x")]);
    apply(&fixture, &state).await.unwrap();
    let before = fixture.controller.model();
    apply(&fixture, &state).await.unwrap();
    assert!(Arc::ptr_eq(&before, &fixture.controller.model()));
    state.functions.values_mut().for_each(|one| {
        one.folder = Some(FolderDigest("y".into()));
    });
    let broken: FunctionId = "two".parse().unwrap();
    let declared = state.functions.get_mut(&broken).unwrap();
    Arc::make_mut(&mut declared.spec).image.clear();
    let refused = apply(&fixture, &state).await.unwrap_err();
    assert!(
        refused.starts_with("function two.openfaas-fn: image: missing"),
        "{refused}"
    );
    assert!(Arc::ptr_eq(&before, &fixture.controller.model()));
}

#[tokio::test]
async fn the_api_refuses_changes_and_reads_on() {
    let fixture = declared_fixture().await;
    apply(&fixture, &state_of(&[("one", "x")])).await.unwrap();
    let new = spec_json("new", "");
    let missing = r#"{"service":"new","image":"file:///missing/x"}"#;
    let secret = r#"{"name":"key","value":"x"}"#;
    for (method, path, body) in [
        ("POST", "/system/functions", &*new),
        ("POST", "/system/functions", missing),
        ("PUT", "/system/functions", &*spec_json("one", "")),
        ("DELETE", "/system/functions", r#"{"functionName":"one"}"#),
        ("POST", "/system/scale-function/one", r#"{"replicas":2}"#),
        ("POST", "/system/secrets", secret),
        ("PUT", "/system/secrets", secret),
        ("DELETE", "/system/secrets", r#"{"name":"key"}"#),
        ("POST", "/system/namespace/dev", ""),
        ("POST", "/system/namespace/", r#"{"name":"dev"}"#),
        ("PUT", "/system/namespace/openfaas-fn", "{}"),
        ("DELETE", "/system/namespace/dev", ""),
    ] {
        let reply = fixture.expect_status(409, method, path, body).await;
        assert!(
            reply
                .text
                .contains("comes from /srv/app: edit the files there"),
            "{}",
            reply.text
        );
        assert_eq!(reply.header("x-nearpath-reason"), "conflict");
    }
    let listed = fixture.get_path("/system/functions").await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["name"], "one");
}

#[tokio::test]
async fn a_sleeping_function_is_copied_and_woken_by_calls() {
    let fixture = ControllerFixture::new().await;
    fixture.deploy_function("one").await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/one",
            r#"{"replicas":0}"#,
        )
        .await;
    let fixture = fixture.reopen_declared_in(Some(SOURCE.into())).await;
    apply(&fixture, &state_of(&[("one", "x"), ("two", "x")]))
        .await
        .unwrap();
    let one: FunctionId = "one".parse().unwrap();
    assert_eq!(
        *fixture.fleet.copied.lock().unwrap(),
        [(one.clone(), Revision(2))]
    );
    assert_eq!(fixture.fleet.desired_function("one").unwrap().replicas, 0);
    fixture.controller.wake_function(&one);
    fixture.fleet.wait_for_replicas("one", 1).await;
}
