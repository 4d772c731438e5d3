//! Inspection of a thread of another process: its memory and its descriptors.
//!
//! A thread is known by its id, and ids are reused. Callers must confirm afterwards that the thread
//! still exists ([`crate::seccomp::listener::SeccompListener::is_pending`]). Results hold for one
//! moment only, since other threads of the process may change them. All calls need permission to
//! trace the thread (`ptrace(2)`, "Ptrace access mode checking"): the same user, or
//! `CAP_SYS_PTRACE`.
#![expect(
    unsafe_code,
    reason = "process_vm_readv, pidfd_getfd and kcmp have no safe interface"
)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, open, openat, statat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Opens the pidfd of a thread instead of a process (`PIDFD_THREAD`, Linux 6.9).
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
/// Comparison types of `linux/kcmp.h`.
const KCMP_FILE: libc::c_int = 0;
const KCMP_EPOLL_TFD: libc::c_int = 7;

/// A thread of another process.
#[derive(Debug)]
pub struct RemoteThread {
    tid: u32,
    pidfd: OwnedFd,
    /// `/proc/PID`, kept open: resolving the path costs as much as reading a file below it.
    proc_dir: OwnedFd,
}

/// `struct kcmp_epoll_slot`: the registration of `target_fd` with `epoll`, after `skip` others.
#[repr(C)]
struct EpollSlot {
    epoll: u32,
    target_fd: u32,
    skip: u32,
}

/// Relation of one descriptor to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FdRelation {
    /// The other descriptor does not exist.
    Closed,
    /// The descriptors are unrelated.
    Unrelated,
    /// Both refer to one open file: duplicates.
    Duplicate,
    /// The other descriptor is an epoll instance with this number registered.
    EpollOf,
}

/// Reads `bytes.len()` octets of a thread's memory at `address`.
///
/// # Errors
/// Fails when they are not mapped, or the thread may not be read.
pub fn read_memory(thread: u32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel writes at most `bytes.len()` octets to `bytes`; the remote address is
    // never dereferenced here.
    let read = unsafe {
        libc::process_vm_readv(thread as i32, &raw const local, 1, &raw const remote, 1, 0)
    };
    match usize::try_from(read) {
        Ok(read) if read == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

impl RemoteThread {
    /// Opens a thread. Before Linux 6.9, only the first thread of a process can be opened.
    ///
    /// # Errors
    /// Fails when it has ended, or with `EINVAL` for other threads on an older kernel.
    pub fn open(thread: u32) -> io::Result<Self> {
        let pid = i32::try_from(thread)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let handle = match pidfd_open(pid, PIDFD_THREAD) {
            // Kernels before 6.9 do not know PIDFD_THREAD.
            Err(rustix::io::Errno::INVAL) => pidfd_open(pid, PidfdFlags::empty()),
            other => other,
        };
        let folder = open(
            format!("/proc/{thread}"),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            tid: thread,
            pidfd: handle?,
            proc_dir: folder,
        })
    }

    /// Returns the thread id.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Duplicates one of its descriptors into this process.
    ///
    /// # Errors
    /// Fails when the descriptor does not exist, or the thread may not be traced.
    pub fn duplicate_fd(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: the call takes numbers alone; what it returns is a new descriptor of this
        // process.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), number, 0) };
        match i32::try_from(fd) {
            // SAFETY: the kernel has just opened it for this process, and no other code knows of
            // it.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns whether exec closes one of its descriptors.
    ///
    /// # Errors
    /// Fails without such a descriptor, or without `/proc`.
    pub fn is_cloexec(&self, number: i32) -> io::Result<bool> {
        let file = openat(
            &self.proc_dir,
            format!("fdinfo/{number}"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut text = [0; 64]; // position and flags are the first lines
        let read = rustix::io::read(file, &mut text)?;
        let flags = std::str::from_utf8(&text[..read])
            .ok()
            .and_then(parse_flags)
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(flags & libc::O_CLOEXEC as u32 != 0)
    }

    /// Returns the number of its open descriptors (Linux 6.2).
    ///
    /// # Errors
    /// Fails when it has ended; [`io::ErrorKind::Unsupported`] on an older kernel.
    pub fn open_fd_count(&self) -> io::Result<u64> {
        match u64::try_from(statat(&self.proc_dir, c"fd", AtFlags::empty())?.st_size) {
            // Kernels before 6.2 report a size of 0.
            Ok(0) | Err(_) => Err(io::ErrorKind::Unsupported.into()),
            Ok(count) => Ok(count),
        }
    }

    /// Lists its open descriptors. Costs a microsecond each.
    ///
    /// # Errors
    /// Fails when it has ended, or without `/proc`.
    pub fn list_fds(&self) -> io::Result<Vec<i32>> {
        let names = fs::read_dir(format!("/proc/{}/fd", self.tid))?;
        names
            .map(|name| {
                name?
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse().ok())
                    .ok_or(io::ErrorKind::InvalidData.into())
            })
            .collect()
    }

    /// Returns how its descriptor `other` relates to its descriptor `number`. Looks for an epoll
    /// registration only if `watched`.
    ///
    /// # Errors
    /// Fails when the thread may not be traced, or the kernel cannot compare.
    pub fn fd_relation(&self, number: i32, other: i32, watched: bool) -> io::Result<FdRelation> {
        let mut slot = EpollSlot {
            epoll: other as u32,
            target_fd: number as u32,
            skip: 0,
        };
        if watched {
            // SAFETY: the kernel reads one `struct kcmp_epoll_slot` from this process.
            match unsafe { self.kcmp(KCMP_EPOLL_TFD, number, (&raw mut slot) as libc::c_ulong) } {
                // this file, or an earlier one with that number: kcmp cannot distinguish them
                Ok(_) => return Ok(FdRelation::EpollOf),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EBADF) => return Ok(FdRelation::Closed),
                    // Not an epoll instance, or not registered there
                    Some(libc::EINVAL | libc::ENOENT) => {}
                    _ => return Err(error),
                },
            }
        }
        // SAFETY: the second index is a number here.
        match unsafe { self.kcmp(KCMP_FILE, number, other as libc::c_ulong) } {
            Ok(0) => Ok(FdRelation::Duplicate),
            Ok(_) => Ok(FdRelation::Unrelated),
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(FdRelation::Closed),
            Err(error) => Err(error),
        }
    }

    /// # Safety
    /// `second` must match `kind`: a number, or the address of the struct that it takes.
    unsafe fn kcmp(&self, kind: libc::c_int, first: i32, second: libc::c_ulong) -> io::Result<i64> {
        let pid = self.tid as libc::pid_t;
        // SAFETY: as the caller promises.
        match unsafe {
            libc::syscall(
                libc::SYS_kcmp,
                pid,
                pid,
                kind,
                first as libc::c_ulong,
                second,
            )
        } {
            -1 => Err(io::Error::last_os_error()),
            order => Ok(order),
        }
    }
}

/// Parses the line `flags:` of a file in `/proc/PID/fdinfo`, an octal number.
fn parse_flags(fdinfo: &str) -> Option<u32> {
    let number = fdinfo
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(number.trim(), 8).ok()
}

/// Checks the permissions and kernel features for inspection, on this thread itself.
///
/// # Errors
/// Names the missing feature.
pub fn check_inspection_support() -> io::Result<()> {
    let what = |what: &'static str| {
        move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
    };
    let (file, thread) = (
        fs::File::open("/proc/self/status")?,
        rustix::thread::gettid().as_raw_nonzero().get() as u32,
    );
    let mut octet = [0];
    read_memory(thread, (&raw const thread) as u64, &mut octet)
        .map_err(what("process_vm_readv"))?;
    let own = RemoteThread::open(thread).map_err(what("a pidfd of a thread (Linux 6.9)"))?;
    own.duplicate_fd(file.as_raw_fd())
        .map_err(what("pidfd_getfd"))?;
    own.open_fd_count()
        .map_err(what("the size of /proc/PID/fd (Linux 6.2)"))?;
    own.fd_relation(file.as_raw_fd(), own.pidfd.as_raw_fd(), true)
        .map_err(what("kcmp"))?;
    own.is_cloexec(file.as_raw_fd())
        .map_err(what("/proc/PID/fdinfo"))
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll;
    use std::net::UdpSocket;

    fn own_thread() -> RemoteThread {
        RemoteThread::open(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap()
    }

    #[test]
    fn this_machine_supports_inspection() {
        check_inspection_support().unwrap();
    }

    #[test]
    fn memory_is_read_only_where_it_is_mapped() {
        let secret = *b"sixteen octets..";
        let mut copy = [0; 16];
        read_memory(own_thread().tid, secret.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(copy, secret);
        assert!(read_memory(own_thread().tid, 16, &mut copy).is_err());
    }

    #[test]
    fn relations_between_descriptors_are_distinguished() {
        let (one, other) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let (twin, watcher) = (
            one.try_clone().unwrap(),
            epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
        );
        epoll::add(
            &watcher,
            &one,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )
        .unwrap();
        let relation = |to: i32| own_thread().fd_relation(one.as_raw_fd(), to, true).unwrap();
        assert_eq!(relation(other.as_raw_fd()), FdRelation::Unrelated);
        assert_eq!(relation(twin.as_raw_fd()), FdRelation::Duplicate);
        assert_eq!(relation(watcher.as_raw_fd()), FdRelation::EpollOf);
        assert_eq!(relation(900_000), FdRelation::Closed);
        let unwatched = own_thread()
            .fd_relation(other.as_raw_fd(), watcher.as_raw_fd(), true)
            .unwrap();
        assert_eq!(unwatched, FdRelation::Unrelated);
    }

    #[test]
    fn a_duplicate_and_its_flags_match_the_original() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let twin = UdpSocket::from(own_thread().duplicate_fd(socket.as_raw_fd()).unwrap());
        assert_eq!(twin.local_addr().unwrap(), socket.local_addr().unwrap());
        assert!(own_thread().is_cloexec(socket.as_raw_fd()).unwrap());
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
        assert!(!own_thread().is_cloexec(socket.as_raw_fd()).unwrap());
        assert!(own_thread().open_fd_count().unwrap() >= 4);
        assert!(
            own_thread()
                .list_fds()
                .unwrap()
                .contains(&socket.as_raw_fd())
        );
        assert!(own_thread().duplicate_fd(900_000).is_err());
    }
}
