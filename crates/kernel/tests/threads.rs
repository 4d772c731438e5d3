//! A group of threads: its quota throttles, a new one frees, nothing stays behind.
#![allow(clippy::unwrap_used)] // in the helpers, too

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearpath_kernel::cgroup::{Cgroups, Controller, ThreadGroup};
use nearpath_testkit::{need_root, skip};

const DEADLINE: Duration = Duration::from_secs(30);

/// A node of this test's own, which leaves no folder behind.
struct Node(Cgroups, String);

impl Node {
    fn new(test: &str) -> Self {
        let name = format!("test-{test}-{}", std::process::id());
        Self(Cgroups::detect(&name), name)
    }

    /// The group's folder, where there is one in a hierarchy of its own.
    fn folder(&self) -> Option<PathBuf> {
        let place = |mount: &str| Path::new(mount).join("nearpath").join(format!("{}-gateway", self.1));
        ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"].map(place).into_iter().find(|folder| folder.exists())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.0.leave();
    }
}

macro_rules! need_cpu {
    ($node:expr) => {
        if $node.0.missing().contains(&Controller::Cpu) {
            skip!("this machine lets nobody use the cpu controller");
        }
    };
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::yield_now();
    }
}

/// A thread of the group that is never idle.
fn busy(group: &Arc<ThreadGroup>, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (group, stop) = (group.clone(), stop.clone());
    std::thread::spawn(move || {
        group.enter().unwrap();
        while !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    })
}

#[test]
fn a_quota_throttles_and_a_new_one_frees() {
    need_root!();
    let node = Node::new("quota");
    need_cpu!(node);
    let (group, stop) = (Arc::new(ThreadGroup::create(&node.0).unwrap()), Arc::default());
    group.set(20).unwrap();
    let thread = busy(&group, &stop);
    until("it is throttled", || group.throttled().unwrap() >= Duration::from_millis(100));
    group.set(4_000).unwrap();
    let (freed, used) = (group.throttled().unwrap(), group.used().unwrap());
    until("it goes on", || group.used().unwrap() >= used + Duration::from_millis(300));
    let again = group.throttled().unwrap() - freed; // of two processors one may be freed a moment later
    assert!(again < Duration::from_millis(100), "nothing throttles it any more: {again:?}");
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert_eq!(group.used().unwrap(), Duration::ZERO, "who has ended is not counted");
    let folder = node.folder();
    drop(group);
    assert!(folder.is_none_or(|folder| !folder.exists()), "it is gone with its owner");
}

#[test]
fn what_a_killed_process_left_is_taken_over_or_swept() {
    need_root!();
    let node = Node::new("left");
    need_cpu!(node);
    std::mem::forget(ThreadGroup::create(&node.0).unwrap());
    let Some(folder) = node.folder() else { skip!("the cpu controller is in the unified hierarchy") };
    drop(ThreadGroup::create(&node.0).unwrap());
    assert!(!folder.exists());
    std::mem::forget(ThreadGroup::create(&node.0).unwrap());
    node.0.sweep().unwrap();
    assert!(!folder.exists());
}
