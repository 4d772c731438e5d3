//! What can be learnt of a thread of another process: its memory, its descriptors.
//!
//! A thread is known by its number, and numbers are given again: whoever asks has to know another way that the thread still lives when all is learnt
//! ([`crate::seccomp::listener::Listener::waits`]). What is learnt holds for that moment; the thread's companions may change it in the next.
//! Everything here needs the right to trace the thread (`ptrace(2)`, "Ptrace access mode checking"): the same user, or `CAP_SYS_PTRACE`.
#![expect(unsafe_code, reason = "process_vm_readv, pidfd_getfd and kcmp have no safe interface")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, open, openat, statat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A pidfd of one thread, not of its process (`PIDFD_THREAD`, Linux 6.9).
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
/// Kinds of comparison (`linux/kcmp.h`).
const KCMP_FILE: libc::c_int = 0;
const KCMP_EPOLL_TFD: libc::c_int = 7;

/// A thread of another process.
#[derive(Debug)]
pub struct Foreign {
    thread: u32,
    handle: OwnedFd,
    /// `/proc/PID`: to go there by name costs as much as what is asked there.
    folder: OwnedFd,
}

/// `struct kcmp_epoll_slot`: the registration of `descriptor` at `epoll`, the `skip`th of several.
#[repr(C)]
struct Slot {
    epoll: u32,
    descriptor: u32,
    skip: u32,
}

/// How another descriptor stands to the one asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// There is no such descriptor.
    Closed,
    /// None.
    None,
    /// Both are one open file: duplicates.
    Same,
    /// The other one is an epoll at which its number is registered.
    Watches,
}

/// Reads `bytes.len()` octets of a thread's memory at `address`.
///
/// # Errors
/// When they are not mapped, or the thread may not be read.
pub fn read(thread: u32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel writes at most `bytes.len()` octets to `bytes`; the remote address is never dereferenced here.
    let read = unsafe { libc::process_vm_readv(thread as i32, &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(read) {
        Ok(read) if read == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

impl Foreign {
    /// Takes hold of a thread. Before Linux 6.9, only a process's first one can be.
    ///
    /// # Errors
    /// When it has ended, or `EINVAL` for other threads on an older kernel.
    pub fn hold(thread: u32) -> io::Result<Self> {
        let pid = i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let handle = match pidfd_open(pid, THREAD) {
            Err(rustix::io::Errno::INVAL) => pidfd_open(pid, PidfdFlags::empty()),
            other => other,
        };
        let folder =
            open(format!("/proc/{thread}"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { thread, handle: handle?, folder })
    }

    /// The number by which it is known.
    pub fn number(&self) -> u32 {
        self.thread
    }

    /// A duplicate, in this process, of one of its descriptors.
    ///
    /// # Errors
    /// When it has no such descriptor, or may not be traced.
    pub fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: the call takes numbers alone; what it returns is a new descriptor of this process.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.handle.as_raw_fd(), number, 0) };
        match i32::try_from(fd) {
            // SAFETY: the kernel has just opened it for this process, and nobody else knows of it.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether exec closes one of its descriptors.
    ///
    /// # Errors
    /// When there is none, or no `/proc`.
    pub fn closes_at_exec(&self, number: i32) -> io::Result<bool> {
        let file = openat(&self.folder, format!("fdinfo/{number}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = [0; 64]; // position and flags come first
        let read = rustix::io::read(file, &mut text)?;
        let flags = std::str::from_utf8(&text[..read]).ok().and_then(flags).ok_or(io::ErrorKind::InvalidData)?;
        Ok(flags & libc::O_CLOEXEC as u32 != 0)
    }

    /// How many descriptors it has open (Linux 6.2).
    ///
    /// # Errors
    /// When it has ended; [`io::ErrorKind::Unsupported`] on an older kernel.
    pub fn open_descriptors(&self) -> io::Result<u64> {
        match u64::try_from(statat(&self.folder, c"fd", AtFlags::empty())?.st_size) {
            Ok(0) | Err(_) => Err(io::ErrorKind::Unsupported.into()),
            Ok(many) => Ok(many),
        }
    }

    /// The numbers of its open descriptors. Costs a microsecond each.
    ///
    /// # Errors
    /// When it has ended, or no `/proc`.
    pub fn descriptors(&self) -> io::Result<Vec<i32>> {
        let names = fs::read_dir(format!("/proc/{}/fd", self.thread))?;
        names
            .map(|name| {
                name?.file_name().to_str().and_then(|name| name.parse().ok()).ok_or(io::ErrorKind::InvalidData.into())
            })
            .collect()
    }

    /// How its descriptor `other` stands to its descriptor `number`; whether it watches it only if `watched`.
    ///
    /// # Errors
    /// When it may not be traced, or the kernel cannot compare.
    pub fn relation(&self, number: i32, other: i32, watched: bool) -> io::Result<Relation> {
        let mut slot = Slot { epoll: other as u32, descriptor: number as u32, skip: 0 };
        if watched {
            // SAFETY: the kernel reads one `struct kcmp_epoll_slot` from this process.
            match unsafe { self.compare(KCMP_EPOLL_TFD, number, (&raw mut slot) as libc::c_ulong) } {
                Ok(_) => return Ok(Relation::Watches), // it, or a file that had its number before: who knows
                Err(error) => match error.raw_os_error() {
                    Some(libc::EBADF) => return Ok(Relation::Closed),
                    Some(libc::EINVAL | libc::ENOENT) => {} // no epoll, or not registered there
                    _ => return Err(error),
                },
            }
        }
        // SAFETY: the second index is a number here.
        match unsafe { self.compare(KCMP_FILE, number, other as libc::c_ulong) } {
            Ok(0) => Ok(Relation::Same),
            Ok(_) => Ok(Relation::None),
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(Relation::Closed),
            Err(error) => Err(error),
        }
    }

    /// # Safety
    /// `second` must be what `kind` takes: a number, or the address of a struct of its own.
    unsafe fn compare(&self, kind: libc::c_int, first: i32, second: libc::c_ulong) -> io::Result<i64> {
        let pid = self.thread as libc::pid_t;
        // SAFETY: as the caller promises.
        match unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, kind, first as libc::c_ulong, second) } {
            -1 => Err(io::Error::last_os_error()),
            order => Ok(order),
        }
    }
}

/// The line `flags:` of a file of `/proc/PID/fdinfo`, a number in base 8.
fn flags(fdinfo: &str) -> Option<u32> {
    let number = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(number.trim(), 8).ok()
}

/// Whether this process may look at others that way, and the kernel knows how: tried on itself.
///
/// # Errors
/// What is missing.
pub fn possible() -> io::Result<()> {
    let what = |what: &'static str| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    let (file, thread) = (fs::File::open("/proc/self/status")?, rustix::thread::gettid().as_raw_nonzero().get() as u32);
    let mut octet = [0];
    read(thread, (&raw const thread) as u64, &mut octet).map_err(what("process_vm_readv"))?;
    let own = Foreign::hold(thread).map_err(what("a pidfd of a thread (Linux 6.9)"))?;
    own.descriptor(file.as_raw_fd()).map_err(what("pidfd_getfd"))?;
    own.open_descriptors().map_err(what("the size of /proc/PID/fd (Linux 6.2)"))?;
    own.relation(file.as_raw_fd(), own.handle.as_raw_fd(), true).map_err(what("kcmp"))?;
    own.closes_at_exec(file.as_raw_fd()).map_err(what("/proc/PID/fdinfo")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll;
    use std::net::UdpSocket;

    fn own() -> Foreign {
        Foreign::hold(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap()
    }

    #[test]
    fn it_is_possible_here() {
        possible().unwrap();
    }

    #[test]
    fn memory_is_read_where_there_is_some() {
        let secret = *b"sixteen octets..";
        let mut copy = [0; 16];
        read(own().thread, secret.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(copy, secret);
        assert!(read(own().thread, 16, &mut copy).is_err());
    }

    #[test]
    fn descriptors_are_told_apart() {
        let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let (twin, watcher) = (one.try_clone().unwrap(), epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        epoll::add(&watcher, &one, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        let relation = |to: i32| own().relation(one.as_raw_fd(), to, true).unwrap();
        assert_eq!(relation(other.as_raw_fd()), Relation::None);
        assert_eq!(relation(twin.as_raw_fd()), Relation::Same);
        assert_eq!(relation(watcher.as_raw_fd()), Relation::Watches);
        assert_eq!(relation(900_000), Relation::Closed);
        let unwatched = own().relation(other.as_raw_fd(), watcher.as_raw_fd(), true).unwrap();
        assert_eq!(unwatched, Relation::None);
    }

    #[test]
    fn a_descriptor_is_duplicated_with_what_is_known_of_it() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let twin = UdpSocket::from(own().descriptor(socket.as_raw_fd()).unwrap());
        assert_eq!(twin.local_addr().unwrap(), socket.local_addr().unwrap());
        assert!(own().closes_at_exec(socket.as_raw_fd()).unwrap());
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
        assert!(!own().closes_at_exec(socket.as_raw_fd()).unwrap());
        assert!(own().open_descriptors().unwrap() >= 4);
        assert!(own().descriptors().unwrap().contains(&socket.as_raw_fd()));
        assert!(own().descriptor(900_000).is_err());
    }
}
