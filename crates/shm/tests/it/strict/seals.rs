//! Operations that the kernel refuses a peer that has the descriptor of an endpoint's pool.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use nearpath_shm::SlotPool;
use nearpath_shm::region::{self, MapAccess, PageKind, Region};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate,
    memfd_create, open,
};
use rustix::io::{Errno, dup, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::forging_endpoint::CLASS_SPECS;

const ROLE_VARIABLE: &str = "NEARPATH_SHM_TEST_STRICT";

fn strict_pool() -> (SlotPool, OwnedFd) {
    let pool = SlotPool::create_strict(&CLASS_SPECS).unwrap();
    let fd = pool.as_fd().try_clone_to_owned().unwrap();
    (pool, fd)
}

fn map_writable(fd: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: a new mapping at an address that the kernel chooses; it is taken down at once.
    unsafe {
        let place = mmap(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd,
            0,
        )?;
        munmap(place, 4096)
    }
}

#[test]
fn a_peer_can_neither_write_nor_map_writable() {
    let (_pool, fd) = strict_pool();
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let again = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for fd in [&fd, &again] {
        assert_eq!(pwrite(fd, b"no", 0), Err(Errno::PERM));
        assert_eq!(map_writable(fd), Err(Errno::PERM));
    }
    let region = Region::create("np-test", 4096, PageKind::Small).unwrap();
    let shared = region.as_fd().try_clone_to_owned().unwrap();
    assert_eq!(
        map_writable(&shared),
        Ok(()),
        "what is not sealed can be mapped so"
    );
}

#[test]
fn a_peer_cannot_remove_pages() {
    let (_pool, fd) = strict_pool();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&fd, punch, 0, 4096), Err(Errno::PERM));
    assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(&fd, 1 << 30), Err(Errno::PERM));
    assert_eq!(
        fcntl_add_seals(&fd, SealFlags::WRITE),
        Err(Errno::PERM),
        "the set of seals is sealed"
    );
    let truncating = open(
        format!("/proc/self/fd/{}", fd.as_raw_fd()),
        OFlags::RDWR | OFlags::TRUNC | OFlags::CLOEXEC,
        Mode::empty(),
    );
    assert_eq!(truncating.unwrap_err(), Errno::PERM);
    assert_eq!(
        fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 4096),
        Ok(()),
        "it can pay for pages of zeros, no more"
    );
}

/// A mapping for reading stays one: neither mprotect nor `/proc/self/mem` gets round it.
#[test]
fn a_reader_cannot_become_a_writer() {
    let (pool, fd) = strict_pool();
    let reader = Region::open_read_only(fd, pool.region_bytes()).unwrap();
    let place = reader.byte_ptr(0, 8).unwrap();
    // SAFETY: the range is the mapping's first page, which is there; the call is refused.
    let raised = unsafe {
        rustix::mm::mprotect(
            place.as_ptr().cast(),
            4096,
            rustix::mm::MprotectFlags::WRITE,
        )
    };
    assert_eq!(raised, Err(Errno::ACCESS));
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    assert!(pwrite(&memory, b"NO", place.as_ptr() as u64).is_err());
    let mut magic = [0; 8];
    assert!(reader.read_bytes(0, &mut magic) && &magic == b"NPPOOL01");
}

#[test]
fn each_seal_is_needed() {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE;
    let sealed = |seals: SealFlags, flags: MemfdFlags| {
        let fd = memfd_create(
            "np-test",
            MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC | flags,
        )
        .unwrap();
        ftruncate(&fd, 2 << 20).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        region::check_read_only(&fd, 2 << 20).map_err(|error| error.kind())
    };
    assert_eq!(sealed(all, MemfdFlags::empty()), Ok(()));
    for missing in all {
        assert_eq!(
            sealed(all.difference(missing), MemfdFlags::empty()),
            Err(io::ErrorKind::InvalidData),
            "{missing:?}"
        );
    }
    let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    assert_eq!(
        sealed(all, huge),
        Err(io::ErrorKind::InvalidData),
        "a page that is not there ends its reader"
    );
    let (pool, fd) = strict_pool();
    assert!(region::check_read_only(&fd, pool.region_bytes()).is_ok());
    assert!(region::check_read_only(&fd, pool.region_bytes() - 4096).is_err());
    assert!(Region::open_sealed(fd, pool.region_bytes(), MapAccess::Write).is_err());
}

/// The other process of the next test: this program again.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else {
        return;
    };
    let (what, rest) = role.split_once(' ').unwrap();
    let (fd, bytes) = rest.split_once(' ').unwrap();
    // SAFETY: the parent left it open for this process, and nothing else here knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
    let region = Region::open_read_only(fd, bytes.parse().unwrap()).unwrap();
    let place = region.byte_ptr(0, 1).unwrap();
    // SAFETY: the byte is mapped. Writing it ends the process, which is what the test wants to see.
    unsafe {
        match what {
            "reads" => assert_eq!(place.as_ptr().read_volatile(), b'N'),
            _ => place.as_ptr().write_volatile(0),
        }
    }
}

fn run_role(what: &str) -> ExitStatus {
    let (pool, fd) = strict_pool();
    let inherited = dup(&fd).unwrap(); // without close-on-exec
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "strict::seals::role", "--quiet"])
        .env(
            ROLE_VARIABLE,
            format!("{what} {} {}", inherited.as_raw_fd(), pool.region_bytes()),
        )
        // The sanitizer, if there is one, would make an exit of it
        .env("ASAN_OPTIONS", "handle_segv=0:detect_leaks=0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn a_receiver_that_writes_is_killed_by_sigsegv() {
    assert!(run_role("reads").success());
    assert_eq!(
        run_role("writes").signal(),
        Some(rustix::process::Signal::SEGV.as_raw())
    );
}

#[test]
fn only_used_pages_take_memory() {
    let (pool, fd) = strict_pool();
    let before = region::backed_bytes(&fd).unwrap();
    assert!(before < pool.region_bytes() as u64, "{before}");
    fallocate(
        &fd,
        FallocateFlags::KEEP_SIZE,
        0,
        pool.region_bytes() as u64,
    )
    .unwrap();
    assert_eq!(
        region::backed_bytes(&fd).unwrap(),
        pool.region_bytes() as u64
    );
}
