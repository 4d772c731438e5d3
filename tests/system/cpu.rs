//! `--gateway-cpu`: the gateway's threads, and only they, are in a group whose quota follows the load.

use std::path::{Path, PathBuf};

use http::Method;
use nearpath_testkit::{eventually, need_root, skip};
use rustix::process::Signal;

use crate::house::{House, echo};

/// The gateways' groups on this machine, in the CPU controller's own hierarchy.
fn groups() -> Vec<PathBuf> {
    let mounts = ["/sys/fs/cgroup/cpu/nearpath", "/sys/fs/cgroup/cpu,cpuacct/nearpath"];
    let folders = mounts.iter().filter_map(|mount| std::fs::read_dir(mount).ok()).flatten().map(|entry| entry.unwrap());
    folders.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with("-gateway")).collect()
}

/// Names of the house's threads that are in one of the groups, and the group.
fn members(house: &House) -> Option<(PathBuf, Vec<String>)> {
    let name = |thread: &str| std::fs::read_to_string(format!("/proc/{}/task/{thread}/comm", house.pid())).ok();
    groups().into_iter().find_map(|group| {
        let threads = std::fs::read_to_string(group.join("tasks")).ok()?;
        let names: Vec<_> = threads.lines().filter_map(name).map(|name| name.trim().to_owned()).collect();
        (!names.is_empty()).then_some((group, names))
    })
}

/// Its sockets are there before its threads: an answer says that they are, too.
async fn serves(house: &House) {
    assert_eq!(house.ask(Method::GET, "/healthz", "").await.status(), 200);
}

fn quota(group: &Path) -> i64 {
    std::fs::read_to_string(group.join("cpu.cfs_quota_us")).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn the_gateways_quota_follows_its_load_and_is_swept_after_kill_nine() {
    need_root!();
    if !["cpu", "cpu,cpuacct"].iter().any(|name| Path::new("/sys/fs/cgroup").join(name).join("cgroup.procs").exists()) {
        skip!("the cpu controller has no hierarchy of its own here");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut house = House::start_in(folder.path(), &["--gateway-cpu", "auto", "--threads", "2"]).await;
    serves(&house).await;
    let both = async || members(&house).is_some_and(|(_, names)| names.len() == 2);
    eventually("both threads are in the group", both).await; // one of them may have answered alone
    let (group, names) = members(&house).unwrap();
    assert!(names.iter().all(|name| name.starts_with("gateway-")), "{names:?}");
    eventually("idle, it has a tenth of a core", async || quota(&group) == 10_000).await;
    house.deploy_ready(&echo(folder.path(), "echo")).await;
    for _ in 0..20 {
        assert_eq!(house.call("echo", "x").await.status(), 200);
    }
    eventually("idle again", async || quota(&group) == 10_000).await;
    house.end(Signal::KILL);
    assert!(group.exists(), "nobody was left to remove it");
    let mut house = House::start_in(folder.path(), &["--gateway-cpu", "500"]).await;
    serves(&house).await;
    assert_eq!((members(&house).unwrap().0, quota(&group)), (group.clone(), 50_000));
    assert!(house.end(Signal::TERM).success(), "also when the word comes while it still builds");
    assert!(!group.exists(), "it goes with its house");
    let mut house = House::start_in(folder.path(), &["--gateway-cpu", "auto"]).await;
    serves(&house).await;
    house.end(Signal::KILL);
    drop(house);
    let house = House::start_in(folder.path(), &[]).await;
    serves(&house).await;
    assert!(!group.exists() && members(&house).is_none(), "a house without a limit sweeps it");
}
