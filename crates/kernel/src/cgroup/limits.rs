//! Limits as the two interfaces write them, and what they count.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::at;
use super::hierarchy::{Controller, Hierarchy, Version};

/// The period in which CPU time is handed out, in microseconds: the kernel's default.
const PERIOD_MICROS: u64 = 100_000;
/// The kernel refuses a smaller share of a period.
const LEAST_QUOTA_MICROS: u64 = 1_000;

/// What one instance may use; `None` is without limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, its `/tmp` included. Swap is not given on top.
    pub memory_bytes: Option<u64>,
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// What one instance has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time since its start.
    pub cpu: Duration,
    /// Bytes of memory that could not be taken back at once: without inactive page cache.
    pub memory_bytes: u64,
}

/// A file of a group, what to write, and whether the kernel may be without it.
struct Entry(&'static str, String, Need);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    /// There only with swap accounting, or on newer kernels.
    May,
}

impl Limits {
    pub(super) fn set(&self, hierarchy: &Hierarchy, folder: &Path) -> io::Result<()> {
        self.entries(hierarchy).into_iter().try_for_each(|Entry(name, value, need)| {
            let file = folder.join(name);
            match write(&file, &value) {
                Err(error) if need == Need::May && error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result.map_err(|error| at(&file, error)),
            }
        })
    }

    fn entries(&self, hierarchy: &Hierarchy) -> Vec<Entry> {
        let mut entries = Vec::new();
        if let (Some(bytes), true) = (self.memory_bytes, hierarchy.has(Controller::Memory)) {
            entries.extend(memory(hierarchy.version, bytes));
        }
        if let (Some(millis), true) = (self.cpu_millis, hierarchy.has(Controller::Cpu)) {
            entries.extend(cpu(hierarchy.version, millis));
        }
        if let (Some(pids), true) = (self.pids, hierarchy.has(Controller::Pids)) {
            entries.push(Entry("pids.max", pids.to_string(), Need::Must));
        }
        entries
    }
}

fn memory(version: Version, bytes: u64) -> Vec<Entry> {
    let value = bytes.to_string();
    match version {
        Version::V1 => vec![
            Entry("memory.limit_in_bytes", value.clone(), Need::Must),
            Entry("memory.memsw.limit_in_bytes", value, Need::May), // memory and swap together
        ],
        Version::V2 => vec![
            Entry("memory.max", value, Need::Must),
            Entry("memory.swap.max", "0".into(), Need::May),
            Entry("memory.oom.group", "1".into(), Need::May), // half an instance is of no use
        ],
    }
}

/// Limits the CPU time of a group that is there.
pub(super) fn set_cpu(version: Version, folder: &Path, millis: u64) -> io::Result<()> {
    cpu(version, millis).into_iter().try_for_each(|Entry(name, value, _)| {
        let file = folder.join(name);
        write(&file, &value).map_err(|error| at(&file, error))
    })
}

fn cpu(version: Version, millis: u64) -> Vec<Entry> {
    let quota = (millis.saturating_mul(PERIOD_MICROS) / 1_000).max(LEAST_QUOTA_MICROS);
    match version {
        Version::V1 => vec![
            Entry("cpu.cfs_period_us", PERIOD_MICROS.to_string(), Need::Must),
            Entry("cpu.cfs_quota_us", quota.to_string(), Need::Must),
        ],
        Version::V2 => vec![Entry("cpu.max", format!("{quota} {PERIOD_MICROS}"), Need::Must)],
    }
}

/// Writes to a file that exists: `fs::write` would try to create it, which a cgroup refuses with a misleading error.
pub(super) fn write(file: &Path, value: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

impl Usage {
    pub(super) fn read(&mut self, hierarchy: &Hierarchy, folder: &Path) -> io::Result<()> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).map_err(|error| at(&folder.join(name), error));
        if hierarchy.has(Controller::CpuAccounting) {
            self.cpu = cpu_used(hierarchy.version, folder)?;
        }
        if hierarchy.has(Controller::Memory) {
            let (current, inactive) = match hierarchy.version {
                Version::V1 => ("memory.usage_in_bytes", "total_inactive_file"),
                Version::V2 => ("memory.current", "inactive_file"),
            };
            self.memory_bytes = number(&read(current)?).saturating_sub(field(&read("memory.stat")?, inactive));
        }
        Ok(())
    }
}

/// CPU time of a group and those below.
pub(super) fn cpu_used(version: Version, folder: &Path) -> io::Result<Duration> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).map_err(|error| at(&folder.join(name), error));
    Ok(match version {
        Version::V1 => Duration::from_nanos(number(&read("cpuacct.usage")?)),
        Version::V2 => Duration::from_micros(field(&read("cpu.stat")?, "usage_usec")),
    })
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// The value of `NAME VALUE` lines.
pub fn field(text: &str, name: &str) -> u64 {
    let value = |line: &str| line.split_once(' ').filter(|(key, _)| *key == name).map(|(_, value)| number(value));
    text.lines().find_map(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, controllers: &[Controller], limits: Limits) -> Vec<(&'static str, String)> {
        let hierarchy = Hierarchy { version, controllers: controllers.to_vec(), folder: "/".into() };
        limits.entries(&hierarchy).into_iter().map(|Entry(name, value, _)| (name, value)).collect()
    }

    #[test]
    fn limits_in_both_notations() {
        let limits = Limits { memory_bytes: Some(1 << 20), cpu_millis: Some(250), pids: Some(9) };
        let v1 = written(Version::V1, &[Controller::Cpu], limits);
        assert_eq!(v1, [("cpu.cfs_period_us", "100000".into()), ("cpu.cfs_quota_us", "25000".to_owned())]);
        let v2 = written(Version::V2, &[Controller::Memory, Controller::Cpu, Controller::Pids], limits);
        assert!(v2.contains(&("cpu.max", "25000 100000".into())) && v2.contains(&("pids.max", "9".into())), "{v2:?}");
        assert!(v2.contains(&("memory.swap.max", "0".into())), "{v2:?}");
        assert!(written(Version::V2, &[Controller::Memory], Limits::default()).is_empty());
    }

    #[test]
    fn a_share_below_the_kernels_least_is_raised() {
        let one = written(Version::V2, &[Controller::Cpu], Limits { cpu_millis: Some(1), ..Limits::default() });
        assert_eq!(one[0].1, "1000 100000");
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        assert_eq!(field("total_inactive_file_x 9\ntotal_inactive_file 7\n", "total_inactive_file"), 7);
        assert_eq!(field("", "usage_usec"), 0);
    }
}
