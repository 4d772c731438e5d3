//! Cgroups: limits hold, usage is counted, and nothing is left behind.

use std::fs;
use std::process::Command;

use crate::fixture::{Lab, kill};
use nearpath_kernel::cgroup::{CgroupController, InstanceCgroup, NodeCgroups, ResourceLimits};
use nearpath_kernel::sandbox::SandboxSpec;
use nearpath_testkit::{need_root, skip};
use nearpath_types::InstanceId;

/// The cgroups of a test's own node; dropping it removes its folders.
pub(crate) struct TestNode(NodeCgroups);

impl std::ops::Deref for TestNode {
    type Target = NodeCgroups;
    fn deref(&self) -> &NodeCgroups {
        &self.0
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.0.remove_node_folders();
    }
}

pub(crate) fn test_node(test: &str) -> TestNode {
    TestNode(NodeCgroups::detect(&format!(
        "test-{test}-{}",
        std::process::id()
    )))
}

pub(crate) fn set_limits(
    cgroups: &NodeCgroups,
    spec: &mut SandboxSpec,
    limits: ResourceLimits,
) -> InstanceCgroup {
    let cgroup = cgroups.create_instance(spec.instance, &limits).unwrap();
    spec.cgroup_join_files = cgroup.join_files();
    cgroup
}

macro_rules! need_controller {
    ($cgroups:expr, $controller:expr) => {
        if $cgroups.missing_controllers().contains(&$controller) {
            skip!(
                "the {} controller is unavailable on this machine",
                $controller
            );
        }
    };
}

#[test]
fn an_instance_above_its_memory_limit_is_killed() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("memory"));
    need_controller!(cgroups, CgroupController::Memory);
    let mut spec = lab.python("print('begin', flush=True); x = bytearray(200 << 20); print('end')");
    let cgroup = set_limits(
        &cgroups,
        &mut spec,
        ResourceLimits {
            memory_bytes: Some(64 << 20),
            ..ResourceLimits::default()
        },
    );
    let result = lab.run(&spec);
    assert_eq!(
        (result.out.as_str(), result.signal),
        ("begin\n", Some(9)),
        "{result:?}"
    );
    cgroup.remove_now().unwrap();
}

/// The sandbox has no cgroup file system: the counter comes as an open file.
#[test]
fn an_instance_reads_how_many_of_its_processes_were_killed_for_lack_of_memory() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("kills"));
    need_controller!(cgroups, CgroupController::Memory);
    let mut spec = lab.python(
        "import os, re
read = lambda: re.findall('^oom_kill .*', os.pread(int(os.environ['NEARPATH_OOM_KILL_FD']), 999, 0).decode(), re.M)
before = read()
if os.fork() == 0:
    x = bytearray(200 << 20)
print(before, os.wait()[1], read())",
    );
    let limits = ResourceLimits {
        memory_bytes: Some(64 << 20),
        ..ResourceLimits::default()
    };
    let cgroup = set_limits(&cgroups, &mut spec, limits);
    if cgroup.oom_kills().is_none() {
        skip!("this kernel does not count kills for lack of memory");
    }
    spec.oom_kill_file = cgroup.oom_kill_file();
    let result = lab.run(&spec);
    assert_eq!(
        result.out, "['oom_kill 0'] 9 ['oom_kill 1']\n",
        "{result:?}"
    );
    cgroup.remove_now().unwrap();
}

#[test]
fn files_in_tmp_count_as_memory() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("tmp"));
    need_controller!(cgroups, CgroupController::Memory);
    let mut spec = lab.shell("head -c 50m /dev/zero > /tmp/x; stat -c %s /tmp/x");
    spec.tmp_bytes = 99 << 20;
    let _cgroup = set_limits(
        &cgroups,
        &mut spec,
        ResourceLimits {
            memory_bytes: Some(32 << 20),
            ..ResourceLimits::default()
        },
    );
    let result = lab.run(&spec);
    assert!(!result.out.contains("52428800"), "{result:?}");
}

/// Fills the buffers of 150 connections or 300 sockets that no process reads. Prints how many bytes
/// they hold.
const FILL_SOCKETS: &str = r#"
import os, socket
held = []
def tcp():
    server, size = socket.create_server(('127.0.0.1', 0), backlog=512), 0
    for _ in range(150):
        one = socket.create_connection(server.getsockname())
        held.extend([one, server.accept()[0]])
        for end in held[-2:]:
            end.setblocking(False)
            try:
                while True: size += end.send(bytes(60000))
            except BlockingIOError: pass
    return size
def udp():
    sender = socket.socket(type=socket.SOCK_DGRAM)
    for _ in range(300):
        one = socket.socket(type=socket.SOCK_DGRAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        one.bind(('127.0.0.1', 0))
        one.setblocking(False)
        for _ in range(100): sender.sendto(bytes(60000), one.getsockname())
        held.append(one)
    return sum(map(drain, held))
def drain(one):
    size = 0
    try:
        while True: size += len(one.recv(65536))
    except BlockingIOError: return size
print({'tcp': tcp, 'udp': udp}[os.environ['PROTOCOL']]())
"#;

#[test]
fn buffers_of_sockets_stay_within_the_memory_limit() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("sockets"));
    if let Some(why) = cgroups.socket_memory_problem() {
        skip!("socket buffers are not limited on this machine: {why}");
    }
    let limit = 64 << 20;
    for protocol in ["tcp", "udp"] {
        let mut spec = lab.python(FILL_SOCKETS);
        spec.environment.insert("PROTOCOL".into(), protocol.into());
        let limits = ResourceLimits {
            memory_bytes: Some(limit),
            ..ResourceLimits::default()
        };
        let _cgroup = set_limits(&cgroups, &mut spec, limits);
        let result = lab.run(&spec);
        let held: u64 = result.out.trim().parse().expect(&result.err);
        assert!(held > 0 && held < limit, "{protocol}: {held} bytes");
    }
}

#[test]
fn a_fork_bomb_stops_at_the_process_limit() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("pids"));
    need_controller!(cgroups, CgroupController::Pids);
    let script = "import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        n += 1
except BlockingIOError: print(n, flush=True)
os._exit(0)";
    let mut spec = lab.python(script);
    let cgroup = set_limits(
        &cgroups,
        &mut spec,
        ResourceLimits {
            pids: Some(20),
            ..ResourceLimits::default()
        },
    );
    let result = lab.run(&spec);
    assert_eq!(result.out, "19\n", "{result:?}");
    cgroup.remove_now().unwrap();
}

#[test]
fn usage_is_counted() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("usage"));
    need_controller!(cgroups, CgroupController::Memory);
    let mut spec = lab
        .python("x = bytearray(30 << 20); sum(range(10**6)); print('used', flush=True); import time; time.sleep(60)");
    let cgroup = set_limits(
        &cgroups,
        &mut spec,
        ResourceLimits {
            cpu_millis: Some(900),
            ..ResourceLimits::default()
        },
    );
    let (running, _) = lab.start(&spec);
    let usage = cgroup.read_usage().unwrap();
    assert!(
        usage.memory_bytes > 30 << 20 && usage.cpu.as_micros() > 1_000,
        "{usage:?}"
    );
    kill(running);
    cgroup.remove_now().unwrap();
}

#[test]
fn usage_includes_buffers_of_sockets() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("socket-usage"));
    if let Some(why) = cgroups.socket_memory_problem() {
        skip!("socket buffers are not counted on this machine: {why}");
    }
    let script = FILL_SOCKETS.replace("]())", "](), flush=True); import time; time.sleep(60)");
    let mut spec = lab.python(&script);
    spec.environment.insert("PROTOCOL".into(), "tcp".into());
    let limits = ResourceLimits {
        memory_bytes: Some(256 << 20),
        ..ResourceLimits::default()
    };
    let cgroup = set_limits(&cgroups, &mut spec, limits);
    let (running, held) = lab.start(&spec);
    let (held, used): (u64, _) = (held.parse().unwrap(), cgroup.read_usage().unwrap());
    assert!(
        held > 32 << 20 && used.memory_bytes > 32 << 20,
        "{held} bytes held, {used:?}"
    );
    kill(running);
}

#[test]
fn a_sweep_kills_and_removes_leftovers() {
    need_root!();
    let cgroups = test_node("sweep");
    need_controller!(cgroups, CgroupController::Pids);
    let left = cgroups
        .create_instance(InstanceId(9), &ResourceLimits::default())
        .unwrap();
    let mut orphan = Command::new("/bin/sleep").arg("60").spawn().unwrap();
    for file in left.join_files() {
        fs::write(file, orphan.id().to_string()).unwrap();
    }
    let folders: Vec<_> = left
        .join_files()
        .iter()
        .map(|file| file.parent().unwrap().to_owned())
        .collect();
    std::mem::forget(left); // as if the node had been killed
    // A zombie still counts as a member
    let waiter = std::thread::spawn(move || orphan.wait().unwrap());
    let swept = cgroups.sweep_leftovers().unwrap();
    assert!(
        swept.killed >= 1 && swept.removed == folders.len(),
        "{swept:?}"
    );
    assert!(!waiter.join().unwrap().success());
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
    assert_eq!(cgroups.sweep_leftovers().unwrap().removed, 0);
}

#[test]
fn instances_together_weigh_as_one_process_per_processor() {
    need_root!();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let in_root = |line: &str| {
        let fields: Vec<_> = line.splitn(3, ':').collect();
        line == "0::/" || (fields[1].split(',').any(|name| name == "cpu") && fields[2] == "/")
    };
    if !own.lines().any(in_root) {
        skip!("this process competes as a group: {own}");
    }
    let cgroups = test_node("weight");
    need_controller!(cgroups, CgroupController::Cpu);
    let instance = cgroups
        .create_instance(InstanceId(1), &ResourceLimits::default())
        .unwrap();
    let files = instance.join_files();
    let of_all = |file: &std::path::PathBuf| {
        let nearpath = file.ancestors().nth(3).unwrap().to_owned();
        ["cpu.shares", "cpu.weight"]
            .iter()
            .find_map(|name| fs::read_to_string(nearpath.join(name)).ok())
    };
    let weight = files
        .iter()
        .find_map(of_all)
        .expect("a group with a weight");
    let processors = std::thread::available_parallelism().unwrap().get();
    let expected = [processors * 1024, processors * 100].map(|weight| weight.to_string());
    assert!(expected.contains(&weight.trim().to_owned()), "{weight}");
}
