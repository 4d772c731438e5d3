//! Instances that die, and what is left behind when the whole house does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nearpath_testkit::{program, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::house::{House, http_function};
use crate::load::{Counts, counted_loop};

#[tokio::test]
async fn killed_instances_cost_only_the_requests_inside_them() {
    nearpath_testkit::need_root!();
    only_the_requests_inside_are_lost(House::start().await).await;
}

/// With a function of its own.
pub(crate) async fn only_the_requests_inside_are_lost(house: House) {
    let work = http_function(&house.data_dir, "work", "self.answer(200, b'done')");
    only_the_requests_inside_are_lost_of(&house, &work).await;
}

/// Kills one of two instances every second, under load.
pub(crate) async fn only_the_requests_inside_are_lost_of(house: &House, work: &serde_json::Value) {
    house.deploy_ready(work).await;
    house.scale("work", 2).await;
    house.until_available("work", 2).await;
    let counts = Arc::<Counts>::default();
    let load = counted_loop(house.addr, "/function/work", (50, Duration::from_secs(5)), &counts);
    let killer = async {
        let mut inside = 0;
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let victim = house.instance_pids("work").await[0];
            let (under_way, begun) = (counts.under_way(), counts.begun());
            kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
            let gone = async || !std::path::Path::new(&format!("/proc/{victim}")).exists();
            nearpath_testkit::eventually("it is gone", gone).await;
            inside += under_way + counts.begun() - begun;
        }
        inside
    };
    let (outcome, most) = tokio::join!(load, killer);
    // Killed between an answer's head and its end, it leaves half a body, which HTTP/1 can tell only by closing.
    let inside = ["instance_died", "response_cut", "IncompleteBody"];
    let innocent: Vec<_> =
        outcome.failures.iter().filter(|failure| !inside.iter().any(|word| failure.contains(word))).collect();
    assert!(innocent.is_empty(), "{innocent:?}\n{}", house.log());
    assert!(outcome.failures.len() <= most, "more than the {most} that could be inside: {:?}", outcome.failures);
    house.until_available("work", 2).await;
}

#[tokio::test]
async fn kill_nine_leaves_nothing_behind_and_a_restart_brings_everything_back() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut house = House::start_in(folder.path(), &[]).await;
    house.deploy_ready(&http_function(folder.path(), "keep", "self.answer(200, b'kept')")).await;
    house.scale("keep", 2).await;
    house.until_available("keep", 2).await;
    let pids = house.instance_pids("keep").await;
    assert_eq!(pids.len(), 2);
    house.end(Signal::KILL);
    for pid in pids {
        let gone = async || !std::path::Path::new(&format!("/proc/{pid}")).exists();
        nearpath_testkit::eventually("the instances die with their house", gone).await;
    }
    let again = House::start_in(folder.path(), &[]).await;
    again.until_available("keep", 2).await;
    assert_eq!(again.call("keep", "").await.body().as_ref(), b"kept");
    assert_eq!(cgroups(&again).len(), 2, "two instances, two groups: those of the killed house are swept");
}

/// A control group of the test's own, in which no other house sweeps. Removed at its end, with what is left in it.
struct Quarters(PathBuf);

impl Quarters {
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
        let folder = root.join(format!("nearpath-test-{}", std::process::id()));
        std::fs::create_dir(&folder).ok().map(|()| Self(folder))
    }

    async fn house(&self, data_dir: &Path) -> House {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0).arg(program("nearpath"));
        let mut house = House::spawn(command, data_dir, &[]);
        house.until_ready().await;
        house
    }

    /// The groups in which processes keep their sockets at home.
    fn fences(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.0).unwrap().flatten().map(|entry| entry.path());
        all.filter(|path| path.to_string_lossy().contains("/nearpath-pool-")).collect()
    }
}

impl Drop for Quarters {
    fn drop(&mut self) {
        for fence in self.fences() {
            let _ = std::fs::remove_dir(fence); // else this one stays, and can be seen
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn what_a_killed_house_left_of_its_fence_goes_at_the_next_start() {
    nearpath_testkit::need_root!();
    let Some(quarters) = Quarters::new() else { skip!("no unified hierarchy of control groups") };
    let folder = tempfile::tempdir().unwrap();
    let mut house = quarters.house(folder.path()).await;
    let left = quarters.fences();
    if left.is_empty() {
        skip!("no fence here: {}", house.log());
    }
    house.end(Signal::KILL);
    assert_eq!(quarters.fences(), left, "else this test shows nothing");
    let again = quarters.house(folder.path()).await;
    let own = format!("nearpath-pool-{}-", again.pid());
    let there = quarters.fences();
    assert!(there.len() == 1 && there[0].to_string_lossy().contains(&own), "{there:?}");
}

#[tokio::test]
async fn an_orderly_end_leaves_no_process_and_no_cgroup() {
    nearpath_testkit::need_root!();
    let mut house = House::start().await;
    house.deploy_ready(&http_function(&house.data_dir, "brief", "self.answer(200, b'')")).await;
    let pids = house.instance_pids("brief").await;
    let before = cgroups(&house);
    assert!(!before.is_empty(), "limits are kept by cgroups");
    assert!(house.end(Signal::TERM).success(), "{}", house.log());
    assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
    assert!(before.iter().all(|group| !group.exists()), "{before:?}");
}

#[tokio::test]
async fn a_word_that_comes_as_two_signals_is_still_an_orderly_end() {
    nearpath_testkit::need_root!();
    let mut house = House::start().await;
    house.deploy_ready(&http_function(&house.data_dir, "brief", "self.answer(200, b'')")).await;
    let before = cgroups(&house);
    let pid = Pid::from_raw(house.pid() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(house.end(Signal::INT).success(), "{}", house.log());
    assert!(before.iter().all(|group| !group.exists()), "{before:?}");
}

/// Memory cgroups of the instances of this house.
fn cgroups(house: &House) -> Vec<std::path::PathBuf> {
    let node = std::fs::read_to_string(house.data_dir.join("node-id")).unwrap();
    let roots = ["/sys/fs/cgroup/memory/nearpath", "/sys/fs/cgroup/unified/nearpath", "/sys/fs/cgroup/nearpath"];
    let nodes = roots.iter().map(|root| std::path::Path::new(root).join(node.trim())).filter(|dir| dir.exists());
    nodes.flat_map(|dir| std::fs::read_dir(dir).unwrap()).flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect()
}
