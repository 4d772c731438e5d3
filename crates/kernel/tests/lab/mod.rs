//! A small node for tests: a switch, a launcher, and instances whose program is a shell or Python script.

#![allow(dead_code)] // each test file uses a part of it

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nearpath_kernel::sandbox::{Isolation, Launched, Launcher, Network, Note, Spec};
use nearpath_kernel::switch::Switch;
use nearpath_types::{Eip, InstanceId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, pidfd_send_signal, waitid};

pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);
const UID: u32 = 200_000;

pub(crate) struct Lab {
    /// The last argument of its template.
    mark: String,
    pub(crate) switch: Arc<Switch>,
    pub(crate) launcher: Launcher,
}

/// How an instance ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) notes: Vec<Note>,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

/// The program `examples/instance.rs`, which Cargo builds beside the tests.
pub(crate) fn instance_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples/instance")
}

/// Ids, and with them addresses, that no other test of this process uses.
fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(2);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Lab {
    pub(crate) fn new() -> Lab {
        Self::around(GATEWAY)
    }

    /// One whose switch has this address.
    pub(crate) fn around(switch: Ipv4Addr) -> Lab {
        let mark = format!("lab-{}-{}", std::process::id(), next());
        let launcher = Launcher::with_program(&instance_program(), ["instance-init", &mark]).unwrap();
        Lab { mark, switch: Arc::new(Switch::create(switch).unwrap()), launcher }
    }

    /// An instance that runs a shell script.
    pub(crate) fn shell(&self, script: &str) -> Spec {
        let id = next();
        let mut spec = Spec::new(InstanceId(id), Isolation::Root, "/bin/sh".into());
        spec.arguments = vec!["-c".into(), script.into()];
        spec.environment.insert("PATH".into(), "/usr/bin:/bin".into());
        let eip = Eip(Ipv4Addr::new(10, 62, (id >> 8) as u8, id as u8));
        spec.network = Some(Network::new(eip, GATEWAY, Some(self.switch.clone())));
        (spec.uid, spec.gid) = (UID + id as u32, UID + id as u32);
        spec
    }

    /// An instance that runs a Python script.
    pub(crate) fn python(&self, script: &str) -> Spec {
        let mut spec = self.shell("exec /usr/bin/python3 -c \"$SCRIPT\"");
        spec.environment.insert("SCRIPT".into(), script.into());
        spec
    }

    /// Kills the process that forks this launcher's instances: it is known by an argument of its own.
    pub(crate) fn kill_template(&self) {
        let command = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut pids =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let template = pids.find(|pid| String::from_utf8_lossy(&command(*pid)).ends_with(&format!("{}\0", self.mark)));
        let template = Pid::from_raw(template.unwrap() as i32).unwrap();
        kill_process(template, Signal::KILL).unwrap();
    }

    /// The same for another instance.
    pub(crate) fn again(&self, spec: &Spec) -> Spec {
        let fresh = self.shell("");
        Spec { instance: fresh.instance, network: fresh.network, ..spec.clone() }
    }

    pub(crate) fn run(&self, spec: &Spec) -> Ended {
        finish(self.launcher.launch(spec).unwrap())
    }

    /// Starts an instance and waits for the first line that it prints.
    pub(crate) fn start(&self, spec: &Spec) -> (Launched, String) {
        let mut launched = self.launcher.launch(spec).unwrap();
        let mut line = String::new();
        let mut out = BufReader::with_capacity(1, File::from(launched.stdout));
        out.read_line(&mut line).unwrap();
        launched.stdout = out.into_inner().into();
        if line.is_empty() {
            panic!("it said nothing: {:?}", finish(launched));
        }
        (launched, line.trim_end().to_owned())
    }
}

pub(crate) fn kill(launched: Launched) -> Ended {
    pidfd_send_signal(&launched.pidfd, Signal::KILL).unwrap();
    finish(launched)
}

/// Waits for the end, at most 30 seconds, and collects everything.
pub(crate) fn finish(launched: Launched) -> Ended {
    let (out, err) = (reader(launched.stdout), reader(launched.stderr));
    let notes = reader(launched.notes);
    let half_a_minute = Timespec { tv_sec: 30, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&launched.pidfd, PollFlags::IN)], Some(&half_a_minute)).unwrap();
    if ended == 0 {
        pidfd_send_signal(&launched.pidfd, Signal::KILL).unwrap();
    }
    let status = waitid(WaitId::PidFd(launched.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap().unwrap();
    let (out, err, notes) = (out.join().unwrap(), err.join().unwrap(), notes.join().unwrap());
    assert_eq!(ended, 1, "the instance hung for 30 s: {out} {err} {notes}");
    let notes = notes.lines().filter_map(Note::parse).collect();
    Ended { out, err, notes, code: status.exit_status(), signal: status.terminating_signal() }
}

fn reader(pipe: OwnedFd) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        File::from(pipe).read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
