//! Movement of bytes between the gateway and functions' own servers; see `bpf/sock_loopback.c`.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aya::Ebpf;
use aya::maps::{MapData, MapError, PerCpuArray, SkStorage, SockHash};
use aya::programs::{CgroupAttachMode, ProgramError, SkMsg, SockOps};

use super::object::{self, load_error, load_object};
use crate::cgroup::{NodeCgroups, own_unified_group};

/// The gateway's side in [`ConnectionEnd`].
const GATEWAY: u32 = 0;

/// `struct connection_end` of `bpf/sock_loopback.c`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ConnectionEnd {
    connection: u64,
    side: u32,
    padding: u32,
}

#[expect(
    unsafe_code,
    reason = "aya's mark for what may be copied to and from maps"
)]
mod pod_impls {
    // SAFETY: a u64 and two u32 without padding; every value is valid.
    unsafe impl aya::Pod for super::ConnectionEnd {}
}

/// What was moved since the programs were attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoopbackCounters {
    /// Connections both of whose ends are known.
    pub connections: u64,
    /// Messages that were put into the other end's receive queue.
    pub moved: u64,
    /// Messages that went over TCP, because of a limit or without the other end.
    pub passed: u64,
}

/// Moves bytes on the marked connections inside instances. Dropping it ends that: open connections go
/// on over TCP.
pub struct LoopbackRedirect {
    ends: Mutex<SkStorage<MapData, ConnectionEnd>>,
    counters: PerCpuArray<MapData, u64>,
    next_connection: AtomicU64,
    /// Holds the programs and their attachments.
    _loaded: Ebpf,
}

impl LoopbackRedirect {
    /// Loads the programs, and attaches them to the groups of this process and of the node's instances.
    ///
    /// # Errors
    /// Fails if this build has no BPF programs, without `CAP_BPF` and `CAP_NET_ADMIN`, without a unified
    /// cgroup hierarchy, and before Linux 5.15.
    pub fn attach(cgroups: &NodeCgroups) -> io::Result<Self> {
        Self::attach_to(cgroups.unified_folder())
    }

    /// Attaches the programs for this process alone.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_to_own_group() -> io::Result<Self> {
        Self::attach_to(None)
    }

    fn attach_to(instances: Option<&Path>) -> io::Result<Self> {
        let own = own_unified_group().ok_or_else(|| {
            io::Error::other("no unified cgroup hierarchy (cgroup v2) is mounted")
        })?;
        // A program attached to a group runs for the groups below, too.
        let instances = instances.filter(|folder| !folder.starts_with(&own));
        let mut loaded =
            load_object(object::sock_loopback()?).map_err(|error| load_error(&error))?;
        let maps = LoopbackMaps::take_from(&mut loaded).map_err(|error| load_error(&error))?;
        attach_verdict(&mut loaded, &maps.sockets).map_err(|error| load_error(&error))?;
        let program = sock_ops(&mut loaded).map_err(|error| load_error(&error))?;
        for folder in std::iter::once(own.as_path()).chain(instances) {
            let group = File::open(folder)?;
            // Links allow no other mode, and still share the group with other programs.
            let attached = program.attach(group, CgroupAttachMode::Single);
            attached.map_err(|error| load_error(&error))?;
        }
        Ok(Self {
            ends: Mutex::new(maps.ends),
            counters: maps.counters,
            next_connection: AtomicU64::new(1),
            _loaded: loaded,
        })
    }

    /// Marks a socket of the gateway that is not connected yet. What it and its peer send is moved, if
    /// its peer is inside the same network namespace.
    ///
    /// # Errors
    /// Fails when the kernel has no memory for it.
    pub fn mark_socket(&self, socket: impl AsFd) -> io::Result<()> {
        let end = ConnectionEnd {
            connection: self.next_connection.fetch_add(1, Ordering::Relaxed),
            side: GATEWAY,
            padding: 0,
        };
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let marked = ends.insert(&socket.as_fd().as_raw_fd(), end, 0);
        marked.map_err(|error| load_error(&error))
    }

    /// Returns what was moved so far.
    pub fn read_counters(&self) -> LoopbackCounters {
        let sum = |index| {
            let values = self.counters.get(&index, 0);
            values.map_or(0, |values| values.iter().sum())
        };
        LoopbackCounters {
            connections: sum(0),
            moved: sum(1),
            passed: sum(2),
        }
    }
}

impl fmt::Debug for LoopbackRedirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackRedirect").finish_non_exhaustive()
    }
}

struct LoopbackMaps {
    ends: SkStorage<MapData, ConnectionEnd>,
    sockets: SockHash<MapData, ConnectionEnd>,
    counters: PerCpuArray<MapData, u64>,
}

impl LoopbackMaps {
    fn take_from(loaded: &mut Ebpf) -> Result<Self, MapError> {
        let mut take = |name: &str| {
            let map = loaded.take_map(name);
            map.ok_or_else(|| MapError::InvalidName { name: name.into() })
        };
        Ok(Self {
            ends: take("ends")?.try_into()?,
            sockets: take("sockets")?.try_into()?,
            counters: take("counters")?.try_into()?,
        })
    }
}

/// Attaches the program that decides over each message to the sockets of the map.
fn attach_verdict(
    loaded: &mut Ebpf,
    sockets: &SockHash<MapData, ConnectionEnd>,
) -> Result<(), ProgramError> {
    let program: &mut SkMsg = program_named(loaded, "move_bytes")?.try_into()?;
    program.load()?;
    program.attach(sockets.fd()).map(drop)
}

/// Returns the loaded program that adds the ends of connections.
fn sock_ops(loaded: &mut Ebpf) -> Result<&mut SockOps, ProgramError> {
    let program: &mut SockOps = program_named(loaded, "add_end")?.try_into()?;
    program.load()?;
    Ok(program)
}

fn program_named<'a>(
    loaded: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut aya::programs::Program, ProgramError> {
    loaded
        .program_mut(name)
        .ok_or_else(|| ProgramError::InvalidName {
            name: name.to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::super::btf::{assert_layout, layout};
    use super::*;

    #[test]
    fn map_entries_are_laid_out_as_in_c() {
        assert_layout(
            object::sock_loopback(),
            "connection_end",
            layout!(ConnectionEnd: connection, side, padding),
        );
    }
}
