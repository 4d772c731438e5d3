//! User namespaces, for a node that is not root on the machine (`man 7 user_namespaces`).
#![expect(
    unsafe_code,
    reason = "unshare can break assumptions about shared descriptors"
)]

use std::fs;
use std::io;

use rustix::thread::UnshareFlags;

/// Creates a user namespace in which the calling process is root, and a mount namespace. Call it
/// before a second thread starts.
///
/// Only the caller's own uid and gid exist inside, as 0. All instances therefore run as one user,
/// without capabilities.
///
/// # Errors
/// Fails when user namespaces are forbidden, or when there is a second thread.
pub fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    // SAFETY: no CLONE_FILES: descriptors stay shared as before; the kernel refuses when there are
    // other threads.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    // The kernel requires this before an unprivileged gid mapping
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    Ok(())
}
