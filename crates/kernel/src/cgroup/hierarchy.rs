//! Cgroup hierarchies and their controllers, from `/proc/self/mountinfo` and `/proc/self/cgroup`.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A resource that cgroups limit or count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CgroupController {
    /// Bytes of memory and swap.
    Memory,
    /// CPU time per period.
    Cpu,
    /// Used CPU time; part of [`CgroupController::Cpu`] in v2.
    CpuAccounting,
    /// Processes and threads.
    Pids,
}

impl CgroupController {
    const ALL: [CgroupController; 4] = [Self::Memory, Self::Cpu, Self::CpuAccounting, Self::Pids];

    /// Returns the controller's name in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::CpuAccounting => "cpuacct",
            Self::Pids => "pids",
        }
    }

    fn parse_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<CgroupController> {
        names
            .filter_map(|name| {
                Self::ALL
                    .into_iter()
                    .find(|controller| controller.name() == name)
            })
            .collect()
    }
}

impl fmt::Display for CgroupController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Version of the kernel's cgroup interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A hierarchy with one or two controllers.
    V1,
    /// The unified hierarchy.
    V2,
}

impl CgroupVersion {
    /// Returns the file through which a process joins.
    ///
    /// v1 uses `tasks`, which moves one thread: the child has only one. `cgroup.procs` would block
    /// all forks on the machine for a grace period of about ten milliseconds.
    pub(super) const fn join_file(self) -> &'static str {
        match self {
            Self::V1 => "tasks",
            Self::V2 => "cgroup.procs",
        }
    }

    /// Returns the file through which one thread joins.
    pub(super) const fn thread_file(self) -> &'static str {
        match self {
            Self::V1 => "tasks",
            Self::V2 => "cgroup.threads",
        }
    }
}

/// A hierarchy in which this node has a folder.
#[derive(Debug)]
pub(super) struct CgroupHierarchy {
    pub(super) version: CgroupVersion,
    pub(super) controllers: Vec<CgroupController>,
    /// Folder of the node.
    pub(super) folder: PathBuf,
}

impl CgroupHierarchy {
    pub(super) fn has_controller(&self, controller: CgroupController) -> bool {
        self.controllers.contains(&controller)
    }
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct CgroupMount {
    version: CgroupVersion,
    mount_point: PathBuf,
    controllers: Vec<CgroupController>,
}

/// Returns every hierarchy where the node's folder can be created, with its usable controllers.
pub(super) fn usable_hierarchies(node: &str) -> Vec<CgroupHierarchy> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found: Vec<CgroupHierarchy> = Vec::new();
    for mount in parse_mounts(&mountinfo) {
        let usable = match mount.version {
            CgroupVersion::V1 => prepare_v1(&mount, node),
            CgroupVersion::V2 => prepare_v2(&mount, &own, node),
        };
        match usable {
            Ok(hierarchy)
                if hierarchy
                    .controllers
                    .iter()
                    .any(|new| found.iter().all(|old| !old.has_controller(*new))) =>
            {
                found.push(hierarchy);
            }
            Ok(_) => {} // a second mount of the same hierarchy
            Err(error) => {
                tracing::debug!(%error, mount = %mount.mount_point.display(), "no cgroups here")
            }
        }
    }
    found
}

fn prepare_v1(mount: &CgroupMount, node: &str) -> io::Result<CgroupHierarchy> {
    let folder = mount.mount_point.join("nearpath").join(node);
    fs::create_dir_all(&folder)?;
    Ok(CgroupHierarchy {
        version: CgroupVersion::V1,
        controllers: mount.controllers.clone(),
        folder,
    })
}

/// Tries the root of the hierarchy, then this process's own group: one of both is usually
/// delegated.
fn prepare_v2(mount: &CgroupMount, own: &str, node: &str) -> io::Result<CgroupHierarchy> {
    let own_group = mount
        .mount_point
        .join(own_v2_group(own).unwrap_or("").trim_start_matches('/'));
    prepare_v2_below(&mount.mount_point, node).or_else(|_| prepare_v2_below(&own_group, node))
}

/// Enables the controllers down to the node's folder. Only the real root may have processes beside
/// groups with controllers.
fn prepare_v2_below(parent: &Path, node: &str) -> io::Result<CgroupHierarchy> {
    let offered = fs::read_to_string(parent.join("cgroup.controllers"))?;
    let controllers = CgroupController::parse_names(offered.split_whitespace());
    let nearpath = parent.join("nearpath");
    let folder = nearpath.join(node);
    if controllers.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "no controllers are available in the unified hierarchy",
        ));
    }
    fs::create_dir_all(&folder)?;
    // Top down: a group can offer only controllers that its parent offers (cgroup-v2.rst).
    for group in [parent, &nearpath, &folder] {
        for controller in &controllers {
            fs::write(
                group.join("cgroup.subtree_control"),
                format!("+{controller}"),
            )?;
        }
    }
    let mut controllers = controllers;
    controllers.push(CgroupController::CpuAccounting); // every v2 group counts its CPU time
    Ok(CgroupHierarchy {
        version: CgroupVersion::V2,
        controllers,
        folder,
    })
}

/// Returns the path after `0::` in `/proc/self/cgroup`.
pub fn own_v2_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Returns the folder of this process's own group in the unified hierarchy, wherever that is
/// mounted.
///
/// # Errors
/// `Unsupported` if it is not mounted.
pub(crate) fn own_unified_group() -> io::Result<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let is_unified = |mount: &CgroupMount| mount.version == CgroupVersion::V2;
    let unified = parse_mounts(&mountinfo).into_iter().find(is_unified);
    let (Some(unified), Some(group)) = (unified, own_v2_group(&own)) else {
        let why = "cgroup v2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup/unified";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    };
    Ok(unified.mount_point.join(group.trim_start_matches('/')))
}

/// Parses `/proc/PID/mountinfo`; see `man 5 proc_pid_mountinfo`.
fn parse_mounts(mountinfo: &str) -> Vec<CgroupMount> {
    mountinfo.lines().filter_map(parse_mount).collect()
}

/// Returns the mount points of usable hierarchies.
pub fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    parse_mounts(mountinfo)
        .into_iter()
        .map(|mount| mount.mount_point)
        .collect()
}

fn parse_mount(line: &str) -> Option<CgroupMount> {
    let (fields, rest) = line.split_once(" - ")?;
    let point = fields.split(' ').nth(4)?;
    let (kind, rest) = rest.split_once(' ')?;
    // v1 lists its controllers among the super options, the last field (proc_pid_mountinfo(5)).
    let options = rest.rsplit(' ').next()?;
    let (version, controllers) = match kind {
        "cgroup2" => (CgroupVersion::V2, Vec::new()),
        "cgroup" => (
            CgroupVersion::V1,
            CgroupController::parse_names(options.split(',')),
        ),
        _ => return None,
    };
    // A named hierarchy, like systemd's, has no controllers.
    let unused = version == CgroupVersion::V1 && controllers.is_empty();
    (!unused).then(|| CgroupMount {
        version,
        mount_point: unescape(point),
        controllers,
    })
}

/// Decodes blanks and backslashes in paths, which the kernel writes as three octal digits: `\040`.
fn unescape(path: &str) -> PathBuf {
    let mut parts = path.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
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
    fn a_hybrid_mountinfo_is_parsed() {
        let found = parse_mounts(HYBRID);
        assert_eq!(found.len(), 3);
        assert_eq!(
            found[0].controllers,
            [CgroupController::Cpu, CgroupController::CpuAccounting]
        );
        assert_eq!(found[1].mount_point, Path::new("/sys/fs/cgroup/a b"));
        assert_eq!(found[2].version, CgroupVersion::V2);
        assert_eq!(unescape("/a\\011\\134040\\"), Path::new("/a\t\\040\\"));
        assert_eq!(
            own_v2_group("9:pids:/x\n0::/user.slice/a\n"),
            Some("/user.slice/a")
        );
    }

    proptest! {
        #[test]
        fn parsing_never_panics(line in "[ -~]{0,80}( - cgroup)?[ -~]{0,20}") {
            let _ = parse_mounts(&line);
        }
    }
}
