//! A cgroup of threads: its quota throttles, a larger one releases, and nothing is left behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearpath_kernel::cgroup::{CgroupController, NodeCgroups, ThreadCgroup};
use nearpath_testkit::{eventually_blocking, need_root, skip};

/// The cgroups of a test's own node; dropping it removes its folders.
struct TestNode(NodeCgroups, String);

impl TestNode {
    fn new(test: &str) -> Self {
        let name = format!("test-{test}-{}", std::process::id());
        Self(NodeCgroups::detect(&name), name)
    }

    /// Returns the group's folder if the hierarchy is v1.
    fn folder(&self) -> Option<PathBuf> {
        let group_path = |mount: &str| {
            Path::new(mount)
                .join("nearpath")
                .join(format!("{}-gateway", self.1))
        };
        ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
            .map(group_path)
            .into_iter()
            .find(|folder| folder.exists())
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.0.remove_node_folders();
    }
}

macro_rules! need_cpu {
    ($node:expr) => {
        if $node
            .0
            .missing_controllers()
            .contains(&CgroupController::Cpu)
        {
            skip!("the cpu controller is unavailable on this machine");
        }
    };
}

/// Starts a thread of the group that never sleeps.
fn spawn_busy(group: &Arc<ThreadCgroup>, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (group, stop) = (group.clone(), stop.clone());
    std::thread::spawn(move || {
        group.add_current_thread().unwrap();
        while !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    })
}

#[test]
fn a_quota_throttles_and_a_larger_one_releases() {
    need_root!();
    let node = TestNode::new("quota");
    need_cpu!(node);
    let (group, stop) = (
        Arc::new(ThreadCgroup::create(&node.0).unwrap()),
        Arc::default(),
    );
    group.set_quota(20).unwrap();
    let thread = spawn_busy(&group, &stop);
    eventually_blocking("the group is throttled", || {
        group.throttled_time().unwrap() >= Duration::from_millis(100)
    });
    group.set_quota(4_000).unwrap();
    let (freed, used) = (group.throttled_time().unwrap(), group.cpu_time().unwrap());
    eventually_blocking("the group continues", || {
        group.cpu_time().unwrap() >= used + Duration::from_millis(300)
    });
    // with two processors one may be released a moment later
    let again = group.throttled_time().unwrap() - freed;
    assert!(
        again < Duration::from_millis(100),
        "throttled by {again:?} after the quota was raised"
    );
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert_eq!(
        group.cpu_time().unwrap(),
        Duration::ZERO,
        "ended threads are not counted"
    );
    let folder = node.folder();
    drop(group);
    assert!(
        folder.is_none_or(|folder| !folder.exists()),
        "dropping the group removes its folder"
    );
}

#[test]
fn a_leftover_group_is_reused_or_swept() {
    need_root!();
    let node = TestNode::new("left");
    need_cpu!(node);
    std::mem::forget(ThreadCgroup::create(&node.0).unwrap());
    let Some(folder) = node.folder() else {
        skip!("the cpu controller is in the unified hierarchy")
    };
    drop(ThreadCgroup::create(&node.0).unwrap());
    assert!(!folder.exists());
    std::mem::forget(ThreadCgroup::create(&node.0).unwrap());
    node.0.sweep_leftovers().unwrap();
    assert!(!folder.exists());
}
