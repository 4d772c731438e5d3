//! Forking into namespaces, which `std::process::Command` cannot do.
#![expect(unsafe_code, reason = "clone has no safe interface")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Result of a fork.
pub(super) enum ForkResult {
    /// The calling process is the child.
    Child,
    /// The calling process forked; the child's parent is the caller's own parent.
    Sibling {
        /// Process id in the forker's PID namespace.
        pid: Pid,
        /// Handle that becomes readable at the child's end.
        pidfd: OwnedFd,
    },
}

/// Forks a child of the caller's parent (`CLONE_PARENT`).
///
/// The parent waits for it, and `PR_SET_PDEATHSIG` refers to the parent's thread. With
/// `pid_namespace` the child is the first process of a PID namespace. The caller must have one
/// thread only.
pub(super) fn fork_sibling(pid_namespace: bool) -> io::Result<ForkResult> {
    let namespaces = if pid_namespace { libc::CLONE_NEWPID } else { 0 };
    let (pid, pidfd) = clone_process(libc::CLONE_PARENT | namespaces)?;
    match pidfd {
        None => Ok(ForkResult::Child),
        Some(pidfd) => Ok(ForkResult::Sibling { pid, pidfd }),
    }
}

/// Checks that a child may be created in these namespaces (`CLONE_NEW*`), and may change mounts
/// where `CLONE_NEWNS` is one.
pub(crate) fn try_namespaces(namespaces: libc::c_int) -> io::Result<()> {
    use std::os::fd::AsFd;
    let (_, pidfd) = clone_process(libc::SIGCHLD | namespaces)?;
    let Some(pidfd) = pidfd else {
        try_mount(namespaces)
    };
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?
        .and_then(|status| status.exit_status());
    match status {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other(
            "the child that tried namespaces was killed",
        )),
    }
}

/// Calls `clone(2)` like fork; the child gets no descriptor. The flags share neither memory nor
/// descriptors.
fn clone_process(flags: libc::c_int) -> io::Result<(Pid, Option<OwnedFd>)> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::c_long::from(flags | libc::CLONE_PIDFD);
    // SAFETY: without CLONE_VM and with no stack given, the child continues on a copy of this one.
    // The order of the last two arguments differs between architectures; both are zero. pidfd is
    // valid for the kernel's write.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0) };
    match pid {
        0 => Ok((rustix::process::getpid(), None)),
        // SAFETY: with CLONE_PIDFD a successful clone has stored a new descriptor that no other
        // code owns.
        1.. => Ok((
            Pid::from_raw(pid as i32).expect("not zero"),
            Some(unsafe { OwnedFd::from_raw_fd(pidfd) }),
        )),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Tries to change a mount: some systems allow user namespaces but nothing inside them.
///
/// This copy of the process may hold other threads' locks, so only system calls follow.
fn try_mount(namespaces: libc::c_int) -> ! {
    let change = libc::MS_REC | libc::MS_PRIVATE;
    let none = std::ptr::null();
    // SAFETY: all pointers are null or NUL-terminated; the mounts are those of the child's own
    // namespace; _exit runs no handler of the parent's.
    unsafe {
        let refused = namespaces & libc::CLONE_NEWNS != 0
            && libc::mount(none, c"/".as_ptr(), none, change, none.cast()) != 0;
        libc::_exit(if refused {
            *libc::__errno_location()
        } else {
            0
        })
    }
}
