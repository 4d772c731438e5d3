//! A descriptor that is readable while messages wait (eventfd(2)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Wakes threads that poll, also those of another event loop such as Python's.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub(super) fn signal(&self) {
        // Fails only when the counter is full: readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]); // fails when it was not readable
    }

    /// Waits until it is readable, a signal arrives or the time is over.
    pub(super) fn wait_readable(&self, time_limit: Duration) -> io::Result<()> {
        // A duration beyond the range of timespec means no limit.
        let timespec = Timespec::try_from(time_limit).ok();
        match poll(
            &mut [PollFd::new(&self.0, PollFlags::IN)],
            timespec.as_ref(),
        ) {
            // The caller checks its state and its deadline again, so an early return is harmless; a
            // signal handler may want to run.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
