//! Memory of an instance's socket buffers: TCP, UDP and all other protocols that the kernel charges.
//!
//! In cgroup v2 the memory limit includes it. In v1 it has a counter of its own, which is active
//! only with a limit: `admin-guide/cgroup-v1/memory.rst`, section 2.7.3. The counter is named after
//! TCP, but the kernel charges sockets of every protocol with memory accounting.

use std::path::Path;

use super::hierarchy::CgroupVersion;

/// Limit of a v1 group, in bytes. Kernels without CONFIG_MEMCG_V1 or CONFIG_INET lack it.
pub(super) const V1_LIMIT_FILE: &str = "memory.kmem.tcp.limit_in_bytes";
/// Usage of a v1 group, in bytes.
pub(super) const V1_USAGE_FILE: &str = "memory.kmem.tcp.usage_in_bytes";

/// Part of the memory limit that a v1 group's sockets get on top of it.
const V1_SHARE: u64 = 4;

/// Returns the limit of socket buffers in v1, in bytes.
///
/// The kernel lets each TCP socket exceed it by its first segments, up to 64 KiB: otherwise a
/// connection would stop (`sk_forced_mem_schedule` in `net/ipv4/tcp_output.c`).
pub(super) fn v1_limit(memory_bytes: u64) -> u64 {
    memory_bytes / V1_SHARE
}

/// Memory of the limit for each open file of an instance whose sockets the kernel does not count.
///
/// A TCP socket of the measured kernel held 3.8 MiB of buffers. Fewer files than one for each of
/// these would be too few for ordinary functions.
const BYTES_PER_OPEN_FILE: u64 = 1 << 20;
/// Minimum of open files: the watchdog needs two for each call in progress.
const MIN_OPEN_FILES: u64 = 256;

/// Returns the maximum of open files of each process, where no group counts socket buffers.
pub(super) fn max_open_files(memory_bytes: u64) -> u64 {
    (memory_bytes / BYTES_PER_OPEN_FILE).max(MIN_OPEN_FILES)
}

/// Explains why a group below `folder` does not limit its sockets' buffers; `None` if it does.
/// `command_line` is the kernel's (`/proc/cmdline`).
pub(super) fn find_problem(
    version: CgroupVersion,
    folder: &Path,
    command_line: &str,
) -> Option<String> {
    match version {
        CgroupVersion::V1 if folder.join(V1_LIMIT_FILE).exists() => None,
        CgroupVersion::V1 => Some(format!("{} has no {V1_LIMIT_FILE}", folder.display())),
        CgroupVersion::V2 => is_switched_off(command_line)
            .then(|| "the kernel was started with cgroup.memory=nosocket".to_owned()),
    }
}

/// Returns whether the kernel counts no sockets in v2 (`admin-guide/kernel-parameters.txt`).
fn is_switched_off(command_line: &str) -> bool {
    command_line
        .split_whitespace()
        .filter_map(|option| option.strip_prefix("cgroup.memory="))
        .any(|values| values.split(',').any(|value| value == "nosocket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_v1_group_needs_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let problem = || find_problem(CgroupVersion::V1, folder.path(), "");
        assert!(problem().is_some_and(|text| text.contains(V1_LIMIT_FILE)));
        std::fs::write(folder.path().join(V1_LIMIT_FILE), "").unwrap();
        assert_eq!(problem(), None);
    }

    #[test]
    fn open_files_follow_the_memory_limit() {
        const MIB: u64 = 1 << 20;
        let of_limit = [0, 64 * MIB, 256 * MIB, 1024 * MIB].map(max_open_files);
        assert_eq!(of_limit, [256, 256, 256, 1024]);
    }

    #[test]
    fn a_v2_group_counts_sockets_unless_the_kernel_is_told_otherwise() {
        let problem = |command_line| find_problem(CgroupVersion::V2, Path::new("/"), command_line);
        assert_eq!(problem("quiet cgroup.memory=nokmem nosocket\n"), None);
        assert!(problem("cgroup.memory=nokmem,nosocket quiet\n").is_some());
    }
}
