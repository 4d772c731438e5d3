//! A descriptor that is readable while it rings (eventfd(2)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

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
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes()); // it rings already when the counter is full
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]); // it did not ring
    }

    /// Until it rings, or a signal comes, and not longer.
    pub(super) fn wait_readable(&self, time_limit: Duration) -> io::Result<()> {
        let timespec = Timespec::try_from(time_limit).ok(); // some hundred thousand million years are for ever
        match poll(
            &mut [PollFd::new(&self.0, PollFlags::IN)],
            timespec.as_ref(),
        ) {
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
