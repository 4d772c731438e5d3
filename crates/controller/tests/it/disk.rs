//! Bad days of the disk: full, damaged, in use, failing.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use nearpath_controller::store::DATABASE;
use nearpath_controller::{Auth, Controller, OpenError};
use nearpath_testkit::{need_root, skip, within};

use crate::child;
use crate::lab::{FakeFleet, Lab, config, spec};

async fn open(folder: &Path) -> Result<Controller, OpenError> {
    let fleet = Arc::new(FakeFleet::default());
    within(Controller::open(config(folder, Auth::Off), fleet.clone(), fleet)).await
}

#[tokio::test]
async fn a_second_process_is_told_who_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).await.unwrap();
    let error = open(folder.path()).await.unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()) && error.contains("--data-dir"), "{error}");
    drop(first);
    open(folder.path()).await.unwrap();
}

#[tokio::test]
async fn secrets_are_for_the_owner_s_eyes() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a/data");
    let lab = Lab::on(&folder).await;
    lab.expect(201, "POST", "/system/secrets", r#"{"name":"key","value":"x"}"#).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for file in fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let error = open(&path).await.unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
}

/// Turns one byte over at many places of the database, and cuts it short. Each time it is either refused by name and
/// left alone, or nothing is lost.
#[tokio::test]
async fn damage_is_refused_or_harmless() {
    let lab = Lab::new().await;
    for number in 0..20 {
        let body = format!(r#"{{"name":"s{number}","value":"{}"}}"#, "x".repeat(300));
        lab.expect(201, "POST", "/system/secrets", &body).await;
        lab.expect(202, "POST", "/system/functions", &spec(&format!("f{number}"), r#","secrets":["s0"]"#)).await;
    }
    let whole = tempfile::tempdir().unwrap();
    let before = copy_when_closed(lab, whole.path()).await;
    let good = fs::read(whole.path().join(DATABASE)).unwrap();

    let mut refused = 0;
    for place in (0..good.len()).step_by(151) {
        let mut bad = good.clone();
        bad[place] ^= 0x15;
        refused += usize::from(refused_or_equal(&bad, &before).await);
    }
    assert!(refused * 3 > good.len() / 151, "only {refused} of {} were noticed", good.len() / 151);
    for length in [0, 1, 100, 4_096, good.len() / 2, good.len() - 1] {
        assert!(refused_or_equal(&good[..length], &before).await, "cut to {length} bytes");
    }
}

async fn copy_when_closed(lab: Lab, to: &Path) -> Arc<nearpath_controller::Model> {
    let lab = lab.reopened().await; // nothing is left in the log then
    let model = lab.controller.model();
    fs::copy(lab.path().join(DATABASE), to.join(DATABASE)).unwrap();
    assert!(!lab.path().join("nearpath.db-wal").metadata().is_ok_and(|log| log.len() > 0));
    model
}

async fn refused_or_equal(bytes: &[u8], model: &nearpath_controller::Model) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DATABASE);
    fs::write(&path, bytes).unwrap();
    match open(folder.path()).await {
        Ok(controller) => assert_eq!(*controller.model(), *model, "something was lost without a word"),
        Err(error) => {
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "a refused database is left alone: {error}");
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_full_disk_is_told_and_survived() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o size=1m tmpfs {} && exec \"$@\"", folder.path().display());
    let wrapper = ["unshare", "-m", "sh", "-c", &script, "sh"];
    child::succeeds(child::run(&wrapper, "disk::on_a_small_disk", folder.path())).await;
}

#[tokio::test]
#[ignore = "a child of a_full_disk_is_told_and_survived"]
async fn on_a_small_disk() {
    let Some(folder) = child::folder() else { skip!("runs as a child only") };
    let ballast = folder.join("ballast");
    fs::write(&ballast, vec![0; 300 << 10]).unwrap();
    let data = folder.join("data");
    let lab = Lab::on(&data).await;
    lab.deploy("sleeper").await;
    lab.expect(202, "POST", "/system/scale-function/sleeper", r#"{"replicas":0}"#).await;
    lab.deploy("neighbour").await;
    let kept = fill(&lab).await;
    exhaust(&lab, &folder).await;

    lab.controller.wake(&"sleeper".parse().unwrap());
    lab.fleet.until_replicas("sleeper", 1).await; // calls go on
    assert_eq!(lab.get("/system/secrets").await.json().as_array().unwrap().len(), kept);
    assert_eq!(lab.get("/healthz").await.text, "OK\n", "it mends itself: no state to speak of");

    drop(lab);
    let lab = Lab::on(&data).await; // a restart on the full disk
    assert_eq!(lab.controller.model().secrets.len(), kept);
    fs::remove_file(&ballast).unwrap();
    fs::remove_file(folder.join("stuffing")).unwrap();
    lab.expect(201, "POST", "/system/secrets", &secret("after", 30_000)).await;
    drop(lab);
    assert_eq!(Lab::on(&data).await.controller.model().secrets.len(), kept + 1);
}

/// Adds secrets until there is no room, even for a small one; returns how many were acknowledged.
async fn fill(lab: &Lab) -> usize {
    let mut kept = 0;
    for (number, size) in [50_000, 5_000, 500].into_iter().flat_map(|size| (0..100).map(move |number| (number, size))) {
        let reply = lab.call("POST", "/system/secrets", secret(&format!("s{size}-{number}"), size)).await;
        if reply.status == 201 {
            kept += 1;
            continue;
        }
        assert_eq!((reply.status.as_u16(), reply.header("x-nearpath-reason")), (507, "storage_full"));
        assert!(reply.text.contains("full") && reply.text.contains("--data-dir"), "{}", reply.text);
    }
    assert!((1..300).contains(&kept), "the disk is not full");
    kept
}

/// Takes the last page of the disk, then scales to and fro until even so small a change as a wake-up finds no room.
async fn exhaust(lab: &Lab, folder: &Path) {
    let _ = fs::write(folder.join("stuffing"), vec![0; 1 << 20]); // fails half-way, which is the aim
    for replicas in (1..=2).cycle().take(1_000) {
        let body = format!(r#"{{"replicas":{replicas}}}"#);
        if lab.call("POST", "/system/scale-function/neighbour", body).await.status == 507 {
            return;
        }
    }
    panic!("the disk is not full");
}

fn secret(name: &str, size: usize) -> String {
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
    let mut command = child::run(&[], "disk::on_a_failing_disk", folder.path());
    command.env("LD_PRELOAD", &library).env("FSYNC_FAILS_WHILE", folder.path().join("broken"));
    child::succeeds(command).await;
}

#[tokio::test]
#[ignore = "a child of after_a_failed_fsync_nothing_more_is_written"]
async fn on_a_failing_disk() {
    let Some(folder) = child::folder() else { skip!("runs as a child only") };
    let (broken, data) = (folder.join("broken"), folder.join("data"));
    let lab = Lab::on(&data).await;
    lab.deploy("sleeper").await;
    lab.expect(202, "POST", "/system/scale-function/sleeper", r#"{"replicas":0}"#).await;
    fs::write(&broken, "").unwrap();
    lab.expect(503, "POST", "/system/functions", &spec("lost", "")).await;
    fs::remove_file(&broken).unwrap();
    let still = lab.expect(503, "POST", "/system/functions", &spec("lost", "")).await;
    assert_eq!(still.header("x-nearpath-reason"), "read_only");
    let health = lab.get("/healthz").await;
    assert!(health.status == 200 && health.text.contains("read-only"), "{health:?}");
    lab.controller.wake(&"sleeper".parse().unwrap());
    lab.fleet.until_replicas("sleeper", 1).await; // calls go on

    drop(lab);
    let lab = Lab::on(&data).await; // the restart that the error asks for
    assert!(lab.fleet.wants("sleeper").is_some());
    lab.deploy("found").await;
}
