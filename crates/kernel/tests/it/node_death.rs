//! A killed node takes all its instances with it. `examples/instance.rs` is the node.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nearpath_kernel::cgroup::NodeCgroups;
use nearpath_testkit::need_root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Starts a node with one instance that runs `script`. Reads the instance's pid and lines of its
/// output.
fn start_node(name: &str, script: &str, lines: usize) -> (Child, Vec<String>) {
    let mut command = Command::new(crate::fixture::instance_program());
    command
        .args(["node", "/bin/sh", "-c", script])
        .stdout(Stdio::piped())
        .env("NODE", name);
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let lines: Vec<_> = out.lines().take(lines).map(Result::unwrap).collect();
    (child, lines)
}

/// Returns the ids of the namespaces of a process.
fn namespaces_of(pid: &str) -> Vec<String> {
    let link = |kind: &str| {
        fs::read_link(format!("/proc/{pid}/ns/{kind}"))
            .unwrap()
            .to_string_lossy()
            .into_owned()
    };
    ["net", "mnt", "pid", "uts", "ipc"].map(link).to_vec()
}

/// Returns the processes in one of the namespaces. A zombie holds neither files nor network any
/// more.
fn processes_in(namespaces_of: &[String]) -> Vec<String> {
    let all = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let within = |pid: &String| {
        let link = |kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let found = ["net", "mnt"].into_iter().filter_map(link);
        found
            .map(|link| link.to_string_lossy().into_owned())
            .any(|link| namespaces_of.contains(&link))
    };
    all.filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        .filter(within)
        .collect()
}

#[test]
fn nothing_survives_a_killed_node() {
    need_root!();
    let name = format!("test-death-{}", std::process::id());
    let (mut start_node, lines) =
        start_node(&name, "sleep 77 & setsid sleep 78 & echo up; wait", 2);
    let pid = &lines[0];
    let namespaces_of = namespaces_of(pid);
    assert_eq!(
        processes_in(&namespaces_of).len(),
        3,
        "the shell and both sleep processes"
    );
    let instance = pidfd_open(
        Pid::from_raw(pid.parse().unwrap()).unwrap(),
        PidfdFlags::empty(),
    )
    .unwrap();
    start_node.kill().unwrap();
    start_node.wait().unwrap();
    let deadline = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    assert_eq!(
        poll(
            &mut [PollFd::new(&instance, PollFlags::IN)],
            Some(&deadline)
        )
        .unwrap(),
        1,
        "the instance outlived its node"
    );
    // The first process of a PID namespace ends last, so nothing can be left.
    assert_eq!(processes_in(&namespaces_of), Vec::<String>::new());
    let cgroups = NodeCgroups::detect(&name);
    let swept = cgroups.sweep_leftovers().unwrap();
    cgroups.remove_node_folders();
    assert_eq!(swept.killed, 0, "{swept:?}");
    let names =
        fs::read_to_string("/proc/net/dev").unwrap() + &fs::read_to_string("/proc/mounts").unwrap();
    assert!(
        !names.contains(" np") && !names.contains("nearpath "),
        "{names}"
    );
}

/// The source address proves the sender: a packet that arrives by another veth device is dropped.
#[test]
fn a_forged_source_is_dropped() {
    need_root!();
    // The forger needs privileges that an instance lacks, so it enters the network from outside.
    let name = format!("test-forge-{}", std::process::id());
    let (mut start_node, lines) = start_node(&name, "echo up; sleep 60", 2);
    let pid = &lines[0];
    let forge = |source: &str| {
        let python = format!(
            "import socket
s = socket.socket(); s.setsockopt(socket.SOL_IP, 15, 1); s.settimeout(1)
s.bind(('{source}', 0))
try: s.connect(('10.62.0.1', 9))
except OSError as e: print(type(e).__name__)"
        );
        let address =
            format!("ip address add {source}/32 dev lo 2>/dev/null; exec python3 -c \"$SCRIPT\"");
        let mut command = Command::new("nsenter");
        command
            .args(["-t", pid, "-n", "sh", "-c", &address])
            .env("SCRIPT", python);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(
        forge("10.62.0.2"),
        "ConnectionRefusedError\n",
        "its own address gets an answer"
    );
    assert_eq!(
        forge("10.62.0.3"),
        "TimeoutError\n",
        "another instance's address gets none"
    );
    assert_eq!(
        forge("198.51.100.7"),
        "TimeoutError\n",
        "an unknown address gets none"
    );
    start_node.kill().unwrap();
    start_node.wait().unwrap();
    let cgroups = NodeCgroups::detect(&name);
    cgroups.sweep_leftovers().unwrap();
    cgroups.remove_node_folders();
}
