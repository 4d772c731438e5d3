//! Compiled BPF programs, loading them, and errors of the loader.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{LazyLock, Mutex, PoisonError};

use aya::maps::{Array, Map, MapData, MapError, PerCpuArray};
use aya::programs::{CgroupAttachMode, Program, ProgramError, SockOps};
use aya::{Ebpf, EbpfLoader};

/// Loads an object without the kernel's type information. No program needs it, and aya would parse
/// all of it each time.
///
/// # Errors
/// If the kernel refuses it.
pub(super) fn load_object(object: &[u8]) -> io::Result<Ebpf> {
    static LOADER: LazyLock<Mutex<EbpfLoader<'static>>> = LazyLock::new(|| {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        Mutex::new(loader)
    });
    let mut loader = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
    loader.load(object).map_err(|error| bpf_error(&error))
}

/// Converts an error of aya with its causes. An operating system error keeps its kind, so callers
/// can detect `EPERM`.
pub(super) fn bpf_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut text = error.to_string();
    let mut kind = io::ErrorKind::Other;
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        kind = inner
            .downcast_ref::<io::Error>()
            .map_or(kind, io::Error::kind);
        cause = inner.source();
    }
    if kind == io::ErrorKind::PermissionDenied {
        text.push_str("; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN");
    }
    // The kind of the innermost I/O error: aya's own errors have none.
    io::Error::new(kind, text)
}

/// Takes a map out of a loaded object.
///
/// # Errors
/// If the object has no such map, or one of another type.
pub(super) fn take_map<M: TryFrom<Map, Error = MapError>>(
    loaded: &mut Ebpf,
    name: &str,
) -> io::Result<M> {
    let map = loaded
        .take_map(name)
        .ok_or_else(|| io::Error::other(format!("the programs have no map `{name}`")))?;
    M::try_from(map).map_err(|error| bpf_error(&error))
}

/// Returns a program of an object.
///
/// # Errors
/// If the object has no such program, or one of another type.
pub(super) fn program<'a, P: TryFrom<&'a mut Program, Error = ProgramError>>(
    loaded: &'a mut Ebpf,
    name: &str,
) -> io::Result<P> {
    let program = loaded
        .program_mut(name)
        .ok_or_else(|| io::Error::other(format!("the object has no program `{name}`")))?;
    P::try_from(program).map_err(|error| bpf_error(&error))
}

/// Loads a program for the events of TCP sockets, and attaches it to cgroups and those below them.
///
/// # Errors
/// If the kernel refuses it.
pub(super) fn attach_sock_ops<'a>(
    loaded: &mut Ebpf,
    name: &str,
    groups: impl IntoIterator<Item = &'a File>,
) -> io::Result<()> {
    let program: &mut SockOps = self::program(loaded, name)?;
    program.load().map_err(|error| bpf_error(&error))?;
    for group in groups {
        // Links allow no other mode, and still share the group with other programs.
        let attached = program.attach(group, CgroupAttachMode::Single);
        attached.map_err(|error| bpf_error(&error))?;
    }
    Ok(())
}

/// Returns the sum of a counter over all processors (`bpf/lib/counters.h`).
pub(super) fn sum_counter(counters: &PerCpuArray<MapData, u64>, index: u32) -> u64 {
    let values = counters.get(&index, 0);
    values.map_or(0, |values| values.iter().sum())
}

/// Stores the id of the cgroup that programs serve (`bpf/lib/owner_cgroup.h`).
pub(super) fn set_owner_cgroup(loaded: &mut Ebpf, group: &File) -> io::Result<()> {
    let map = loaded
        .map_mut("owner_cgroup")
        .ok_or_else(|| io::Error::other("bpf/lib/owner_cgroup.h has no map `owner_cgroup`"))?;
    // The inode number of a cgroup's folder is its id for `bpf_get_current_cgroup_id`.
    let cgroup_id = group.metadata()?.ino();
    let set = Array::try_from(map).and_then(|mut map: Array<_, u64>| map.set(0, cgroup_id, 0));
    set.map_err(|error| bpf_error(&error))
}

/// `bpf/direct_peers.c`.
#[cfg(nearpath_bpf)]
pub(super) fn direct_peers() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/direct_peers.o"
    )))
}

/// `bpf/sk_msg.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sk_msg() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/sk_msg.o"
    )))
}

/// `bpf/sock_guard.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sock_guard() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/sock_guard.o"
    )))
}

/// `bpf/sock_loopback.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sock_loopback() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/sock_loopback.o"
    )))
}

/// `bpf/sock_peer.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sock_peer() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/sock_peer.o"
    )))
}

/// `bpf/sock_window.c`.
#[cfg(nearpath_bpf)]
pub(super) fn sock_window() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/sock_window.o"
    )))
}

/// `bpf/tc_forward.c`.
#[cfg(nearpath_bpf)]
pub(super) fn tc_forward() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/tc_forward.o"
    )))
}

/// `bpf/vip.c`.
#[cfg(nearpath_bpf)]
pub(super) fn vip() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(
        env!("OUT_DIR"),
        "/vip.o"
    )))
}

#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as direct_peers;
#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as sk_msg;
#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as sock_guard;
#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as sock_loopback;
#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as sock_peer;
#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as sock_window;
#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as tc_forward;
#[cfg(not(nearpath_bpf))]
pub(super) use programs_missing as vip;

#[cfg(not(nearpath_bpf))]
pub(super) fn programs_missing() -> io::Result<&'static [u8]> {
    let why = "this nearpath was built without BPF programs: install clang and rebuild";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}
