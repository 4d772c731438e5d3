//! Descriptors that the node left open for this process, by the numbers in environment variables.

use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_setfd};

/// Takes over the descriptor whose number is in `variable`, and closes it on exec, so that the
/// tenant cannot reach it. Call once per variable, before anything else is opened.
#[allow(unsafe_code)] // the one place where a number from outside becomes a descriptor
pub(crate) fn take_inherited_fd(variable: &str) -> Option<File> {
    // 0 to 2 are the standard streams, which no variable may claim.
    let number = std::env::var(variable)
        .ok()?
        .parse()
        .ok()
        .filter(|number: &i32| *number > 2)?;
    // SAFETY: the launcher opened this descriptor for this process alone and passed its number.
    // Nothing here has opened one yet, so no other owner exists; one that is not open at all is
    // given up again below, before it is used.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    match fcntl_setfd(&fd, FdFlags::CLOEXEC) {
        Ok(()) => Some(File::from(fd)),
        Err(_) => {
            let _ = fd.into_raw_fd();
            None
        }
    }
}
