//! Resource limits and usage counters in both cgroup versions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::hierarchy::{CgroupController, CgroupHierarchy, CgroupVersion};
use super::{socket_memory, with_path};

/// Period of the CPU quota in microseconds: the kernel's default.
const PERIOD_MICROS: u64 = 100_000;
/// Minimum quota that the kernel accepts per period, in microseconds.
const MIN_QUOTA_MICROS: u64 = 1_000;

/// Limits of one instance; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Bytes of memory, including `/tmp`. No swap is added. In cgroup v1, socket buffers may take a
    /// quarter of it besides.
    pub memory_bytes: Option<u64>,
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// Resources that one instance has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// CPU time since its start.
    pub cpu: Duration,
    /// Bytes of memory that the kernel cannot reclaim at once: with socket buffers, without inactive
    /// page cache.
    pub memory_bytes: u64,
}

/// A file of a group, its value, and whether the kernel must have it.
struct LimitEntry(&'static str, String, LimitPresence);

#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitPresence {
    Required,
    /// Exists only with swap accounting, or on newer kernels.
    Optional,
}

impl ResourceLimits {
    pub(super) fn write_limits(
        &self,
        hierarchy: &CgroupHierarchy,
        folder: &Path,
    ) -> io::Result<()> {
        self.limit_entries(hierarchy)
            .into_iter()
            .try_for_each(|LimitEntry(name, value, need)| {
                let file = folder.join(name);
                match write_existing(&file, &value) {
                    Err(error)
                        if need == LimitPresence::Optional
                            && error.kind() == io::ErrorKind::NotFound =>
                    {
                        Ok(())
                    }
                    result => result.map_err(|error| with_path(&file, error)),
                }
            })
    }

    fn limit_entries(&self, hierarchy: &CgroupHierarchy) -> Vec<LimitEntry> {
        let mut entries = Vec::new();
        if let (Some(bytes), true) = (
            self.memory_bytes,
            hierarchy.has_controller(CgroupController::Memory),
        ) {
            entries.extend(memory_entries(hierarchy.version, bytes));
        }
        if let (Some(millis), true) = (
            self.cpu_millis,
            hierarchy.has_controller(CgroupController::Cpu),
        ) {
            entries.extend(cpu_entries(hierarchy.version, millis));
        }
        if let (Some(pids), true) = (self.pids, hierarchy.has_controller(CgroupController::Pids)) {
            entries.push(LimitEntry(
                "pids.max",
                pids.to_string(),
                LimitPresence::Required,
            ));
        }
        entries
    }
}

fn memory_entries(version: CgroupVersion, bytes: u64) -> Vec<LimitEntry> {
    let value = bytes.to_string();
    match version {
        // Memory before the sum with swap: the kernel refuses a sum below the memory limit.
        CgroupVersion::V1 => vec![
            LimitEntry(
                "memory.limit_in_bytes",
                value.clone(),
                LimitPresence::Required,
            ),
            // memory and swap together
            LimitEntry(
                "memory.memsw.limit_in_bytes",
                value,
                LimitPresence::Optional,
            ),
            LimitEntry(
                socket_memory::V1_LIMIT_FILE,
                socket_memory::v1_limit(bytes).to_string(),
                LimitPresence::Optional,
            ),
        ],
        CgroupVersion::V2 => vec![
            LimitEntry("memory.max", value, LimitPresence::Required),
            // No swap: in v2 the limit of memory does not include it.
            LimitEntry("memory.swap.max", "0".into(), LimitPresence::Optional),
            // an instance that lost some of its processes is useless
            LimitEntry("memory.oom.group", "1".into(), LimitPresence::Optional),
        ],
    }
}

/// Limits the CPU time of an existing group.
pub(super) fn write_cpu_limit(
    version: CgroupVersion,
    folder: &Path,
    millis: u64,
) -> io::Result<()> {
    cpu_entries(version, millis)
        .into_iter()
        .try_for_each(|LimitEntry(name, value, _)| {
            let file = folder.join(name);
            write_existing(&file, &value).map_err(|error| with_path(&file, error))
        })
}

fn cpu_entries(version: CgroupVersion, millis: u64) -> Vec<LimitEntry> {
    // A smaller quota is refused with EINVAL: the instance gets the minimum instead.
    let quota = (millis.saturating_mul(PERIOD_MICROS) / 1_000).max(MIN_QUOTA_MICROS);
    match version {
        CgroupVersion::V1 => vec![
            LimitEntry(
                "cpu.cfs_period_us",
                PERIOD_MICROS.to_string(),
                LimitPresence::Required,
            ),
            LimitEntry(
                "cpu.cfs_quota_us",
                quota.to_string(),
                LimitPresence::Required,
            ),
        ],
        CgroupVersion::V2 => vec![LimitEntry(
            "cpu.max",
            format!("{quota} {PERIOD_MICROS}"),
            LimitPresence::Required,
        )],
    }
}

/// Writes to an existing file. `fs::write` would try to create it, which cgroupfs rejects with a
/// misleading error.
pub(super) fn write_existing(file: &Path, value: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new()
        .write(true)
        .open(file)?
        .write_all(value.as_bytes())
}

impl ResourceUsage {
    pub(super) fn add_usage(
        &mut self,
        hierarchy: &CgroupHierarchy,
        folder: &Path,
    ) -> io::Result<()> {
        let read = |name: &str| {
            fs::read_to_string(folder.join(name))
                .map_err(|error| with_path(&folder.join(name), error))
        };
        if hierarchy.has_controller(CgroupController::CpuAccounting) {
            self.cpu = read_cpu_time(hierarchy.version, folder)?;
        }
        if hierarchy.has_controller(CgroupController::Memory) {
            // Inactive page cache is subtracted as the kubelet does it: the kernel drops it under
            // pressure.
            let (current, inactive) = match hierarchy.version {
                CgroupVersion::V1 => ("memory.usage_in_bytes", "total_inactive_file"),
                CgroupVersion::V2 => ("memory.current", "inactive_file"),
            };
            self.memory_bytes = parse_number(&read(current)?)
                .saturating_sub(parse_field(&read("memory.stat")?, inactive));
            if hierarchy.version == CgroupVersion::V1 {
                // Missing where the kernel does not count socket buffers.
                let sockets = read(socket_memory::V1_USAGE_FILE).unwrap_or_default();
                self.memory_bytes += parse_number(&sockets);
            }
        }
        Ok(())
    }
}

/// Returns the file with the line `oom_kill N`: how many processes of a group the kernel has killed
/// for lack of memory.
pub(super) fn oom_kill_file(version: CgroupVersion, folder: &Path) -> PathBuf {
    // Documents: cgroup-v1/memory.rst (since Linux 4.13), cgroup-v2.rst.
    folder.join(match version {
        CgroupVersion::V1 => "memory.oom_control",
        CgroupVersion::V2 => "memory.events",
    })
}

/// Reads [`oom_kill_file`]. `None`: the kernel does not count them.
pub(super) fn read_oom_kills(version: CgroupVersion, folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(oom_kill_file(version, folder)).ok()?;
    text.contains("oom_kill ")
        .then(|| parse_field(&text, "oom_kill"))
}

/// Reads the CPU time of a group and its descendants.
pub(super) fn read_cpu_time(version: CgroupVersion, folder: &Path) -> io::Result<Duration> {
    let read = |name: &str| {
        fs::read_to_string(folder.join(name)).map_err(|error| with_path(&folder.join(name), error))
    };
    Ok(match version {
        CgroupVersion::V1 => Duration::from_nanos(parse_number(&read("cpuacct.usage")?)),
        CgroupVersion::V2 => Duration::from_micros(parse_field(&read("cpu.stat")?, "usage_usec")),
    })
}

fn parse_number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// Returns the value of a `NAME VALUE` line, or 0.
pub fn parse_field(text: &str, name: &str) -> u64 {
    let value = |line: &str| {
        line.split_once(' ')
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| parse_number(value))
    };
    text.lines().find_map(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries_for(
        version: CgroupVersion,
        controllers: &[CgroupController],
        limits: ResourceLimits,
    ) -> Vec<(&'static str, String)> {
        let hierarchy = CgroupHierarchy {
            version,
            controllers: controllers.to_vec(),
            folder: "/".into(),
        };
        limits
            .limit_entries(&hierarchy)
            .into_iter()
            .map(|LimitEntry(name, value, _)| (name, value))
            .collect()
    }

    #[test]
    fn limits_are_written_for_both_versions() {
        let limits = ResourceLimits {
            memory_bytes: Some(1 << 20),
            cpu_millis: Some(250),
            pids: Some(9),
        };
        let v1 = entries_for(CgroupVersion::V1, &[CgroupController::Cpu], limits);
        assert_eq!(
            v1,
            [
                ("cpu.cfs_period_us", "100000".into()),
                ("cpu.cfs_quota_us", "25000".to_owned())
            ]
        );
        let v2 = entries_for(
            CgroupVersion::V2,
            &[
                CgroupController::Memory,
                CgroupController::Cpu,
                CgroupController::Pids,
            ],
            limits,
        );
        assert!(
            v2.contains(&("cpu.max", "25000 100000".into()))
                && v2.contains(&("pids.max", "9".into())),
            "{v2:?}"
        );
        assert!(v2.contains(&("memory.swap.max", "0".into())), "{v2:?}");
        assert!(
            entries_for(
                CgroupVersion::V2,
                &[CgroupController::Memory],
                ResourceLimits::default()
            )
            .is_empty()
        );
    }

    #[test]
    fn a_quota_below_the_kernel_minimum_is_raised() {
        let one = entries_for(
            CgroupVersion::V2,
            &[CgroupController::Cpu],
            ResourceLimits {
                cpu_millis: Some(1),
                ..ResourceLimits::default()
            },
        );
        assert_eq!(one[0].1, "1000 100000");
    }

    #[test]
    fn counters_match_their_whole_name() {
        assert_eq!(
            parse_field(
                "total_inactive_file_x 9\ntotal_inactive_file 7\n",
                "total_inactive_file"
            ),
            7
        );
        assert_eq!(parse_field("", "usage_usec"), 0);
    }
}
