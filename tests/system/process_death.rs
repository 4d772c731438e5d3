//! Instances that die, and leftovers when the whole server does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nearpath_testkit::{program, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::load::{LoadCounts, counted_loop};
use crate::test_server::{TestServer, http_function};

#[tokio::test]
async fn killed_instances_cost_only_the_requests_inside_them() {
    nearpath_testkit::need_root!();
    only_the_requests_inside_are_lost(TestServer::start().await).await;
}

/// Runs the test with a function of its own.
pub(crate) async fn only_the_requests_inside_are_lost(server: TestServer) {
    let work = http_function(&server.data_dir, "work", "self.answer(200, b'done')");
    only_the_requests_inside_are_lost_of(&server, &work).await;
}

/// Kills one of two instances every second, under load.
pub(crate) async fn only_the_requests_inside_are_lost_of(
    server: &TestServer,
    work: &serde_json::Value,
) {
    server.deploy_ready(work).await;
    server.scale("work", 2).await;
    server.wait_available("work", 2).await;
    let counts = Arc::<LoadCounts>::default();
    let load = counted_loop(
        server.addr,
        "/function/work",
        (50, Duration::from_secs(5)),
        &counts,
    );
    let killer = async {
        let mut inside = 0;
        for _ in 0..4 {
            // Requests reach the replacement before the next kill.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let victim = server.instance_pids("work").await[0];
            let (under_way, begun) = (counts.under_way(), counts.begun());
            kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
            let gone = async || !std::path::Path::new(&format!("/proc/{victim}")).exists();
            nearpath_testkit::eventually("it is gone", gone).await;
            inside += under_way + counts.begun() - begun;
        }
        inside
    };
    let (outcome, max_under_way) = tokio::join!(load, killer);
    // An instance that is killed between a response's head and its end leaves half a body, which
    // HTTP/1 reports only by closing. If both reached the gateway at once, hyper closes before it
    // has written the head, and the caller misses that, too.
    let inside = [
        "instance_died",
        "response_truncated",
        "IncompleteBody",
        "IncompleteMessage",
    ];
    let innocent: Vec<_> = outcome
        .failures
        .iter()
        .filter(|failure| !inside.iter().any(|word| failure.contains(word)))
        .collect();
    assert!(innocent.is_empty(), "{innocent:?}\n{}", server.log());
    assert!(
        outcome.failures.len() <= max_under_way,
        "more than the {max_under_way} that could be inside: {:?}",
        outcome.failures
    );
    server.wait_available("work", 2).await;
}

#[tokio::test]
async fn kill_nine_leaves_nothing_behind_and_a_restart_brings_everything_back() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&http_function(
            folder.path(),
            "keep",
            "self.answer(200, b'kept')",
        ))
        .await;
    server.scale("keep", 2).await;
    server.wait_available("keep", 2).await;
    let pids = server.instance_pids("keep").await;
    assert_eq!(pids.len(), 2);
    server.end_with(Signal::KILL);
    for pid in pids {
        let gone = async || !std::path::Path::new(&format!("/proc/{pid}")).exists();
        nearpath_testkit::eventually("the instances die with their server", gone).await;
    }
    let again = TestServer::start_in(folder.path(), &[]).await;
    again.wait_available("keep", 2).await;
    assert_eq!(
        again.call_function("keep", "").await.body().as_ref(),
        b"kept"
    );
    assert_eq!(
        instance_cgroups(&again).len(),
        2,
        "two instances, two groups: those of the killed server are swept"
    );
}

/// A control group of the test, in which no other server sweeps. Removed at its end with its
/// content.
struct TestCgroup(PathBuf);

impl TestCgroup {
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let root = roots
            .into_iter()
            .find(|root| root.join("cgroup.controllers").exists())?;
        let folder = root.join(format!("nearpath-test-{}", std::process::id()));
        std::fs::create_dir(&folder).ok().map(|()| Self(folder))
    }

    async fn start_server(&self, data_dir: &Path) -> TestServer {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&self.0)
            .arg(program("nearpath"));
        let mut server = TestServer::spawn_with(command, data_dir, &[]);
        server.wait_ready().await;
        nearpath_testkit::eventually("it is up, its fence as well", async || {
            server.log().contains("is up")
        })
        .await;
        server
    }

    /// Control groups that keep the sockets of processes local.
    fn socket_cgroups(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.0)
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        all.filter(|path| path.to_string_lossy().contains("/nearpath-pool-"))
            .collect()
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        for fence in self.socket_cgroups() {
            let _ = std::fs::remove_dir(fence); // otherwise this one stays, and is visible
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn a_killed_servers_socket_cgroup_is_removed_at_the_next_start() {
    nearpath_testkit::need_root!();
    let Some(cgroup) = TestCgroup::new() else {
        skip!("no unified hierarchy of control groups")
    };
    let folder = tempfile::tempdir().unwrap();
    let mut server = cgroup.start_server(folder.path()).await;
    let left = cgroup.socket_cgroups();
    if left.is_empty() {
        skip!("no fence here: {}", server.log());
    }
    server.end_with(Signal::KILL);
    assert_eq!(
        cgroup.socket_cgroups(),
        left,
        "else this test shows nothing"
    );
    let again = cgroup.start_server(folder.path()).await;
    let own = format!("nearpath-pool-{}-", again.pid());
    let there = cgroup.socket_cgroups();
    assert!(
        there.len() == 1 && there[0].to_string_lossy().contains(&own),
        "{there:?}"
    );
}

#[tokio::test]
async fn an_orderly_end_removes_the_socket_cgroup() {
    nearpath_testkit::need_root!();
    let Some(cgroup) = TestCgroup::new() else {
        skip!("no unified hierarchy of control groups")
    };
    let folder = tempfile::tempdir().unwrap();
    let mut server = cgroup.start_server(folder.path()).await;
    if cgroup.socket_cgroups().is_empty() {
        skip!("no socket cgroup here: {}", server.log());
    }
    assert!(server.end_with(Signal::TERM).success(), "{}", server.log());
    assert_eq!(cgroup.socket_cgroups(), [""; 0].map(PathBuf::from));
}

#[tokio::test]
async fn an_orderly_end_leaves_no_process_and_no_cgroup() {
    nearpath_testkit::need_root!();
    let mut server = TestServer::start().await;
    server
        .deploy_ready(&http_function(
            &server.data_dir,
            "brief",
            "self.answer(200, b'')",
        ))
        .await;
    let pids = server.instance_pids("brief").await;
    let before = instance_cgroups(&server);
    assert!(!before.is_empty(), "limits are kept by cgroups");
    assert!(server.end_with(Signal::TERM).success(), "{}", server.log());
    assert!(
        pids.iter()
            .all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    );
    assert!(before.iter().all(|group| !group.exists()), "{before:?}");
}

#[tokio::test]
async fn a_stop_that_comes_as_two_signals_is_still_an_orderly_end() {
    nearpath_testkit::need_root!();
    let mut server = TestServer::start().await;
    server
        .deploy_ready(&http_function(
            &server.data_dir,
            "brief",
            "self.answer(200, b'')",
        ))
        .await;
    let before = instance_cgroups(&server);
    let pid = Pid::from_raw(server.pid() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(server.end_with(Signal::INT).success(), "{}", server.log());
    assert!(before.iter().all(|group| !group.exists()), "{before:?}");
}

/// Memory cgroups of this server's instances.
fn instance_cgroups(server: &TestServer) -> Vec<std::path::PathBuf> {
    let node = std::fs::read_to_string(server.data_dir.join("node-id")).unwrap();
    let roots = [
        "/sys/fs/cgroup/memory/nearpath",
        "/sys/fs/cgroup/unified/nearpath",
        "/sys/fs/cgroup/nearpath",
    ];
    let nodes = roots
        .iter()
        .map(|root| std::path::Path::new(root).join(node.trim()))
        .filter(|dir| dir.exists());
    nodes
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.is_dir())
        .collect()
}
