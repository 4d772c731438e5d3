//! Frozen instances stop, go on when they are thawed, and can be killed in between.

use std::fs;
use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

use nearpath_kernel::cgroup::{InstanceCgroup, ResourceLimits, SocketGroup};
use nearpath_kernel::namespace::run_in_netns;
use nearpath_kernel::sandbox::LaunchedInstance;
use nearpath_testkit::need_support;
use nearpath_types::Eip;

use crate::cgroups::{TestNode, set_limits, test_node};
use crate::fixture::{GATEWAY, Lab, kill};

/// Answers from a thread and from a child process, so that all of them must stop.
const SERVER: &str = "
import os, socket, threading
listener = socket.create_server(('', 7000))
def serve():
    while True:
        one, _ = listener.accept(); one.sendall(b'x'); one.close()
threading.Thread(target=serve).start()
os.fork()
print('ready', flush=True)
while True: serve()
";

struct FreezeLab {
    // The instance's group before those of the node.
    cgroup: InstanceCgroup,
    launched: LaunchedInstance,
    eip: Eip,
    lab: Lab,
    group: SocketGroup,
    cgroups: TestNode,
}

impl FreezeLab {
    fn create(test: &str) -> io::Result<Self> {
        Self::create_with(test, SERVER)
    }

    fn create_with(test: &str, server: &str) -> io::Result<Self> {
        let cgroups = test_node(test);
        let group = SocketGroup::open(&cgroups)?;
        let lab = Lab::in_cgroup(GATEWAY, group.zygote_group());
        let mut spec = lab.python(server);
        let mut cgroup = set_limits(&cgroups, &mut spec, ResourceLimits::default());
        cgroup.set_zygote_group(group.zygote_group());
        let (launched, line) = lab.start(&spec);
        assert_eq!(line, "ready");
        let eip = spec.network.unwrap().eip;
        Ok(Self {
            cgroup,
            launched,
            eip,
            lab,
            group,
            cgroups,
        })
    }

    /// Connects, which the kernel does for the instance.
    fn connect(&self) -> TcpStream {
        let at = (self.eip.0, 7000).into();
        let connect = || TcpStream::connect_timeout(&at, Duration::from_secs(20));
        run_in_netns(&*self.lab.hub, connect).unwrap()
    }

    fn answers(&self) -> bool {
        let mut connection = self.connect();
        connection
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        matches!(connection.read(&mut [0]), Ok(1))
    }

    /// Ends everything, and returns the folders that are left in the zygote's group.
    fn end(self) -> Vec<String> {
        let folder = self.group.folder().to_owned();
        drop(kill(self.launched));
        self.cgroup.remove_now().unwrap();
        let entries = fs::read_dir(&folder).unwrap().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let left = folders.map(|entry| entry.file_name().into_string().unwrap());
        let left = left.collect();
        drop((self.lab, self.group, self.cgroups));
        left
    }
}

#[test]
fn a_frozen_instance_answers_when_it_is_thawed() {
    let lab = need_support!(FreezeLab::create("freeze"));
    assert!(lab.answers());
    for _ in 0..3 {
        lab.cgroup.freeze().unwrap();
        let mut waiting = lab.connect();
        waiting.set_nonblocking(true).unwrap();
        // The kernel accepts connections for a frozen server, so only answers show that it is frozen.
        let before = lab.cgroup.cpu_time();
        std::thread::sleep(Duration::from_millis(50));
        let error = waiting.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "it is frozen");
        assert_eq!(lab.cgroup.cpu_time(), before);
        lab.cgroup.thaw().unwrap();
        assert!(lab.answers());
        waiting.set_nonblocking(false).unwrap();
        assert!(
            matches!(waiting.read(&mut [0]), Ok(1)),
            "it was accepted later"
        );
    }
    assert_eq!(lab.end(), Vec::<String>::new());
}

/// Starts processes all the time, which end at once.
const FORKING_SERVER: &str = "
import os, socket, subprocess, threading
def fork():
    while True: os.waitpid(os.spawnv(os.P_NOWAIT, '/bin/true', ['true']), 0)
for _ in range(3): threading.Thread(target=fork, daemon=True).start()
listener = socket.create_server(('', 7000))
print('ready', flush=True)
while True:
    one, _ = listener.accept(); one.sendall(b'x'); one.close()
";

#[test]
fn an_instance_that_forks_all_the_time_can_be_frozen() {
    let lab = need_support!(FreezeLab::create_with("freeze-fork", FORKING_SERVER));
    // A process may fork between two steps of the move, so once is not enough.
    for _ in 0..20 {
        lab.cgroup.freeze().unwrap();
        lab.cgroup.thaw().unwrap();
    }
    assert!(lab.answers());
    assert_eq!(lab.end(), Vec::<String>::new());
}

#[test]
fn a_frozen_instance_can_be_killed() {
    let lab = need_support!(FreezeLab::create("freeze-kill"));
    lab.cgroup.freeze().unwrap();
    assert_eq!(lab.end(), Vec::<String>::new());
}

/// A node that was killed leaves groups; its instances have died with it.
#[test]
fn the_next_start_removes_groups_of_frozen_instances() {
    let lab = need_support!(FreezeLab::create("freeze-left"));
    // On a pure v2 machine, instances are frozen in their own groups.
    let Some(zygote) = lab.group.zygote_group() else {
        assert!(lab.cgroup.can_freeze(), "in its own group");
        return;
    };
    let left = zygote.join("i77");
    fs::create_dir(&left).unwrap();
    drop(SocketGroup::open(&lab.cgroups).unwrap());
    assert!(!left.exists());
    assert_eq!(lab.end(), Vec::<String>::new());
}
