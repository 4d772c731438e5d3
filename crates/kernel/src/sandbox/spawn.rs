//! Forking into namespaces, which `std::process::Command` cannot do.
#![expect(unsafe_code, reason = "clone has no safe interface")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// What a fork returns.
pub(super) enum Forked {
    /// To the child: itself.
    Child,
    /// To the one that forked: the child, whose parent is the forker's own parent.
    Sibling {
        /// As the forker's PID namespace counts.
        pid: Pid,
        /// Shows the child's end.
        pidfd: OwnedFd,
    },
}

/// Forks a child that belongs to the caller's parent (`CLONE_PARENT`): the parent waits for it, and its thread's end is the one
/// that `PR_SET_PDEATHSIG` speaks of. With `own_pids` the child is the first process of a PID namespace. The caller must
/// have one thread only.
pub(super) fn fork_sibling(own_pids: bool) -> io::Result<Forked> {
    let namespaces = if own_pids { libc::CLONE_NEWPID } else { 0 };
    let (pid, pidfd) = clone(libc::CLONE_PARENT | namespaces)?;
    match pidfd {
        None => Ok(Forked::Child),
        Some(pidfd) => Ok(Forked::Sibling { pid, pidfd }),
    }
}

/// Whether a child may be made in these namespaces (`CLONE_NEW*`) and change mounts there, where `CLONE_NEWNS` is one.
pub(crate) fn allowed(namespaces: libc::c_int) -> io::Result<()> {
    use std::os::fd::AsFd;
    let (_, pidfd) = clone(libc::SIGCHLD | namespaces)?;
    let Some(pidfd) = pidfd else { try_mount(namespaces) };
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?.and_then(|status| status.exit_status());
    match status {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("the child that tried namespaces was killed")),
    }
}

/// `clone(2)` as fork; no descriptor for the child. The flags share neither memory nor descriptors.
fn clone(flags: libc::c_int) -> io::Result<(Pid, Option<OwnedFd>)> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::c_long::from(flags | libc::CLONE_PIDFD);
    // SAFETY: without CLONE_VM and with no stack given, the child continues on a copy of this one. The order of the last
    // two arguments differs between architectures; both are zero. pidfd is valid for the kernel's write.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0) };
    match pid {
        0 => Ok((rustix::process::getpid(), None)),
        // SAFETY: with CLONE_PIDFD a successful clone has stored a new descriptor that nobody else owns.
        1.. => Ok((Pid::from_raw(pid as i32).expect("not zero"), Some(unsafe { OwnedFd::from_raw_fd(pidfd) }))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Some systems let everybody make a user namespace, but allow nothing in it: so a mount change is tried. Other threads'
/// locks may be held in this copy of the process: only system calls from here on.
fn try_mount(namespaces: libc::c_int) -> ! {
    let change = libc::MS_REC | libc::MS_PRIVATE;
    let none = std::ptr::null();
    // SAFETY: all pointers are null or NUL-terminated; the mounts are those of the child's own namespace; _exit runs no
    // handler of the parent's.
    unsafe {
        let refused =
            namespaces & libc::CLONE_NEWNS != 0 && libc::mount(none, c"/".as_ptr(), none, change, none.cast()) != 0;
        libc::_exit(if refused { *libc::__errno_location() } else { 0 })
    }
}
