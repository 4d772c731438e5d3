//! `--gateway-cpu`: only the gateway's threads are in a control group whose quota follows the load.

use std::path::{Path, PathBuf};

use http::Method;
use nearpath_testkit::{eventually, need_root, skip};
use rustix::process::Signal;

use crate::test_server::{TestServer, echo_function};

/// Control groups of gateways on this machine, in the CPU controller's own hierarchy.
fn gateway_groups() -> Vec<PathBuf> {
    let mounts = [
        "/sys/fs/cgroup/cpu/nearpath",
        "/sys/fs/cgroup/cpu,cpuacct/nearpath",
    ];
    let folders = mounts
        .iter()
        .filter_map(|mount| std::fs::read_dir(mount).ok())
        .flatten()
        .map(|entry| entry.unwrap());
    folders
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with("-gateway"))
        .collect()
}

/// Names of the server's threads in one of the groups, and that group.
fn group_threads(server: &TestServer) -> Option<(PathBuf, Vec<String>)> {
    let name = |thread: &str| {
        std::fs::read_to_string(format!("/proc/{}/task/{thread}/comm", server.pid())).ok()
    };
    gateway_groups().into_iter().find_map(|group| {
        let threads = std::fs::read_to_string(group.join("tasks")).ok()?;
        let names: Vec<_> = threads
            .lines()
            .filter_map(name)
            .map(|name| name.trim().to_owned())
            .collect();
        (!names.is_empty()).then_some((group, names))
    })
}

/// Waits for a response: the sockets exist before the threads.
async fn wait_serving(server: &TestServer) {
    assert_eq!(
        server
            .send_request(Method::GET, "/healthz", "")
            .await
            .status(),
        200
    );
}

fn read_quota(group: &Path) -> i64 {
    std::fs::read_to_string(group.join("cpu.cfs_quota_us"))
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn the_gateways_quota_follows_its_load_and_is_swept_after_kill_nine() {
    need_root!();
    if !["cpu", "cpu,cpuacct"].iter().any(|name| {
        Path::new("/sys/fs/cgroup")
            .join(name)
            .join("cgroup.procs")
            .exists()
    }) {
        skip!("the cpu controller has no hierarchy of its own here");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut server =
        TestServer::start_in(folder.path(), &["--gateway-cpu", "auto", "--threads", "2"]).await;
    wait_serving(&server).await;
    let both = async || group_threads(&server).is_some_and(|(_, names)| names.len() == 2);
    eventually("both threads are in the group", both).await; // a single thread may have responded
    let (group, names) = group_threads(&server).unwrap();
    assert!(
        names.iter().all(|name| name.starts_with("gateway-")),
        "{names:?}"
    );
    eventually("idle, it has a tenth of a core", async || {
        read_quota(&group) == 10_000
    })
    .await;
    server
        .deploy_ready(&echo_function(folder.path(), "echo"))
        .await;
    for _ in 0..20 {
        assert_eq!(server.call_function("echo", "x").await.status(), 200);
    }
    eventually("idle again", async || read_quota(&group) == 10_000).await;
    server.end_with(Signal::KILL);
    assert!(group.exists(), "no process was left to remove it");
    let mut server = TestServer::start_in(folder.path(), &["--gateway-cpu", "500"]).await;
    wait_serving(&server).await;
    assert_eq!(
        (group_threads(&server).unwrap().0, read_quota(&group)),
        (group.clone(), 50_000)
    );
    assert!(
        server.end_with(Signal::TERM).success(),
        "also when the word comes while it still builds"
    );
    assert!(!group.exists(), "it is removed with its server");
    let mut server = TestServer::start_in(folder.path(), &["--gateway-cpu", "auto"]).await;
    wait_serving(&server).await;
    server.end_with(Signal::KILL);
    drop(server);
    let server = TestServer::start_in(folder.path(), &[]).await;
    wait_serving(&server).await;
    assert!(
        !group.exists() && group_threads(&server).is_none(),
        "a server without a limit sweeps it"
    );
}
