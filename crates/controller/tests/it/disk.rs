//! Bad days of the disk: full, damaged, in use, failing.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use nearpath_controller::store::DATABASE_FILE;
use nearpath_controller::{AuthMode, Controller, StoreOpenError};
use nearpath_testkit::{need_root, skip, within};

use crate::child;
use crate::fixture::{ControllerFixture, FakeFleet, spec_json, test_config};

async fn try_open(folder: &Path) -> Result<Controller, StoreOpenError> {
    let fleet = Arc::new(FakeFleet::default());
    within(Controller::open(
        test_config(folder, AuthMode::Disabled),
        fleet.clone(),
        fleet,
    ))
    .await
}

#[tokio::test]
async fn a_second_process_is_refused_with_the_owners_pid() {
    let folder = tempfile::tempdir().unwrap();
    let first = try_open(folder.path()).await.unwrap();
    let error = try_open(folder.path()).await.unwrap_err().to_string();
    assert!(
        error.contains(&std::process::id().to_string()) && error.contains("--data-dir"),
        "{error}"
    );
    drop(first);
    try_open(folder.path()).await.unwrap();
}

#[tokio::test]
async fn the_data_directory_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a/data");
    let lab = ControllerFixture::open_on(&folder).await;
    lab.expect_status(
        201,
        "POST",
        "/system/secrets",
        r#"{"name":"key","value":"x"}"#,
    )
    .await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for file in fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[tokio::test]
async fn an_unusable_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let error = try_open(&path).await.unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
}

/// Turns one byte over at many places of the database, and cuts it short. Each time it is either refused by name and
/// left alone, or nothing is lost.
#[tokio::test]
async fn damage_is_refused_or_harmless() {
    let lab = ControllerFixture::new().await;
    for number in 0..20 {
        let body = format!(r#"{{"name":"s{number}","value":"{}"}}"#, "x".repeat(300));
        lab.expect_status(201, "POST", "/system/secrets", &body)
            .await;
        lab.expect_status(
            202,
            "POST",
            "/system/functions",
            &spec_json(&format!("f{number}"), r#","secrets":["s0"]"#),
        )
        .await;
    }
    let whole = tempfile::tempdir().unwrap();
    let before = copy_database(lab, whole.path()).await;
    let good = fs::read(whole.path().join(DATABASE_FILE)).unwrap();

    let mut refused = 0;
    for place in (0..good.len()).step_by(151) {
        let mut bad = good.clone();
        bad[place] ^= 0x15;
        refused += usize::from(refused_or_equal(&bad, &before).await);
    }
    assert!(
        refused * 3 > good.len() / 151,
        "only {refused} of {} were noticed",
        good.len() / 151
    );
    for length in [0, 1, 100, 4_096, good.len() / 2, good.len() - 1] {
        assert!(
            refused_or_equal(&good[..length], &before).await,
            "cut to {length} bytes"
        );
    }
}

async fn copy_database(
    lab: ControllerFixture,
    to: &Path,
) -> Arc<nearpath_controller::ControllerModel> {
    let lab = lab.reopen().await; // nothing is left in the log then
    let model = lab.controller.model();
    fs::copy(lab.data_dir().join(DATABASE_FILE), to.join(DATABASE_FILE)).unwrap();
    assert!(
        !lab.data_dir()
            .join("nearpath.db-wal")
            .metadata()
            .is_ok_and(|log| log.len() > 0)
    );
    model
}

async fn refused_or_equal(bytes: &[u8], model: &nearpath_controller::ControllerModel) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DATABASE_FILE);
    fs::write(&path, bytes).unwrap();
    match try_open(folder.path()).await {
        Ok(controller) => assert_eq!(
            *controller.model(),
            *model,
            "something was lost without a word"
        ),
        Err(error) => {
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{error}"
            );
            assert_eq!(
                fs::read(&path).unwrap(),
                bytes,
                "a refused database is left alone: {error}"
            );
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_full_disk_is_reported_and_survived() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs {} && exec \"$@\"",
        folder.path().display()
    );
    let wrapper = ["unshare", "-m", "sh", "-c", &script, "sh"];
    child::assert_success(child::child_command(
        &wrapper,
        "disk::on_a_small_disk",
        folder.path(),
    ))
    .await;
}

#[tokio::test]
#[ignore = "a child of a_full_disk_is_told_and_survived"]
async fn on_a_small_disk() {
    let Some(folder) = child::child_folder() else {
        skip!("runs as a child only")
    };
    let ballast = folder.join("ballast");
    fs::write(&ballast, vec![0; 300 << 10]).unwrap();
    let data = folder.join("data");
    let lab = ControllerFixture::open_on(&data).await;
    lab.deploy_function("sleeper").await;
    lab.expect_status(
        202,
        "POST",
        "/system/scale-function/sleeper",
        r#"{"replicas":0}"#,
    )
    .await;
    lab.deploy_function("neighbour").await;
    let kept = fill_disk(&lab).await;
    exhaust_disk(&lab, &folder).await;

    lab.controller.wake_function(&"sleeper".parse().unwrap());
    lab.fleet.wait_for_replicas("sleeper", 1).await; // calls go on
    assert_eq!(
        lab.get_path("/system/secrets")
            .await
            .json()
            .as_array()
            .unwrap()
            .len(),
        kept
    );
    assert_eq!(
        lab.get_path("/healthz").await.text,
        "OK\n",
        "it mends itself: no state to speak of"
    );

    drop(lab);
    let lab = ControllerFixture::open_on(&data).await; // a restart on the full disk
    assert_eq!(lab.controller.model().secrets.len(), kept);
    fs::remove_file(&ballast).unwrap();
    fs::remove_file(folder.join("stuffing")).unwrap();
    lab.expect_status(
        201,
        "POST",
        "/system/secrets",
        &secret_json("after", 30_000),
    )
    .await;
    drop(lab);
    assert_eq!(
        ControllerFixture::open_on(&data)
            .await
            .controller
            .model()
            .secrets
            .len(),
        kept + 1
    );
}

/// Adds secrets until there is no room, even for a small one; returns how many were acknowledged.
async fn fill_disk(lab: &ControllerFixture) -> usize {
    let mut kept = 0;
    for (number, size) in [50_000, 5_000, 500]
        .into_iter()
        .flat_map(|size| (0..100).map(move |number| (number, size)))
    {
        let reply = lab
            .call_api(
                "POST",
                "/system/secrets",
                secret_json(&format!("s{size}-{number}"), size),
            )
            .await;
        if reply.status == 201 {
            kept += 1;
            continue;
        }
        assert_eq!(
            (reply.status.as_u16(), reply.header("x-nearpath-reason")),
            (507, "storage_full")
        );
        assert!(
            reply.text.contains("full") && reply.text.contains("--data-dir"),
            "{}",
            reply.text
        );
    }
    assert!((1..300).contains(&kept), "the disk is not full");
    kept
}

/// Takes the last page of the disk, then scales to and fro until even so small a change as a wake-up finds no room.
async fn exhaust_disk(lab: &ControllerFixture, folder: &Path) {
    let _ = fs::write(folder.join("stuffing"), vec![0; 1 << 20]); // fails half-way, which is the aim
    for replicas in (1..=2).cycle().take(1_000) {
        let body = format!(r#"{{"replicas":{replicas}}}"#);
        if lab
            .call_api("POST", "/system/scale-function/neighbour", body)
            .await
            .status
            == 507
        {
            return;
        }
    }
    panic!("the disk is not full");
}

fn secret_json(name: &str, size: usize) -> String {
    format!(r#"{{"name":"{name}","value":"{}"}}"#, "x".repeat(size))
}

#[tokio::test]
async fn after_a_failed_fsync_nothing_more_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("fsync.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/failing_fsync.c");
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .stderr(Stdio::null())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        skip!("needs a C compiler (cc) to build a library that makes fsync fail");
    }
    let mut command = child::child_command(&[], "disk::on_a_failing_disk", folder.path());
    command
        .env("LD_PRELOAD", &library)
        .env("FSYNC_FAILS_WHILE", folder.path().join("broken"));
    child::assert_success(command).await;
}

#[tokio::test]
#[ignore = "a child of after_a_failed_fsync_nothing_more_is_written"]
async fn on_a_failing_disk() {
    let Some(folder) = child::child_folder() else {
        skip!("runs as a child only")
    };
    let (broken, data) = (folder.join("broken"), folder.join("data"));
    let lab = ControllerFixture::open_on(&data).await;
    lab.deploy_function("sleeper").await;
    lab.expect_status(
        202,
        "POST",
        "/system/scale-function/sleeper",
        r#"{"replicas":0}"#,
    )
    .await;
    fs::write(&broken, "").unwrap();
    lab.expect_status(503, "POST", "/system/functions", &spec_json("lost", ""))
        .await;
    fs::remove_file(&broken).unwrap();
    let still = lab
        .expect_status(503, "POST", "/system/functions", &spec_json("lost", ""))
        .await;
    assert_eq!(still.header("x-nearpath-reason"), "read_only");
    let health = lab.get_path("/healthz").await;
    assert!(
        health.status == 200 && health.text.contains("read-only"),
        "{health:?}"
    );
    lab.controller.wake_function(&"sleeper".parse().unwrap());
    lab.fleet.wait_for_replicas("sleeper", 1).await; // calls go on

    drop(lab);
    let lab = ControllerFixture::open_on(&data).await; // the restart that the error asks for
    assert!(lab.fleet.desired_function("sleeper").is_some());
    lab.deploy_function("found").await;
}
