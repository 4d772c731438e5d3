//! Windows that are opened for connections of one control group; see `bpf/sock_window.c`.

use std::fs::File;
use std::io;

use aya::Ebpf;
use aya::programs::{CgroupAttachMode, CgroupSockopt, ProgramError, SockOps};

use super::fence::set_home;
use super::object::{self, load, refused};

/// Puts both programs on a group; they are there until this is dropped.
pub(super) fn attach(group: &File) -> io::Result<Ebpf> {
    let mut loaded = load(object::sock_window()?).map_err(|error| refused(&error))?;
    set_home(&mut loaded, group)?;
    hang(&mut loaded, group).map_err(|error| refused(&error))?;
    Ok(loaded)
}

fn hang(loaded: &mut Ebpf, group: &File) -> Result<(), ProgramError> {
    let missing = |name: &str| ProgramError::InvalidName { name: name.to_owned() };
    let name = "open_window";
    let program: &mut CgroupSockopt = loaded.program_mut(name).ok_or_else(|| missing(name))?.try_into()?;
    program.load()?;
    program.attach(group, CgroupAttachMode::Single)?;
    let name = "first_segment";
    let program: &mut SockOps = loaded.program_mut(name).ok_or_else(|| missing(name))?.try_into()?;
    program.load()?;
    program.attach(group, CgroupAttachMode::Single).map(drop)
}
