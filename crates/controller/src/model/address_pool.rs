//! Numbers of virtual addresses: which ones are in use, and the next free one.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nearpath_types::VirtualAddress;
use serde::{Deserialize, Serialize};

/// Upper half of all virtual IPv4 addresses: 10.60.0.0/16.
const IPV4_NETWORK: [u8; 2] = [10, 60];
/// First number of a function: 0 is the network's own address, and 1 the node's.
const FIRST_NUMBER: u16 = 2;
/// Last number of a function; the one behind it is the network's broadcast address.
const LAST_NUMBER: u16 = u16::MAX - 1;
/// First byte of a unique local address with a random global ID (RFC 4193, section 3.1).
const UNIQUE_LOCAL: u8 = 0xfd;

/// Length of a bitmap with a bit per number.
const BITMAP_LEN: usize = (u16::MAX as usize + 1) / u64::BITS as usize;

/// Number of a virtual address: the lower half of its IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct AddressNumber(u16);

impl AddressNumber {
    /// IPv4 address of this number.
    pub fn ipv4(self) -> Ipv4Addr {
        let ([a, b], [c, d]) = (IPV4_NETWORK, self.0.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    }
}

impl TryFrom<u16> for AddressNumber {
    type Error = String;

    fn try_from(number: u16) -> Result<Self, String> {
        match (FIRST_NUMBER..=LAST_NUMBER).contains(&number) {
            true => Ok(Self(number)),
            false => Err(format!(
                "invalid number of a virtual address {number}: expected {FIRST_NUMBER} to {LAST_NUMBER}"
            )),
        }
    }
}

impl From<AddressNumber> for u16 {
    fn from(number: AddressNumber) -> Self {
        number.0
    }
}

/// IPv6 prefix (/48) of all virtual addresses of a data directory: its global ID (RFC 4193, section
/// 3.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Ipv6Addr", into = "Ipv6Addr")]
pub struct AddressPrefix([u8; 5]);

impl AddressPrefix {
    /// Makes a prefix of 40 random bits.
    pub fn from_random(global_id: [u8; 5]) -> Self {
        Self(global_id)
    }

    /// Virtual address of a number: subnet 0, and the IPv4 address in the last 32 bits.
    pub fn address(self, number: AddressNumber) -> VirtualAddress {
        let v4 = number.ipv4();
        let low = u128::from(v4.to_bits());
        let v6 = Ipv6Addr::from_bits(Ipv6Addr::from(self).to_bits() | low);
        VirtualAddress { v4, v6 }
    }
}

impl From<AddressPrefix> for Ipv6Addr {
    fn from(prefix: AddressPrefix) -> Self {
        let mut bytes = [0; 16];
        bytes[0] = UNIQUE_LOCAL;
        bytes[1..6].copy_from_slice(&prefix.0);
        Self::from(bytes)
    }
}

impl TryFrom<Ipv6Addr> for AddressPrefix {
    type Error = String;

    fn try_from(address: Ipv6Addr) -> Result<Self, String> {
        let [_, a, b, c, d, e, ..] = address.octets();
        let prefix = Self([a, b, c, d, e]);
        match Ipv6Addr::from(prefix) == address {
            true => Ok(prefix),
            false => Err(format!(
                "invalid IPv6 prefix {address}: expected fd00::/8 with zeros behind 48 bits"
            )),
        }
    }
}

/// Numbers in use, and the last allocated one. The search goes round from there, so
/// a released number is reused late: sockets and caches of callers may still hold it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AddressPool {
    /// A bit per number, set while the number is in use or reserved. 8 KiB, which copies of the
    /// model share.
    used: Arc<[u64; BITMAP_LEN]>,
    /// Number that was allocated last.
    last: Option<AddressNumber>,
}

impl Default for AddressPool {
    fn default() -> Self {
        let mut used = [0; BITMAP_LEN];
        used[0] = (1 << FIRST_NUMBER) - 1;
        used[BITMAP_LEN - 1] = 1 << (u64::BITS - 1);
        Self {
            used: Arc::new(used),
            last: None,
        }
    }
}

impl fmt::Debug for AddressPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used: u32 = self.used.iter().map(|word| word.count_ones()).sum();
        f.debug_struct("AddressPool")
            .field("used", &used)
            .field("last", &self.last)
            .finish()
    }
}

impl AddressPool {
    /// Next free number behind the last allocated one; `None` when all are in use.
    fn next_free(&self) -> Option<AddressNumber> {
        let start = self.last.map_or(FIRST_NUMBER, |last| last.0 + 1);
        self.free_from(start)
            .or_else(|| self.free_from(FIRST_NUMBER))
    }

    fn free_from(&self, start: u16) -> Option<AddressNumber> {
        let (first, below) = bit_of(start);
        let mut words = self.used[first..].iter().copied();
        // Numbers before the start count as used.
        let head = words.next()? | (below - 1);
        let (index, word) = std::iter::once(head)
            .chain(words)
            .enumerate()
            .find(|(_, word)| *word != u64::MAX)?;
        let number = (first + index) as u32 * u64::BITS + word.trailing_ones();
        // Reserved numbers have set bits, so every clear bit is a number for functions.
        u16::try_from(number).ok().map(AddressNumber)
    }

    /// Takes the next free number as the last allocated one.
    pub(super) fn allocate(&mut self) -> Option<AddressNumber> {
        let number = self.next_free()?;
        self.replace(None, Some(number));
        self.last = Some(number);
        Some(number)
    }

    pub(super) fn last(&self) -> Option<AddressNumber> {
        self.last
    }

    pub(super) fn set_last(&mut self, number: AddressNumber) {
        self.last = Some(number);
    }

    /// Moves a name from one number to another; equal ones cost nothing.
    pub(super) fn replace(&mut self, old: Option<AddressNumber>, new: Option<AddressNumber>) {
        if old == new {
            return;
        }
        let used = Arc::make_mut(&mut self.used);
        if let Some((word, bit)) = old.map(|old| bit_of(old.0)) {
            used[word] &= !bit;
        }
        if let Some((word, bit)) = new.map(|new| bit_of(new.0)) {
            used[word] |= bit;
        }
    }
}

/// Index of a number's word, and its bit there.
fn bit_of(number: u16) -> (usize, u64) {
    let number = u32::from(number);
    ((number / u64::BITS) as usize, 1 << (number % u64::BITS))
}
