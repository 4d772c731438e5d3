//! Loading of the programs that set initial windows; see `bpf/sock_window.c`.

use std::fs::File;
use std::io;

use aya::Ebpf;
use aya::programs::{CgroupAttachMode, CgroupSockopt, ProgramError, SockOps};

use super::object::{self, load_error, load_object, set_owner_cgroup};

/// Attaches both programs to a cgroup. Dropping the result detaches them.
pub(super) fn attach_programs(group: &File) -> io::Result<Ebpf> {
    let mut loaded = load_object(object::sock_window()?).map_err(|error| load_error(&error))?;
    set_owner_cgroup(&mut loaded, group)?;
    attach_each(&mut loaded, group).map_err(|error| load_error(&error))?;
    Ok(loaded)
}

fn attach_each(loaded: &mut Ebpf, group: &File) -> Result<(), ProgramError> {
    let missing = |name: &str| ProgramError::InvalidName {
        name: name.to_owned(),
    };
    let name = "set_window";
    let program: &mut CgroupSockopt = loaded
        .program_mut(name)
        .ok_or_else(|| missing(name))?
        .try_into()?;
    program.load()?;
    program.attach(group, CgroupAttachMode::Single)?;
    let name = "apply_window";
    let program: &mut SockOps = loaded
        .program_mut(name)
        .ok_or_else(|| missing(name))?
        .try_into()?;
    program.load()?;
    program.attach(group, CgroupAttachMode::Single).map(drop)
}
