//! Pool of another endpoint in a strict domain, mapped read-only.
//!
//! Its owner can change it at any time. So a message is copied out whole, and all later code reads
//! the copy. The geometry is checked once, when the pool is mapped. A descriptor can name any byte
//! of the owner, and no other endpoint's.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::copies::count_copied;
use crate::descriptor::{Descriptor, DescriptorError};
use crate::geometry::PoolGeometry;
use crate::pool::read_geometry;
use crate::region::Region;

/// A peer's pool, mapped for reading.
#[derive(Debug, Clone)]
pub struct PeerPool {
    region: Arc<Region>,
    geometry: PoolGeometry,
}

impl PeerPool {
    /// Maps a pool of `bytes` bytes, as reported by the node. Fails with `InvalidData` when others
    /// than its owner can write there, or when it is not a pool.
    pub fn open_read_only(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        let region = Region::open_read_only(fd, bytes)?;
        let geometry = read_geometry(&region)?;
        Ok(Self { region, geometry })
    }

    /// Copies the whole message that a descriptor names. Generation 0 is refused; otherwise the
    /// generation is the owner's business.
    pub fn copy_message(&self, descriptor: &Descriptor) -> Result<Vec<u8>, DescriptorError> {
        let Descriptor {
            slot,
            offset,
            length,
            ..
        } = *descriptor;
        // Lease words of a strict pool are private (ADR 0016): only bounds can be checked here.
        descriptor.check_bounds(self.geometry.slot_size(slot))?;
        count_copied(length as usize);
        let start = self
            .geometry
            .slot_offset(slot)
            .ok_or(DescriptorError::NoSuchSlot)?;
        self.region
            .copy_bytes(start + u64::from(offset), length as usize)
            .ok_or(DescriptorError::NoSuchSlot)
    }
}
