//! Allocators of instance ids, endpoint addresses, user ids and loopback ports.
//!
//! They are pure and go round: a released number is reused last. Packets, pooled connections or log
//! lines of its previous owner may still exist.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nearpath_types::{Eip, InstanceId};

/// First user id of instances. The range is far above those of people, services and container
/// runtimes.
pub const FIRST_UID: u32 = 0x6E70_0000;

/// Number of ids that one disk write reserves.
const BLOCK_SIZE: u64 = 1_024;

/// Allocates the numbers of a range, each to one owner at a time, going round.
#[derive(Debug)]
pub struct NumberRing {
    first: u32,
    count: u32,
    next: u32,
    taken: BTreeSet<u32>,
}

impl NumberRing {
    /// Creates a range of `count` numbers from `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Self {
            first,
            count,
            next: 0,
            taken: BTreeSet::new(),
        }
    }

    /// Returns the next free number; `None` when all are in use.
    pub fn allocate(&mut self) -> Option<u32> {
        // Round robin: a released number is used again as late as possible.
        let order = (0..self.count).map(|step| (self.next + step) % self.count);
        let free = order
            .into_iter()
            .find(|offset| !self.taken.contains(offset))?;
        self.taken.insert(free);
        self.next = (free + 1) % self.count;
        Some(self.first + free)
    }

    /// Releases a number. A free one is ignored.
    pub fn release(&mut self, number: u32) {
        self.taken.remove(&number.wrapping_sub(self.first));
    }
}

/// Allocates the endpoint addresses of the node's network: the gateway's /16 without its first two
/// addresses, its last one, and the gateway.
#[derive(Debug)]
pub struct EipAllocator(NumberRing);

impl EipAllocator {
    /// Creates an allocator for the network of `gateway`.
    pub fn around_gateway(gateway: Ipv4Addr) -> Self {
        let network = u32::from(gateway) & 0xFFFF_0000;
        // Skips the network address, the first address and the broadcast address.
        let mut numbers = NumberRing::new(network + 2, 0xFFFF - 2);
        // The gateway has this address from the start.
        numbers
            .taken
            .insert(u32::from(gateway).wrapping_sub(numbers.first));
        Self(numbers)
    }

    /// Returns the next free address; `None` when all are in use.
    pub fn allocate(&mut self) -> Option<Eip> {
        self.0.allocate().map(|number| Eip(number.into()))
    }

    /// Releases an address.
    pub fn release(&mut self, eip: Eip) {
        self.0.release(eip.0.into());
    }
}

/// Allocates instance ids, which only grow, even across restarts. Ids are reserved on disk in
/// blocks, so a start costs no write.
#[derive(Debug)]
pub struct InstanceIdAllocator {
    file: PathBuf,
    next: u64,
    reserved: u64,
}

impl InstanceIdAllocator {
    /// Continues after the last block that `file` reserves.
    ///
    /// # Errors
    /// Fails when the file does not contain a number, or cannot be read or written.
    pub fn open(file: PathBuf) -> io::Result<Self> {
        // A missing file is a first start; an unreadable one must not begin at 1 and reuse ids.
        let next = match fs::read_to_string(&file) {
            Ok(text) => parse_reserved(&text).ok_or_else(|| {
                io::Error::other(
                    "file does not contain an instance number: restore it, or remove it with all instances stopped",
                )
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 1,
            Err(error) => return Err(error),
        };
        // Unused ids of the previous run's block are skipped.
        let mut ids = Self {
            file,
            next,
            reserved: next,
        };
        // On the disk before the first id is used: a crash may skip ids but never repeats one.
        ids.reserve_block()?;
        Ok(ids)
    }

    /// Returns an id that was never used.
    ///
    /// # Errors
    /// Fails when the next block cannot be reserved on disk.
    pub fn allocate(&mut self) -> io::Result<InstanceId> {
        if self.next == self.reserved {
            self.reserve_block()?;
        }
        self.next += 1;
        Ok(InstanceId(self.next - 1))
    }

    fn reserve_block(&mut self) -> io::Result<()> {
        let reserved = self.next + BLOCK_SIZE;
        match replace_number(&self.file, reserved) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                overwrite_number(&self.file, reserved).map_err(|_| error)?;
            }
            replaced => replaced?,
        }
        self.reserved = reserved;
        Ok(())
    }
}

/// Replaces the file by write, flush and rename: after a power failure it holds the old number or
/// the new one.
fn replace_number(file: &Path, number: u64) -> io::Result<()> {
    let new_file = file.with_extension("new");
    let replaced = fs::File::create(&new_file).and_then(|mut out| {
        writeln!(out, "{number}")?;
        // Without it the rename could reach the disk before the content.
        out.sync_all()?;
        fs::rename(&new_file, file)
    });
    if replaced.is_err() {
        let _ = fs::remove_file(&new_file); // the first error is the one to report
    }
    replaced
}

/// Writes the number over the old one, in the block that the file already has: a full disk must not
/// keep deployed functions from starting. A few bytes at the start of a block are one sector, which
/// disks write whole.
fn overwrite_number(file: &Path, number: u64) -> io::Result<()> {
    let mut out = fs::OpenOptions::new().write(true).open(file)?;
    writeln!(out, "{number}")?;
    out.sync_all()
}

/// Parses the reservation file. Numbers so large that ids would wrap are invalid.
pub fn parse_reserved(text: &str) -> Option<u64> {
    text.trim()
        .parse()
        .ok()
        // Far from the end: adding a block cannot overflow.
        .filter(|next| (1..=u64::MAX / 2).contains(next))
}

/// Allocates loopback ports without a listener, each to one owner at a time.
///
/// Another program may take one before the instance does. Only instances without a network of their
/// own use this, and failed starts are retried.
#[derive(Debug, Default)]
pub struct PortAllocator {
    taken: BTreeSet<u16>,
}

impl PortAllocator {
    /// Returns two ports.
    ///
    /// # Errors
    /// Fails when no port is free; nothing is held then.
    pub fn allocate_two(&mut self) -> io::Result<[u16; 2]> {
        self.allocate_with(|| {
            let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            Ok((probe.local_addr()?.port(), probe))
        })
    }

    /// Like [`PortAllocator::allocate_two`]. `probe` binds a port that the kernel chooses until its
    /// guard is dropped.
    fn allocate_with<P>(
        &mut self,
        mut probe: impl FnMut() -> io::Result<(u16, P)>,
    ) -> io::Result<[u16; 2]> {
        // Bound until both are found: the kernel would offer a port again.
        let mut probes = Vec::new();
        let mut next = || loop {
            let (port, guard) = probe()?;
            probes.push(guard);
            // The instance that holds it may not have bound it yet.
            if !self.taken.contains(&port) {
                return io::Result::Ok(port);
            }
        };
        let ports = [next()?, next()?];
        self.taken.extend(ports);
        Ok(ports)
    }

    /// Releases a port. A free one is ignored.
    pub fn release(&mut self, port: u16) {
        self.taken.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// A bound port of a kernel that always offers the lowest free one.
    struct BoundPort<'a>(u16, &'a RefCell<BTreeSet<u16>>);

    impl Drop for BoundPort<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().remove(&self.0);
        }
    }

    #[test]
    fn no_port_has_two_owners_although_the_kernel_offers_it_again() {
        let bound = RefCell::new(BTreeSet::new());
        let probe = || {
            let free = (1..=5).find(|port| !bound.borrow().contains(port));
            let port = free.ok_or(io::ErrorKind::AddrInUse)?;
            bound.borrow_mut().insert(port);
            Ok((port, BoundPort(port, &bound)))
        };
        let mut ports = PortAllocator::default();
        assert_eq!(ports.allocate_with(probe).unwrap(), [1, 2]);
        assert_eq!(ports.allocate_with(probe).unwrap(), [3, 4], "both are held");
        assert!(ports.allocate_with(probe).is_err(), "one is free");
        ports.release(2);
        assert_eq!(ports.allocate_with(probe).unwrap(), [2, 5]);
        assert!(bound.borrow().is_empty(), "no probe stays bound");
    }

    #[test]
    fn the_gateway_and_network_ends_are_never_allocated() {
        let mut eips = EipAllocator::around_gateway(Ipv4Addr::new(10, 62, 0, 5));
        let all: Vec<_> = std::iter::from_fn(|| eips.allocate()).collect();
        assert_eq!(all.len(), 65_536 - 4);
        assert_eq!(
            (all[0].0, all[3].0),
            (Ipv4Addr::new(10, 62, 0, 2), Ipv4Addr::new(10, 62, 0, 6))
        );
        assert_eq!(all.last().unwrap().0, Ipv4Addr::new(10, 62, 255, 254));
    }

    #[test]
    fn ids_grow_across_restarts_and_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ids");
        let mut last = InstanceId(0);
        for _ in 0..3 {
            let mut ids = InstanceIdAllocator::open(file.clone()).unwrap();
            for _ in 0..BLOCK_SIZE + 5 {
                let id = ids.allocate().unwrap();
                assert!(id > last);
                last = id;
            }
        }
        for damaged in ["many", "", "0", "-1", "18446744073709551615"] {
            fs::write(&file, damaged).unwrap();
            assert!(
                InstanceIdAllocator::open(file.clone()).is_err(),
                "{damaged:?} is rejected"
            );
        }
    }

    #[test]
    fn a_number_is_overwritten_by_a_longer_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ids");
        replace_number(&file, 999).unwrap();
        overwrite_number(&file, 1_024).unwrap();
        assert_eq!(
            parse_reserved(&fs::read_to_string(&file).unwrap()),
            Some(1_024)
        );
    }

    proptest! {
        #[test]
        fn no_number_has_two_owners_and_reuse_is_late(releases in prop::collection::vec(any::<Option<u8>>(), 0..200)) {
            let (mut numbers, mut in_use, mut last_use) = (NumberRing::new(100, 16), Vec::new(), [None; 116]);
            for (time, release) in releases.into_iter().enumerate() {
                if let Some(n) = release.filter(|_| !in_use.is_empty()) {
                    numbers.release(in_use.remove(n as usize % in_use.len()));
                    continue;
                }
                let Some(number) = numbers.allocate() else {
                    prop_assert_eq!(in_use.len(), 16);
                    continue;
                };
                prop_assert!((100..116).contains(&number) && !in_use.contains(&number));
                let oldest_unused = (100..116).filter(|n| !in_use.contains(n)).map(|n: u32| last_use[n as usize]).min();
                prop_assert!(in_use.len() > 8 || last_use[number as usize].is_none() || oldest_unused != Some(None));
                last_use[number as usize] = Some(time);
                in_use.push(number);
            }
        }
    }
}
