//! A backup that is taken while functions are deployed, restored on a machine without their folders.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use nearpath_testkit::{need_root, program};
use serde_json::json;

use crate::test_server::{TestServer, script_function};

/// Runs the command line on a thread of its own, because the test's thread has work to do.
async fn nearpath(arguments: Vec<String>) -> Output {
    let run = move || Command::new(program("nearpath")).args(arguments).output();
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

fn text_of(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Deploys functions and updates them until `enough`.
async fn deploy_often(server: &TestServer, folder: &Path, enough: &AtomicBool) {
    for n in (0..).take_while(|_| !enough.load(Ordering::SeqCst)) {
        let mut spec = script_function(folder, &format!("busy-{}", n % 8), "exec cat\n");
        spec["envVars"] = json!({ "revision": n.to_string() });
        server.deploy(&spec).await;
    }
}

#[tokio::test]
async fn a_backup_under_deployments_is_restored_with_folders_and_secrets() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let sources = folder.path().join("sources");
    let server = TestServer::start_in(&folder.path().join("data"), &[]).await;
    let secret = json!({ "name": "key", "value": "hidden" }).to_string();
    server
        .send_request(Method::POST, "/system/secrets", secret)
        .await;
    let code = "cat; cat /var/openfaas/secrets/key\n";
    let mut spec = script_function(&sources, "steady", code);
    spec["secrets"] = json!(["key"]);
    server.deploy_ready(&spec).await;

    let (file, enough) = (folder.path().join("backup.tar"), AtomicBool::new(false));
    let gateway = format!("http://{}", server.addr);
    let backup = async {
        let arguments = ["backup", file.to_str().unwrap(), "--gateway", &gateway];
        // Several: each replaces the file of the one before.
        for _ in 0..5 {
            let taken = nearpath(arguments.map(str::to_owned).into()).await;
            assert!(taken.status.success(), "{taken:?}");
        }
        enough.store(true, Ordering::SeqCst);
    };
    tokio::join!(backup, deploy_often(&server, &sources, &enough));
    drop(server);
    std::fs::remove_dir_all(&sources).unwrap();

    let restored = folder.path().join("restored");
    let arguments = [
        "restore",
        &text_of(&file),
        "--data-dir",
        &text_of(&restored),
    ];
    let output = nearpath(arguments.map(str::to_owned).into()).await;
    assert!(output.status.success(), "{output:?}");
    let server = TestServer::start_in(&restored, &[]).await;
    for (name, expected) in [("steady", "hello hidden"), ("busy-0", "hello ")] {
        let answer = server.call_function(name, "hello ").await;
        assert_eq!(answer.body(), expected, "{name}: {}", server.log());
    }
}
