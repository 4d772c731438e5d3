//! Acknowledged changes survive a restart, also after `kill -9`.

use std::collections::BTreeSet;
use std::path::Path;

use nearpath_testkit::{skip, within};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::child;
use crate::fixture::{ControllerFixture, spec_json};

#[tokio::test]
async fn a_restart_keeps_everything() {
    let fixture = ControllerFixture::new().await;
    fixture
        .expect_status(
            201,
            "POST",
            "/system/namespace/dev",
            r#"{"labels":{"a":"b"}}"#,
        )
        .await;
    fixture
        .expect_status(
            201,
            "POST",
            "/system/secrets",
            r#"{"name":"key","namespace":"dev","rawValue":"AP8="}"#,
        )
        .await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/functions",
            &spec_json("echo", r#","namespace":"dev","secrets":["key"]"#),
        )
        .await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/echo.dev",
            r#"{"replicas":3}"#,
        )
        .await;
    fixture.deploy_function("gone").await;
    fixture
        .expect_status(
            200,
            "DELETE",
            "/system/functions",
            r#"{"functionName":"gone"}"#,
        )
        .await;
    fixture.deploy_function("asleep").await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/asleep",
            r#"{"replicas":0}"#,
        )
        .await;
    let (before, wanted) = (
        fixture.controller.model(),
        fixture.fleet.desired_function("echo.dev"),
    );
    let fixture = fixture.reopen().await;
    assert_eq!(fixture.controller.model(), before);
    assert_eq!(
        fixture.fleet.desired_function("echo.dev"),
        wanted,
        "the state is applied at the start"
    );
    fixture.deploy_function("gone").await;
    let revision = fixture.fleet.desired_function("gone").unwrap().revision;
    assert!(
        wanted.unwrap().revision < revision && before.revision < revision,
        "revisions never go back"
    );
}

#[tokio::test]
async fn changes_at_the_same_time_are_all_kept() {
    let fixture = ControllerFixture::new().await;
    let names: Vec<String> = (0..200).map(|number| format!("f{number}")).collect();
    futures_util::future::join_all(names.iter().map(|name| fixture.deploy_function(name))).await;
    let revisions: BTreeSet<_> = fixture
        .controller
        .model()
        .functions
        .values()
        .map(|f| f.revision)
        .collect();
    assert_eq!(revisions.len(), names.len());
    let before = fixture.controller.model();
    assert_eq!(fixture.reopen().await.controller.model(), before);
}

#[tokio::test]
async fn a_closed_controller_refuses_changes_and_frees_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = ControllerFixture::open_on(folder.path()).await;
    fixture.deploy_function("echo").await;
    within(fixture.controller.close()).await;
    within(fixture.controller.close()).await;
    let refused = fixture
        .expect_status(503, "POST", "/system/functions", &spec_json("late", ""))
        .await;
    assert_eq!(refused.header("x-nearpath-reason"), "draining");
    assert_eq!(
        fixture
            .get_path("/system/functions")
            .await
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let next = ControllerFixture::open_on(folder.path()).await;
    assert_eq!(next.controller.model(), fixture.controller.model());
}

const KILL_ROUNDS: usize = 8;
const CONCURRENT_WRITERS: usize = 4;

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..KILL_ROUNDS {
        acknowledged.extend(write_and_kill(folder.path(), round).await);
        let fixture = ControllerFixture::open_on(folder.path()).await;
        let model = fixture.controller.model();
        for name in &acknowledged {
            let secret = model.secrets.get(
                &format!("openfaas-fn/{name}")
                    .parse::<nearpath_controller::model::SecretId>()
                    .unwrap(),
            );
            assert_eq!(
                secret.map(|s| &*s.0),
                Some(name.as_bytes()),
                "{name} was acknowledged and is lost"
            );
        }
    }
    assert!(
        acknowledged.len() > KILL_ROUNDS * CONCURRENT_WRITERS,
        "the child hardly wrote anything"
    );
}

/// Runs a child until it has acknowledged some changes, kills it in the middle, and returns the
/// acknowledged changes.
async fn write_and_kill(folder: &Path, round: usize) -> Vec<String> {
    let mut command = child::child_command(&[], "durability::writes_for_ever", folder);
    let mut writer = command.env("ROUND", round.to_string()).spawn().unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    while let Some(line) = within(lines.next_line()).await.unwrap() {
        acknowledged.extend(line.strip_prefix("acknowledged ").map(str::to_owned));
        if acknowledged.len() == 15 + 11 * round {
            writer.start_kill().unwrap(); // reading goes on: later acknowledgements count
        }
    }
    within(writer.wait()).await.unwrap();
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a child of what_was_acknowledged_survives_kill_9"]
async fn writes_for_ever() {
    let Some(folder) = child::child_folder() else {
        skip!("runs as a child only")
    };
    let round = std::env::var("ROUND").unwrap();
    let fixture = ControllerFixture::open_on(&folder).await;
    let series = |series: usize| {
        let (fixture, round) = (&fixture, &round);
        async move {
            for number in 0.. {
                let name = format!("r{round}-s{series}-{number}");
                let body = format!(r#"{{"name":"{name}","value":"{name}"}}"#);
                fixture
                    .expect_status(201, "POST", "/system/secrets", &body)
                    .await;
                println!("\nacknowledged {name}");
            }
        }
    };
    futures_util::future::join_all((0..CONCURRENT_WRITERS).map(series)).await;
}
