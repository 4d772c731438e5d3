//! Faults of a range of memory, one after another, each held until something else has been done:
//! `userfaultfd(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::mm::{Advice, UserfaultfdFlags, madvise, userfaultfd};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
const FAULT_TIMEOUT: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

// linux/userfaultfd.h
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFDIO_CONTINUE: libc::c_ulong = 0xc020_aa07;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;

/// Which faults are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultMode {
    /// Private memory that was never touched.
    Missing,
    /// A shared mapping whose pages are there, but were never looked at through it.
    Minor,
}

/// A range that is watched. Dropping it lets all faults go.
pub(crate) struct FaultWatch {
    stop: OwnedFd,
    thread: JoinHandle<Vec<usize>>,
}

impl FaultWatch {
    /// Watches `pages` pages from `start`, a mapping's own memory. `act` is called with the number
    /// of each page that is touched, while whoever touched it stands still.
    pub(crate) fn watch_range(
        start: usize,
        pages: usize,
        mode: FaultMode,
        mut act: impl FnMut(usize) + Send + 'static,
    ) -> io::Result<Self> {
        let held = register_range(start, pages * PAGE_BYTES, mode)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while let Some(address) = next_fault(&held, &stopped) {
                let page = (address - start) / PAGE_BYTES;
                act(page);
                seen.push(page);
                resolve_fault(&held, start + page * PAGE_BYTES, mode).unwrap();
            }
            seen
        });
        Ok(Self { stop, thread })
    }

    /// The pages in the order in which they were touched.
    pub(crate) fn finish_pages(self) -> Vec<usize> {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.join().unwrap()
    }
}

fn register_range(start: usize, bytes: usize, mode: FaultMode) -> io::Result<OwnedFd> {
    // SAFETY: what faults there waits for the thread of the watch, which resolves every fault or
    // closes the descriptor.
    let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK)? };
    let (features, modes) = match mode {
        FaultMode::Missing => (0, 1),
        FaultMode::Minor => (FEATURE_MINOR_SHMEM, 4),
    };
    if mode == FaultMode::Minor {
        // SAFETY: a shared mapping loses nothing but its page table's entries.
        unsafe { madvise(start as *mut _, bytes, Advice::LinuxDontNeed)? };
    }
    userfault_ioctl(&fd, UFFDIO_API, &mut [0xaa, features, 0])?;
    userfault_ioctl(
        &fd,
        UFFDIO_REGISTER,
        &mut [start as u64, bytes as u64, modes, 0],
    )?;
    Ok(fd)
}

fn resolve_fault(fd: &OwnedFd, page: usize, mode: FaultMode) -> io::Result<()> {
    let request = if mode == FaultMode::Missing {
        UFFDIO_ZEROPAGE
    } else {
        UFFDIO_CONTINUE
    };
    userfault_ioctl(fd, request, &mut [page as u64, PAGE_BYTES as u64, 0, 0])
}

fn userfault_ioctl(fd: &OwnedFd, request: libc::c_ulong, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: each request reads and writes the three or four words that its number says, which
    // `words` has.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the address of the next fault; none when the watch is over.
fn next_fault(held: &OwnedFd, stop: &OwnedFd) -> Option<usize> {
    let mut fds = [held, stop].map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
    assert!(
        poll(&mut fds, Some(&FAULT_TIMEOUT)).unwrap() > 0,
        "nobody touched the memory in time"
    );
    if fds[0].revents().is_empty() {
        return None;
    }
    let mut message = [0; 32];
    assert_eq!(rustix::io::read(held, &mut message).unwrap(), 32);
    assert_eq!(message[0], 0x12, "a page fault");
    Some(u64::from_le_bytes(message[16..24].try_into().unwrap()) as usize)
}
