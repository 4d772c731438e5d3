//! Memory, CPU and process limits of an instance.
//!
//! Each controller is used in the hierarchy that this machine has it in: the unified one (v2) or
//! its own (v1). The groups of an instance are the folders `nearpath/NODE/INSTANCE` there. Folders
//! outlive a killed node, so the next node of that name sweeps them at its start. See the kernel's
//! `admin-guide/cgroup-v2.rst` and `cgroup-v1/`.

mod freezing;
mod hierarchy;
mod limits;
mod removal;
mod socket_group;
mod socket_memory;
mod thread_cgroup;
mod weight;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nearpath_types::InstanceId;

use freezing::FreezerGroup;
pub use freezing::has_swap;
use hierarchy::CgroupHierarchy;
pub(crate) use hierarchy::own_unified_group;
pub use hierarchy::{CgroupController, CgroupVersion};
#[doc(hidden)] // for the fuzz targets
pub use hierarchy::{mount_points, own_v2_group};
#[doc(hidden)] // for the fuzz targets
pub use limits::parse_field;
pub use limits::{ResourceLimits, ResourceUsage};
pub use removal::SweepReport;
pub use socket_group::SocketGroup;
pub use thread_cgroup::ThreadCgroup;

/// The cgroup hierarchies that one node uses.
#[derive(Debug, Clone)]
pub struct NodeCgroups {
    node: String,
    hierarchies: Vec<Arc<CgroupHierarchy>>,
}

/// The groups of one instance. Dropping it kills all processes inside and removes the groups.
#[derive(Debug)]
pub struct InstanceCgroup {
    folders: Vec<(Arc<CgroupHierarchy>, PathBuf)>,
    freezer: Option<FreezerGroup>,
}

impl NodeCgroups {
    /// Finds the hierarchies in which this process may create groups, and creates the node's folder
    /// in each.
    ///
    /// [`NodeCgroups::missing_controllers`] lists what is unavailable.
    pub fn detect(node: &str) -> NodeCgroups {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let hierarchies = hierarchy::usable_hierarchies(node)
            .into_iter()
            .inspect(|hierarchy| weight::set_total_weight(hierarchy, &own))
            .map(Arc::new)
            .collect();
        NodeCgroups {
            node: node.to_owned(),
            hierarchies,
        }
    }

    /// Returns the available controllers and their versions.
    pub fn available_controllers(
        &self,
    ) -> impl Iterator<Item = (CgroupController, CgroupVersion)> + '_ {
        self.hierarchies.iter().flat_map(|at| {
            at.controllers
                .iter()
                .map(|controller| (*controller, at.version))
        })
    }

    /// Returns the folder of the node's instances in the unified hierarchy, if they have groups there.
    pub(crate) fn unified_folder(&self) -> Option<&Path> {
        let is_unified = |at: &&Arc<CgroupHierarchy>| at.version == CgroupVersion::V2;
        let unified = self.hierarchies.iter().find(is_unified);
        unified.map(|at| at.folder.as_path())
    }

    /// Returns the limits that this machine cannot enforce.
    pub fn missing_controllers(&self) -> Vec<CgroupController> {
        let available: Vec<_> = self
            .available_controllers()
            .map(|(controller, _)| controller)
            .collect();
        [
            CgroupController::Memory,
            CgroupController::Cpu,
            CgroupController::Pids,
        ]
        .into_iter()
        .filter(|c| !available.contains(c))
        .collect()
    }

    /// Explains why instances with a memory limit can hold any amount of socket buffers; `None` if
    /// they cannot.
    pub fn socket_memory_problem(&self) -> Option<String> {
        let limits_memory =
            |at: &&Arc<CgroupHierarchy>| at.has_controller(CgroupController::Memory);
        let Some(at) = self.hierarchies.iter().find(limits_memory) else {
            return Some("no cgroup hierarchy limits memory".to_owned());
        };
        let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        socket_memory::find_problem(at.version, &at.folder, &command_line)
    }

    /// Returns the maximum of open files for an instance with this memory limit. It bounds the
    /// number of its sockets where no group counts their buffers; `None` where one does, or where
    /// no group limits memory.
    pub fn max_open_files(&self, memory_bytes: u64) -> Option<u64> {
        let limits_memory = !self
            .missing_controllers()
            .contains(&CgroupController::Memory);
        (limits_memory && self.socket_memory_problem().is_some())
            .then(|| socket_memory::max_open_files(memory_bytes))
    }

    /// Creates an instance's groups and sets its limits where controllers exist.
    ///
    /// # Errors
    /// Fails when the kernel rejects a folder or limit.
    pub fn create_instance(
        &self,
        instance: InstanceId,
        limits: &ResourceLimits,
    ) -> io::Result<InstanceCgroup> {
        let mut cgroup = InstanceCgroup {
            folders: Vec::new(),
            freezer: None,
        };
        for hierarchy in &self.hierarchies {
            let folder = hierarchy.folder.join(instance.to_string());
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(with_path(&folder, error));
                }
                // Recorded before the limits are written: a failure then removes the folder again.
                _ => cgroup.folders.push((hierarchy.clone(), folder.clone())),
            }
            limits.write_limits(hierarchy, &folder)?;
        }
        Ok(cgroup)
    }

    /// Removes the node's own folders at its end, but not `nearpath`, which other nodes share.
    ///
    /// [`NodeCgroups::detect`] creates them again; until then no instance can be created.
    pub fn remove_node_folders(&self) {
        for hierarchy in &self.hierarchies {
            let _ = fs::remove_dir(&hierarchy.folder); // fails while an instance is inside
        }
        if self.unified_folder().is_none() {
            socket_group::remove_zygote_group(&self.node);
        }
    }

    /// Kills and removes what an earlier run of this node left behind. Call it before the first
    /// instance starts.
    ///
    /// # Errors
    /// Fails when something cannot be killed or removed.
    pub fn sweep_leftovers(&self) -> io::Result<SweepReport> {
        let mut report = SweepReport::default();
        for hierarchy in &self.hierarchies {
            thread_cgroup::sweep_leftover(hierarchy);
            for entry in fs::read_dir(&hierarchy.folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    report.killed += removal::remove_group(&entry.path())?;
                    report.removed += 1;
                }
            }
        }
        Ok(report)
    }
}

impl InstanceCgroup {
    /// Returns files for [`crate::sandbox::SandboxSpec::cgroup_join_files`]. A process joins by
    /// writing `0` to each.
    pub fn join_files(&self) -> Vec<PathBuf> {
        let join = |(hierarchy, folder): &(Arc<CgroupHierarchy>, PathBuf)| {
            folder.join(hierarchy.version.join_file())
        };
        self.folders.iter().map(join).collect()
    }

    /// Reads the resources that the instance has used.
    ///
    /// # Errors
    /// Fails when a group is gone.
    pub fn read_usage(&self) -> io::Result<ResourceUsage> {
        let mut usage = ResourceUsage::default();
        for (hierarchy, folder) in &self.folders {
            usage.add_usage(hierarchy, folder)?;
        }
        Ok(usage)
    }

    /// Returns the instance's CPU time since its start; `None` without CPU accounting.
    pub fn cpu_time(&self) -> Option<Duration> {
        let counts = |(hierarchy, _): &&(Arc<CgroupHierarchy>, PathBuf)| {
            hierarchy.has_controller(CgroupController::CpuAccounting)
        };
        let (hierarchy, folder) = self.folders.iter().find(counts)?;
        limits::read_cpu_time(hierarchy.version, folder).ok()
    }

    /// Returns the processes that the kernel has killed for lack of memory; `None` where it does not
    /// count them.
    pub fn oom_kills(&self) -> Option<u64> {
        let (hierarchy, folder) = self.memory_group()?;
        limits::read_oom_kills(hierarchy.version, folder)
    }

    /// Returns the file behind [`Self::oom_kills`], for
    /// [`crate::sandbox::SandboxSpec::oom_kill_file`].
    pub fn oom_kill_file(&self) -> Option<PathBuf> {
        let (hierarchy, folder) = self.memory_group()?;
        Some(limits::oom_kill_file(hierarchy.version, folder))
    }

    fn memory_group(&self) -> Option<&(Arc<CgroupHierarchy>, PathBuf)> {
        let limits_memory = |(hierarchy, _): &&(Arc<CgroupHierarchy>, PathBuf)| {
            hierarchy.has_controller(CgroupController::Memory)
        };
        self.folders.iter().find(limits_memory)
    }

    /// Moves its threads from one processor to another; `None` stands for `all` of them.
    ///
    /// Returns the number of moved threads, 0 without a hierarchy. See [`crate::cores`].
    ///
    /// # Errors
    /// Fails when its group is gone.
    pub fn move_threads(
        &self,
        all: &[usize],
        from: Option<usize>,
        to: Option<usize>,
    ) -> io::Result<usize> {
        // Every hierarchy has all threads of the instance, so any will do.
        let Some((hierarchy, folder)) = self.folders.first() else {
            return Ok(0);
        };
        crate::cores::move_threads(&folder.join(hierarchy.version.thread_file()), all, from, to)
    }

    /// Kills all processes inside and removes the groups. Waits for the processes' end.
    ///
    /// # Errors
    /// Fails when a process does not end within five seconds.
    pub fn remove_now(mut self) -> io::Result<()> {
        self.remove_folders()
    }

    fn remove_folders(&mut self) -> io::Result<()> {
        let removed = std::mem::take(&mut self.folders)
            .iter()
            .try_for_each(|(_, folder)| removal::remove_group(folder).map(drop));
        self.remove_freezer();
        removed
    }
}

impl Drop for InstanceCgroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove_folders() {
            tracing::warn!(%error, "cgroup could not be removed; the node's next start removes it");
        }
    }
}

/// Prefixes an error with a path.
fn with_path(path: &std::path::Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_limited_where_memory_is_limited_and_sockets_are_not_counted() {
        let folder = tempfile::tempdir().unwrap();
        let with = |controllers| NodeCgroups {
            node: "test".to_owned(),
            hierarchies: vec![Arc::new(CgroupHierarchy {
                version: CgroupVersion::V1,
                controllers,
                folder: folder.path().to_owned(),
            })],
        };
        let memory = with(vec![CgroupController::Memory]);
        assert_eq!(memory.max_open_files(1 << 29), Some(512));
        let others = with(vec![CgroupController::Pids]);
        assert_eq!(others.max_open_files(1 << 29), None);
        fs::write(folder.path().join(socket_memory::V1_LIMIT_FILE), "").unwrap();
        assert_eq!(memory.max_open_files(1 << 29), None);
    }
}
