//! Memory, CPU and process limits of an instance.
//!
//! Each controller is used wherever this machine has it: in the unified hierarchy (v2) or in one of its own (v1). An
//! instance's groups are the folders `nearpath/NODE/INSTANCE` there. Folders outlive a killed node, so the next one
//! sweeps its name before it starts anything. See the kernel's `admin-guide/cgroup-v2.rst` and `cgroup-v1/`.

mod hierarchy;
mod limits;
mod removal;
mod threads;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nearpath_types::InstanceId;

use hierarchy::Hierarchy;
pub(crate) use hierarchy::own_unified_group;
pub use hierarchy::{Controller, Version};
#[doc(hidden)] // for the fuzz targets
pub use hierarchy::{mount_points, own_v2_group};
#[doc(hidden)] // for the fuzz targets
pub use limits::field;
pub use limits::{Limits, Usage};
pub use removal::Swept;
pub use threads::ThreadGroup;

/// What this machine offers, for one node.
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchies: Vec<Arc<Hierarchy>>,
}

/// The groups of one instance. Dropping it kills what is left inside and removes them.
#[derive(Debug)]
pub struct Cgroup {
    folders: Vec<(Arc<Hierarchy>, PathBuf)>,
}

impl Cgroups {
    /// Looks for hierarchies in which this process may make groups, and makes the node's folder in each. What is not
    /// there shows in [`Cgroups::missing`].
    pub fn detect(node: &str) -> Cgroups {
        let hierarchies = hierarchy::usable(node).into_iter().map(Arc::new).collect();
        Cgroups { hierarchies }
    }

    /// The controllers that are there, and where.
    pub fn controllers(&self) -> impl Iterator<Item = (Controller, Version)> + '_ {
        self.hierarchies.iter().flat_map(|at| at.controllers.iter().map(|controller| (*controller, at.version)))
    }

    /// The limits that cannot be kept on this machine.
    pub fn missing(&self) -> Vec<Controller> {
        let there: Vec<_> = self.controllers().map(|(controller, _)| controller).collect();
        [Controller::Memory, Controller::Cpu, Controller::Pids].into_iter().filter(|c| !there.contains(c)).collect()
    }

    /// Makes an instance's groups and sets its limits, as far as there are controllers for them.
    ///
    /// # Errors
    /// When a folder or limit is refused.
    pub fn create(&self, instance: InstanceId, limits: &Limits) -> io::Result<Cgroup> {
        let mut cgroup = Cgroup { folders: Vec::new() };
        for hierarchy in &self.hierarchies {
            let folder = hierarchy.folder.join(instance.to_string());
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&folder, error)),
                _ => cgroup.folders.push((hierarchy.clone(), folder.clone())),
            }
            limits.set(hierarchy, &folder)?;
        }
        Ok(cgroup)
    }

    /// Removes the node's own folders (not `nearpath`, which other nodes share), at its end. No instance can be created
    /// afterwards: [`Cgroups::detect`] makes them again.
    pub fn leave(&self) {
        for hierarchy in &self.hierarchies {
            let _ = fs::remove_dir(&hierarchy.folder); // refused while an instance is in it
        }
    }

    /// Kills and removes what an earlier run of this node left behind. To be called before the first instance starts.
    ///
    /// # Errors
    /// When something cannot be killed or removed.
    pub fn sweep(&self) -> io::Result<Swept> {
        let mut swept = Swept::default();
        for hierarchy in &self.hierarchies {
            threads::sweep(hierarchy);
            for entry in fs::read_dir(&hierarchy.folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    swept.killed += removal::remove(&entry.path())?;
                    swept.removed += 1;
                }
            }
        }
        Ok(swept)
    }
}

impl Cgroup {
    /// Files for [`crate::sandbox::Spec::cgroup`]: a process joins by writing `0` to each.
    pub fn join_files(&self) -> Vec<PathBuf> {
        let join = |(hierarchy, folder): &(Arc<Hierarchy>, PathBuf)| folder.join(hierarchy.version.join_file());
        self.folders.iter().map(join).collect()
    }

    /// What the instance has used.
    ///
    /// # Errors
    /// When a group is gone.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut usage = Usage::default();
        for (hierarchy, folder) in &self.folders {
            usage.read(hierarchy, folder)?;
        }
        Ok(usage)
    }

    /// CPU time that the instance has used since its start; `None` where nobody counts.
    pub fn cpu(&self) -> Option<Duration> {
        let counts = |(hierarchy, _): &&(Arc<Hierarchy>, PathBuf)| hierarchy.has(Controller::CpuAccounting);
        let (hierarchy, folder) = self.folders.iter().find(counts)?;
        limits::cpu_used(hierarchy.version, folder).ok()
    }

    /// Moves its threads from one processor to another; `None` is every one of `all`. See [`crate::cores`]. Returns how many
    /// were moved: none without a hierarchy.
    ///
    /// # Errors
    /// When its group is gone.
    pub fn place(&self, all: &[usize], from: Option<usize>, to: Option<usize>) -> io::Result<usize> {
        let Some((hierarchy, folder)) = self.folders.first() else { return Ok(0) };
        crate::cores::place(&folder.join(hierarchy.version.thread_file()), all, from, to)
    }

    /// Kills what is left inside and removes the groups. Quick when nothing is; else it waits for the processes' end.
    ///
    /// # Errors
    /// When a process cannot be killed within five seconds.
    pub fn remove(mut self) -> io::Result<()> {
        self.remove_folders()
    }

    fn remove_folders(&mut self) -> io::Result<()> {
        std::mem::take(&mut self.folders).iter().try_for_each(|(_, folder)| removal::remove(folder).map(drop))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove_folders() {
            tracing::warn!(%error, "a cgroup is left behind; the node's next start removes it");
        }
    }
}

/// Puts a path in front of an error.
fn at(path: &std::path::Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
