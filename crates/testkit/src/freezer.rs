//! Freezing of processes with their sockets, as on a platform that freezes idle instances.

use std::fs;
use std::path::{Path, PathBuf};

use crate::eventually;

/// A control group that can be frozen, with some processes in it. Dropping it resumes them.
#[derive(Debug)]
pub struct Freezer {
    folder: PathBuf,
    unified: bool,
    /// Control group of each process before.
    previous_cgroup: Vec<(u32, PathBuf)>,
}

impl Freezer {
    /// Moves processes into a new group. `None`: this user cannot create freezable groups on this
    /// machine.
    pub fn around_process(processes: &[u32]) -> Option<Self> {
        let name = format!(
            "nearpath-frozen-{}-{}",
            std::process::id(),
            processes.first()?
        );
        let roots = [
            ("/sys/fs/cgroup/freezer", false),
            ("/sys/fs/cgroup/unified", true),
            ("/sys/fs/cgroup", true),
        ];
        for (root, unified) in roots {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let from = processes
                .iter()
                .map(|&process| (process, own_cgroup(process, unified, Path::new(root))))
                .collect();
            let freezer = Self {
                folder,
                unified,
                previous_cgroup: from,
            };
            let join = |process: &u32| {
                fs::write(freezer.folder.join("cgroup.procs"), process.to_string()).is_ok()
            };
            if processes.iter().all(join) && freezer.state_file().exists() {
                return Some(freezer);
            }
        }
        None
    }

    /// Freezes the processes, and returns when all are frozen.
    pub async fn freeze(&self) {
        self.write_state("1", "FROZEN");
        let (file, word) = if self.unified {
            ("cgroup.events", "frozen 1")
        } else {
            ("freezer.state", "FROZEN")
        };
        let state = self.folder.join(file);
        let stands = async || {
            fs::read_to_string(&state).is_ok_and(|text| text.lines().any(|line| line == word))
        };
        eventually("all processes are frozen", stands).await;
    }

    /// Resumes the processes.
    pub fn thaw(&self) {
        self.write_state("0", "THAWED");
    }

    fn state_file(&self) -> PathBuf {
        self.folder.join(if self.unified {
            "cgroup.freeze"
        } else {
            "freezer.state"
        })
    }

    fn write_state(&self, unified: &str, first: &str) {
        let word = if self.unified { unified } else { first };
        fs::write(self.state_file(), word).expect("the group has just been made by this user");
    }
}

/// Control group of a process, see cgroups(7).
fn own_cgroup(process: u32, unified: bool, root: &Path) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let of = |line: &str| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        ["0", "", path] if unified => Some(path.to_owned()),
        [_, "freezer", path] if !unified => Some(path.to_owned()),
        _ => None,
    };
    root.join(
        groups
            .lines()
            .find_map(of)
            .unwrap_or_default()
            .trim_start_matches('/'),
    )
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        for (process, from) in &self.previous_cgroup {
            let _ = fs::write(from.join("cgroup.procs"), process.to_string()); // it may have ended
        }
        let _ = fs::remove_dir(&self.folder);
    }
}
