//! Cgroups: limits hold, use is counted, and nothing stays behind.
#![allow(clippy::unwrap_used)] // in the helpers, too

mod lab;

use std::fs;
use std::process::Command;

use lab::{Lab, kill};
use nearpath_kernel::cgroup::{Cgroup, Cgroups, Controller, Limits};
use nearpath_kernel::sandbox::Spec;
use nearpath_testkit::{need_root, skip};

/// A node of this test's own, which leaves no folder behind.
struct Node(Cgroups);

impl std::ops::Deref for Node {
    type Target = Cgroups;
    fn deref(&self) -> &Cgroups {
        &self.0
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn node(test: &str) -> Node {
    Node(Cgroups::detect(&format!("test-{test}-{}", std::process::id())))
}

fn limited(cgroups: &Cgroups, spec: &mut Spec, limits: Limits) -> Cgroup {
    let cgroup = cgroups.create(spec.instance, &limits).unwrap();
    spec.cgroup = cgroup.join_files();
    cgroup
}

macro_rules! need {
    ($cgroups:expr, $controller:expr) => {
        if $cgroups.missing().contains(&$controller) {
            skip!("this machine lets nobody use the {} controller", $controller);
        }
    };
}

#[test]
fn too_much_memory_is_fatal() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), node("memory"));
    need!(cgroups, Controller::Memory);
    let mut spec = lab.python("print('begin', flush=True); x = bytearray(200 << 20); print('end')");
    let cgroup = limited(&cgroups, &mut spec, Limits { memory_bytes: Some(64 << 20), ..Limits::default() });
    let ended = lab.run(&spec);
    assert_eq!((ended.out.as_str(), ended.signal), ("begin\n", Some(9)), "{ended:?}");
    cgroup.remove().unwrap();
}

#[test]
fn the_temporary_folder_counts_as_memory() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), node("tmp"));
    need!(cgroups, Controller::Memory);
    let mut spec = lab.shell("head -c 50m /dev/zero > /tmp/x; stat -c %s /tmp/x");
    spec.tmp_bytes = 99 << 20;
    let _cgroup = limited(&cgroups, &mut spec, Limits { memory_bytes: Some(32 << 20), ..Limits::default() });
    let ended = lab.run(&spec);
    assert!(!ended.out.contains("52428800"), "{ended:?}");
}

#[test]
fn a_fork_bomb_stays_inside() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), node("pids"));
    need!(cgroups, Controller::Pids);
    let script = "import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        n += 1
except BlockingIOError: print(n, flush=True)
os._exit(0)";
    let mut spec = lab.python(script);
    let cgroup = limited(&cgroups, &mut spec, Limits { pids: Some(20), ..Limits::default() });
    let ended = lab.run(&spec);
    assert_eq!(ended.out, "19\n", "{ended:?}");
    cgroup.remove().unwrap();
}

#[test]
fn use_is_counted() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), node("usage"));
    need!(cgroups, Controller::Memory);
    let mut spec = lab
        .python("x = bytearray(30 << 20); sum(range(10**6)); print('used', flush=True); import time; time.sleep(60)");
    let cgroup = limited(&cgroups, &mut spec, Limits { cpu_millis: Some(900), ..Limits::default() });
    let (running, _) = lab.start(&spec);
    let usage = cgroup.usage().unwrap();
    assert!(usage.memory_bytes > 30 << 20 && usage.cpu.as_micros() > 1_000, "{usage:?}");
    kill(running);
    cgroup.remove().unwrap();
}

#[test]
fn a_sweep_kills_and_removes_what_is_left() {
    need_root!();
    let cgroups = node("sweep");
    need!(cgroups, Controller::Pids);
    let left = cgroups.create(nearpath_types::InstanceId(9), &Limits::default()).unwrap();
    let mut orphan = Command::new("/bin/sleep").arg("60").spawn().unwrap();
    for file in left.join_files() {
        fs::write(file, orphan.id().to_string()).unwrap();
    }
    let folders: Vec<_> = left.join_files().iter().map(|file| file.parent().unwrap().to_owned()).collect();
    std::mem::forget(left); // as if the node had been killed
    let waiter = std::thread::spawn(move || orphan.wait().unwrap()); // a zombie still counts as a member
    let swept = cgroups.sweep().unwrap();
    assert!(swept.killed >= 1 && swept.removed == folders.len(), "{swept:?}");
    assert!(!waiter.join().unwrap().success());
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
    assert_eq!(cgroups.sweep().unwrap().removed, 0);
}
