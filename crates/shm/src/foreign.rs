//! Another party's pool in a strict domain: it can be read, and nothing else.
//!
//! What stands there is its maker's to change at any time. So a message is copied out whole, and everything after that looks
//! at the copy. Its maker decides what its slots are, too: the geometry is checked when the pool is mapped, and says only
//! where messages may lie. A descriptor can name any of the maker's own bytes, and nobody else's.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::copies::copied;
use crate::descriptor::{BadDescriptor, Descriptor};
use crate::geometry::Geometry;
use crate::pool::read_geometry;
use crate::region::Region;

/// A peer's pool, mapped for reading.
#[derive(Debug, Clone)]
pub struct Foreign {
    region: Arc<Region>,
    geometry: Geometry,
}

impl Foreign {
    /// Maps one of `bytes` bytes as the node told. `InvalidData` when anybody but its maker could write there, or when it is
    /// no pool.
    pub fn open(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        let region = Region::open_read_only(fd, bytes)?;
        let geometry = read_geometry(&region)?;
        Ok(Self { region, geometry })
    }

    /// A private copy of the whole message that a descriptor names. The generation is its maker's business: 0 is refused.
    pub fn copy(&self, descriptor: &Descriptor) -> Result<Vec<u8>, BadDescriptor> {
        let Descriptor { slot, offset, length, .. } = *descriptor;
        descriptor.check(self.geometry.slot_size(slot))?;
        copied(length as usize);
        let start = self.geometry.slot_offset(slot).ok_or(BadDescriptor::NoSuchSlot)?;
        self.region.copy(start + u64::from(offset), length as usize).ok_or(BadDescriptor::NoSuchSlot)
    }
}
