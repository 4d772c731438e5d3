//! Where controllers are: read from `/proc/self/mountinfo` and `/proc/self/cgroup`.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What can be limited or counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Bytes of memory and swap.
    Memory,
    /// CPU time per period.
    Cpu,
    /// CPU time used; part of [`Controller::Cpu`] in v2.
    CpuAccounting,
    /// Processes and threads.
    Pids,
}

impl Controller {
    const ALL: [Controller; 4] = [Self::Memory, Self::Cpu, Self::CpuAccounting, Self::Pids];

    /// Its name in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::CpuAccounting => "cpuacct",
            Self::Pids => "pids",
        }
    }

    fn among<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Controller> {
        names.filter_map(|name| Self::ALL.into_iter().find(|controller| controller.name() == name)).collect()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kernel's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for one or two controllers.
    V1,
    /// The unified hierarchy.
    V2,
}

impl Version {
    /// The file through which a process joins. v1 has one for a single thread, `tasks`: the child has only one, and
    /// this way the kernel need not stop every fork on the machine, which takes a grace period of some ten milliseconds.
    pub(super) const fn join_file(self) -> &'static str {
        match self {
            Self::V1 => "tasks",
            Self::V2 => "cgroup.procs",
        }
    }

    /// The file through which one thread joins.
    pub(super) const fn thread_file(self) -> &'static str {
        match self {
            Self::V1 => "tasks",
            Self::V2 => "cgroup.threads",
        }
    }
}

/// A hierarchy in which this node has a folder.
#[derive(Debug)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    /// The node's folder.
    pub(super) folder: PathBuf,
}

impl Hierarchy {
    pub(super) fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    point: PathBuf,
    controllers: Vec<Controller>,
}

/// Every hierarchy where the node's folder can be made, with the controllers that can be used in it.
pub(super) fn usable(node: &str) -> Vec<Hierarchy> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found: Vec<Hierarchy> = Vec::new();
    for mount in mounts(&mountinfo) {
        let usable = match mount.version {
            Version::V1 => in_v1(&mount, node),
            Version::V2 => in_v2(&mount, &own, node),
        };
        match usable {
            Ok(hierarchy) if hierarchy.controllers.iter().any(|new| found.iter().all(|old| !old.has(*new))) => {
                found.push(hierarchy);
            }
            Ok(_) => {} // mounted twice
            Err(error) => tracing::debug!(%error, mount = %mount.point.display(), "no cgroups here"),
        }
    }
    found
}

fn in_v1(mount: &Mount, node: &str) -> io::Result<Hierarchy> {
    let folder = mount.point.join("nearpath").join(node);
    fs::create_dir_all(&folder)?;
    Ok(Hierarchy { version: Version::V1, controllers: mount.controllers.clone(), folder })
}

/// Tries the root of the hierarchy, then the group that this process is in: one of both has been given to it.
fn in_v2(mount: &Mount, own: &str, node: &str) -> io::Result<Hierarchy> {
    let home = mount.point.join(own_v2_group(own).unwrap_or("").trim_start_matches('/'));
    below_v2(&mount.point, node).or_else(|_| below_v2(&home, node))
}

/// Hands the controllers down to the node's folder. A group with processes in it cannot hand any down, unless it is the
/// real root.
fn below_v2(parent: &Path, node: &str) -> io::Result<Hierarchy> {
    let offered = fs::read_to_string(parent.join("cgroup.controllers"))?;
    let controllers = Controller::among(offered.split_whitespace());
    let nearpath = parent.join("nearpath");
    let folder = nearpath.join(node);
    if controllers.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "no controllers are available in the unified hierarchy",
        ));
    }
    fs::create_dir_all(&folder)?;
    for group in [parent, &nearpath, &folder] {
        for controller in &controllers {
            fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"))?;
        }
    }
    let mut controllers = controllers;
    controllers.push(Controller::CpuAccounting); // every v2 group counts its CPU time
    Ok(Hierarchy { version: Version::V2, controllers, folder })
}

/// The path after `0::` in `/proc/self/cgroup`.
pub fn own_v2_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The folder of this process's own group in the unified hierarchy, wherever that is mounted.
pub(crate) fn own_unified_group() -> Option<PathBuf> {
    let (mountinfo, own) =
        (fs::read_to_string("/proc/self/mountinfo").ok()?, fs::read_to_string("/proc/self/cgroup").ok()?);
    let unified = mounts(&mountinfo).into_iter().find(|mount| mount.version == Version::V2)?;
    Some(unified.point.join(own_v2_group(&own)?.trim_start_matches('/')))
}

/// Reads `/proc/PID/mountinfo`; see `man 5 proc_pid_mountinfo`.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

/// Where hierarchies of use are mounted.
pub fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    mounts(mountinfo).into_iter().map(|mount| mount.point).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (fields, rest) = line.split_once(" - ")?;
    let point = fields.split(' ').nth(4)?;
    let (kind, rest) = rest.split_once(' ')?;
    let options = rest.rsplit(' ').next()?;
    let (version, controllers) = match kind {
        "cgroup2" => (Version::V2, Vec::new()),
        "cgroup" => (Version::V1, Controller::among(options.split(','))),
        _ => return None,
    };
    let none_of_ours = version == Version::V1 && controllers.is_empty();
    (!none_of_ours).then(|| Mount { version, point: unescape(point), controllers })
}

/// Blanks and backslashes in paths are written as three octal digits: `\040`.
fn unescape(path: &str) -> PathBuf {
    let mut parts = path.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.map_or('\\', char::from));
        plain.push_str(if code.is_some() { &part[3..] } else { part });
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/a\\040b rw,relatime shared:9 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn a_hybrid_machine_is_understood() {
        let found = mounts(HYBRID);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].controllers, [Controller::Cpu, Controller::CpuAccounting]);
        assert_eq!(found[1].point, Path::new("/sys/fs/cgroup/a b"));
        assert_eq!(found[2].version, Version::V2);
        assert_eq!(unescape("/a\\011\\134040\\"), Path::new("/a\t\\040\\"));
        assert_eq!(own_v2_group("9:pids:/x\n0::/user.slice/a\n"), Some("/user.slice/a"));
    }

    proptest! {
        #[test]
        fn any_line_is_answered(line in "[ -~]{0,80}( - cgroup)?[ -~]{0,20}") {
            let _ = mounts(&line);
        }
    }
}
