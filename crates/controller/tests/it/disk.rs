//! Faults of the disk: full, damaged, in use, failing.

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
    let fixture = ControllerFixture::open_on(&folder).await;
    fixture
        .expect_status(
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

/// Flips one byte at many positions of the database, and truncates it. Each time the database is
/// refused by name and left alone, or nothing is lost.
#[tokio::test]
async fn damage_is_refused_or_harmless() {
    let fixture = ControllerFixture::new().await;
    // Enough rows that most pages are full: unused bytes may be damaged without harm.
    for number in 0..30 {
        let body = format!(r#"{{"name":"s{number}","value":"{}"}}"#, "x".repeat(300));
        fixture
            .expect_status(201, "POST", "/system/secrets", &body)
            .await;
        fixture
            .expect_status(
                202,
                "POST",
                "/system/functions",
                &spec_json(&format!("f{number}"), r#","secrets":["s0"]"#),
            )
            .await;
    }
    let whole = tempfile::tempdir().unwrap();
    let before = copy_database(fixture, whole.path()).await;
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
    fixture: ControllerFixture,
    to: &Path,
) -> Arc<nearpath_controller::ControllerModel> {
    let fixture = fixture.reopen().await; // nothing is left in the log then
    let model = fixture.controller.model();
    fs::copy(
        fixture.data_dir().join(DATABASE_FILE),
        to.join(DATABASE_FILE),
    )
    .unwrap();
    assert!(
        !fixture
            .data_dir()
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
            "something was lost without an error"
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
        "mount -t tmpfs -o size=5500k tmpfs {} && exec \"$@\"",
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
    let fixture = ControllerFixture::open_on(&data).await;
    fixture.deploy_function("sleeper").await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/sleeper",
            r#"{"replicas":0}"#,
        )
        .await;
    fixture.deploy_function("neighbour").await;
    let kept = fill_disk(&fixture).await;
    exhaust_disk(&fixture, &folder).await;

    fixture
        .controller
        .wake_function(&"sleeper".parse().unwrap());
    fixture.fleet.wait_for_replicas("sleeper", 1).await; // calls go on
    assert_eq!(
        fixture
            .get_path("/system/secrets")
            .await
            .json()
            .as_array()
            .unwrap()
            .len(),
        kept
    );
    assert_eq!(
        fixture.get_path("/healthz").await.text,
        "OK\n",
        "a full disk is no permanent state"
    );

    drop(fixture);
    let fixture = ControllerFixture::open_on(&data).await; // a restart on the full disk
    assert_eq!(fixture.controller.model().secrets.len(), kept);
    let kept = remove_secrets(&fixture, &folder).await;
    fs::remove_file(&ballast).unwrap();
    fs::remove_file(folder.join("stuffing")).unwrap();
    fixture
        .expect_status(
            201,
            "POST",
            "/system/secrets",
            &secret_json("after", 30_000),
        )
        .await;
    drop(fixture);
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

/// Adds secrets until even a small one has no room. Returns the number of acknowledged ones.
async fn fill_disk(fixture: &ControllerFixture) -> usize {
    let mut kept = 0;
    for (number, size) in [50_000, 5_000, 500]
        .into_iter()
        .flat_map(|size| (0..100).map(move |number| (number, size)))
    {
        let reply = fixture
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

/// Takes the last page of the disk, then scales up and down until even a change as small as a
/// wake-up has no room.
async fn exhaust_disk(fixture: &ControllerFixture, folder: &Path) {
    // Fails half-way, which is the aim.
    let _ = fs::write(folder.join("stuffing"), vec![0; 8 << 20]);
    for replicas in (1..=2).cycle().take(1_000) {
        let body = format!(r#"{{"replicas":{replicas}}}"#);
        if fixture
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

/// Removes every other secret, though the disk is full at each removal. Returns the number of kept
/// ones.
async fn remove_secrets(fixture: &ControllerFixture, folder: &Path) -> usize {
    let names: Vec<_> = fixture.controller.model().secrets.keys().cloned().collect();
    for (number, id) in names.iter().step_by(2).enumerate() {
        let _ = fs::write(folder.join(format!("more-stuffing{number}")), [0; 32 << 10]);
        let body = format!(r#"{{"name":"{}"}}"#, id.name);
        fixture
            .expect_status(202, "DELETE", "/system/secrets", &body)
            .await;
    }
    for number in 0..names.len().div_ceil(2) {
        fs::remove_file(folder.join(format!("more-stuffing{number}"))).unwrap();
    }
    names.len() / 2
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
    let fixture = ControllerFixture::open_on(&data).await;
    fixture.deploy_function("sleeper").await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/sleeper",
            r#"{"replicas":0}"#,
        )
        .await;
    fs::write(&broken, "").unwrap();
    fixture
        .expect_status(503, "POST", "/system/functions", &spec_json("lost", ""))
        .await;
    fs::remove_file(&broken).unwrap();
    let still = fixture
        .expect_status(503, "POST", "/system/functions", &spec_json("lost", ""))
        .await;
    assert_eq!(still.header("x-nearpath-reason"), "read_only");
    let health = fixture.get_path("/healthz").await;
    assert!(
        health.status == 200 && health.text.contains("read-only"),
        "{health:?}"
    );
    fixture
        .controller
        .wake_function(&"sleeper".parse().unwrap());
    fixture.fleet.wait_for_replicas("sleeper", 1).await; // calls go on

    drop(fixture);
    let fixture = ControllerFixture::open_on(&data).await; // the restart that the error asks for
    assert!(fixture.fleet.desired_function("sleeper").is_some());
    fixture.deploy_function("found").await;

    drop(fixture);
    forget_prefix(&data);
    fs::write(&broken, "").unwrap();
    let fixture = ControllerFixture::open_on(&data).await; // calls need no virtual addresses
    assert!(fixture.fleet.desired_function("found").is_some());
    assert_eq!(fixture.fleet.desired_address("found"), None);
    assert!(fixture.controller.read_only_reason().is_some());
    fs::remove_file(&broken).unwrap();

    drop(fixture);
    let fixture = ControllerFixture::open_on(&data).await;
    assert!(fixture.fleet.desired_address("found").is_some());
}

/// Removes the prefix of virtual addresses, so that the next start has to write one.
fn forget_prefix(data: &Path) {
    let db = rusqlite::Connection::open(data.join(DATABASE_FILE)).unwrap();
    let removed = db.execute("DELETE FROM network", []).unwrap();
    assert_eq!(removed, 1);
}
