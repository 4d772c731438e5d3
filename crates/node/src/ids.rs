//! Names and numbers that instances own: ids, endpoint addresses, user ids, loopback ports.
//!
//! The allocators are pure and go round: a number that was given back is the last to be given out again, because
//! packets, pooled connections or log lines of its last owner may still be about.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::{fs, io};

use nearpath_types::{Eip, InstanceId};

/// The first user id of instances. The range lies far above those of people, services and container runtimes.
pub const FIRST_UID: u32 = 0x6E70_0000;

/// How many ids one write to the disk reserves.
const BLOCK: u64 = 1_024;

/// Hands out the numbers of a range, each to one owner at a time, going round.
#[derive(Debug)]
pub struct Ring {
    first: u32,
    count: u32,
    next: u32,
    taken: BTreeSet<u32>,
}

impl Ring {
    /// A range of `count` numbers from `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Self { first, count, next: 0, taken: BTreeSet::new() }
    }

    /// The next free number; `None` when all are taken.
    pub fn take(&mut self) -> Option<u32> {
        let order = (0..self.count).map(|step| (self.next + step) % self.count);
        let free = order.into_iter().find(|offset| !self.taken.contains(offset))?;
        self.taken.insert(free);
        self.next = (free + 1) % self.count;
        Some(self.first + free)
    }

    /// Gives a number back. One that was not taken is ignored.
    pub fn give_back(&mut self, number: u32) {
        self.taken.remove(&number.wrapping_sub(self.first));
    }
}

/// The endpoint addresses of the node's network: the /16 that `gateway` lies in, without its first two addresses and its
/// last one, and without the gateway.
#[derive(Debug)]
pub struct Eips(Ring);

impl Eips {
    /// The addresses around `gateway`.
    pub fn around(gateway: Ipv4Addr) -> Self {
        let network = u32::from(gateway) & 0xFFFF_0000;
        let mut ring = Ring::new(network + 2, 0xFFFF - 2);
        ring.taken.insert(u32::from(gateway).wrapping_sub(ring.first));
        Self(ring)
    }

    /// The next free address; `None` when all are taken.
    pub fn take(&mut self) -> Option<Eip> {
        self.0.take().map(|number| Eip(number.into()))
    }

    /// Gives an address back.
    pub fn give_back(&mut self, eip: Eip) {
        self.0.give_back(eip.0.into());
    }
}

/// Instance ids: they only grow, also across restarts. Ids are reserved on disk in blocks, so a start costs no write.
#[derive(Debug)]
pub struct Ids {
    file: PathBuf,
    next: u64,
    reserved: u64,
}

impl Ids {
    /// Goes on after the last block that `file` reserves.
    ///
    /// # Errors
    /// When the file holds something else than a number, or cannot be read or written.
    pub fn open(file: PathBuf) -> io::Result<Self> {
        let next = match fs::read_to_string(&file) {
            Ok(text) => parse(&text).ok_or_else(|| io::Error::other("it does not hold the number of an instance"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 1,
            Err(error) => return Err(error),
        };
        let mut ids = Self { file, next, reserved: next };
        ids.reserve()?;
        Ok(ids)
    }

    /// An id that was never used.
    ///
    /// # Errors
    /// When the next block cannot be reserved on disk.
    pub fn take(&mut self) -> io::Result<InstanceId> {
        if self.next == self.reserved {
            self.reserve()?;
        }
        self.next += 1;
        Ok(InstanceId(self.next - 1))
    }

    /// Write, flush, rename: after a power cut the file holds the old block or the new one.
    fn reserve(&mut self) -> io::Result<()> {
        let reserved = self.next + BLOCK;
        let draft = self.file.with_extension("new");
        let mut out = fs::File::create(&draft)?;
        writeln!(out, "{reserved}")?;
        out.sync_all()?;
        fs::rename(&draft, &self.file)?;
        self.reserved = reserved;
        Ok(())
    }
}

/// Reads the file that ids are reserved in. Numbers so large that ids would come round are not its own.
pub fn parse(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|next| (1..=u64::MAX / 2).contains(next))
}

/// A loopback port that nothing listens on now. Another program may take it before the instance does: this is for
/// running without a network of one's own only, and such a start is tried again.
///
/// # Errors
/// When no port is free.
pub fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_gateway_and_the_ends_of_the_network_are_never_given_out() {
        let mut eips = Eips::around(Ipv4Addr::new(10, 62, 0, 5));
        let all: Vec<_> = std::iter::from_fn(|| eips.take()).collect();
        assert_eq!(all.len(), 65_536 - 4);
        assert_eq!((all[0].0, all[3].0), (Ipv4Addr::new(10, 62, 0, 2), Ipv4Addr::new(10, 62, 0, 6)));
        assert_eq!(all.last().unwrap().0, Ipv4Addr::new(10, 62, 255, 254));
    }

    #[test]
    fn ids_grow_across_restarts_and_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ids");
        let mut last = InstanceId(0);
        for _ in 0..3 {
            let mut ids = Ids::open(file.clone()).unwrap();
            for _ in 0..BLOCK + 5 {
                let id = ids.take().unwrap();
                assert!(id > last);
                last = id;
            }
        }
        for damaged in ["many", "", "0", "-1", "18446744073709551615"] {
            fs::write(&file, damaged).unwrap();
            assert!(Ids::open(file.clone()).is_err(), "{damaged:?} is not taken for a new file");
        }
    }

    proptest! {
        #[test]
        fn no_number_has_two_owners_and_reuse_is_late(gives in prop::collection::vec(any::<Option<u8>>(), 0..200)) {
            let (mut ring, mut held, mut last_given) = (Ring::new(100, 16), Vec::new(), [None; 116]);
            for (time, give) in gives.into_iter().enumerate() {
                if let Some(n) = give.filter(|_| !held.is_empty()) {
                    ring.give_back(held.remove(n as usize % held.len()));
                    continue;
                }
                let Some(number) = ring.take() else {
                    prop_assert_eq!(held.len(), 16);
                    continue;
                };
                prop_assert!((100..116).contains(&number) && !held.contains(&number));
                let longest_unused = (100..116).filter(|n| !held.contains(n)).map(|n: u32| last_given[n as usize]).min();
                prop_assert!(held.len() > 8 || last_given[number as usize].is_none() || longest_unused != Some(None));
                last_given[number as usize] = Some(time);
                held.push(number);
            }
        }
    }
}
