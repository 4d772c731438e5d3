//! CPU weight of all instances of the machine together.

use std::fs;

use super::hierarchy::{CgroupController, CgroupHierarchy, CgroupVersion};
use super::limits;

/// Gives all instances of the machine together the weight of one busy process per processor,
/// where they compete with single processes.
///
/// Without it they would share the weight of one process, and each start would take seconds on a
/// busy machine. Where a service manager keeps processes in groups, as systemd does, the
/// instances weigh as much as all its services (`own` is `/proc/self/cgroup`).
pub(super) fn set_total_weight(hierarchy: &CgroupHierarchy, own: &str) {
    let Some(nearpath) = hierarchy.folder.parent() else {
        return;
    };
    if !hierarchy.has_controller(CgroupController::Cpu) || !is_in_root(own, hierarchy.version) {
        return;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (file, usual, weight) = cpu_weight(hierarchy.version, processors);
    let file = nearpath.join(file);
    // Another value is the operator's, or of an earlier start.
    let is_usual = fs::read_to_string(&file).is_ok_and(|now| now.trim() == usual);
    if is_usual && let Err(error) = limits::write_existing(&file, &weight.to_string()) {
        tracing::debug!(%error, file = %file.display(), "instances share the weight of one process");
    }
}

/// Returns the file of a group's weight, its usual value, and that for `processors` processes.
// cgroup-v2.rst, cpu.weight: 1 to 10,000, 100 for a process without a niceness;
// sched-design-CFS.rst, cpu.shares: 2 to 262,144, 1024 for such a process.
fn cpu_weight(version: CgroupVersion, processors: usize) -> (&'static str, &'static str, usize) {
    match version {
        CgroupVersion::V1 => ("cpu.shares", "1024", (processors * 1024).min(262_144)),
        CgroupVersion::V2 => ("cpu.weight", "100", (processors * 100).min(10_000)),
    }
}

/// Returns whether the process is in the root group of the hierarchy with the CPU controller.
fn is_in_root(own: &str, version: CgroupVersion) -> bool {
    own.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1); // NUMBER:CONTROLLERS:PATH
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next());
        let has_cpu = match version {
            CgroupVersion::V1 => controllers.split(',').any(|name| name == "cpu"),
            CgroupVersion::V2 => controllers.is_empty(),
        };
        has_cpu && path == Some("/")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_group_is_found_in_both_versions() {
        let own = "8:pids:/\n2:cpu,cpuacct:/\n0::/user.slice/a\n";
        assert!(is_in_root(own, CgroupVersion::V1));
        assert!(!is_in_root(own, CgroupVersion::V2));
        assert!(!is_in_root(
            "2:cpu:/x\n1:cpuset:/\n0::/\n",
            CgroupVersion::V1
        ));
        assert!(is_in_root("0::/\n", CgroupVersion::V2));
    }
}
