//! Loading of the programs that set initial windows; see `bpf/sock_window.c`.

use std::fs::File;
use std::io;

use aya::Ebpf;
use aya::programs::{CgroupAttachMode, CgroupSockopt};

use super::object::{self, attach_sock_ops, bpf_error, load_object, set_owner_cgroup};

/// Attaches both programs to a cgroup. Dropping the result detaches them.
pub(super) fn attach_programs(group: &File) -> io::Result<Ebpf> {
    let mut loaded = load_object(object::sock_window()?)?;
    set_owner_cgroup(&mut loaded, group)?;
    let program: &mut CgroupSockopt = object::program(&mut loaded, "set_window")?;
    program.load().map_err(|error| bpf_error(&error))?;
    let attached = program.attach(group, CgroupAttachMode::Single);
    attached.map_err(|error| bpf_error(&error))?;
    attach_sock_ops(&mut loaded, "apply_window", [group])?;
    Ok(loaded)
}
