//! The slots of one security domain, or of one strict endpoint.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::descriptor::{Descriptor, DescriptorError, SlotId};
use crate::geometry::{self, ClassSpec, PoolGeometry};
use crate::lease_table::LeaseTable;
use crate::region::{MapAccess, PageKind, Region};

/// A mapped pool: a private copy of its geometry, and its lease tables by class.
#[derive(Debug)]
pub struct SlotPool {
    region: Arc<Region>,
    geometry: PoolGeometry,
    lease_tables: Vec<LeaseTable>,
    is_private: bool,
}

impl SlotPool {
    /// Creates a pool with all slots free; only the node does this.
    pub fn create(sizes: &[ClassSpec], pages: PageKind) -> io::Result<Self> {
        let geometry = PoolGeometry::new(sizes)
            .map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault))?;
        let bytes = usize::try_from(geometry.total_bytes()).map_err(io::Error::other)?;
        let region = Region::create("nearpath-pool", bytes, pages)?;
        region.write_bytes(0, &geometry.to_bytes());
        let pool = Self::from_region(region, geometry)?;
        // Zeroed words are free slots, but zeroed hints hide them.
        for leases in &pool.lease_tables {
            leases.restore_hints();
        }
        Ok(pool)
    }

    /// Creates the pool of a strict endpoint, which no other process can write. All slots are free.
    /// Its lease words are private memory; their place in the region stays zero.
    pub fn create_strict(sizes: &[ClassSpec]) -> io::Result<Self> {
        let geometry = PoolGeometry::new(sizes)
            .map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault))?;
        let bytes = usize::try_from(geometry.total_bytes()).map_err(io::Error::other)?;
        let region = Region::create_read_only_for_others("nearpath-own", bytes)?;
        region.write_bytes(0, &geometry.to_bytes());
        let classes = geometry
            .classes()
            .iter()
            .map(|class| LeaseTable::in_memory(class.count as usize))
            .collect();
        Ok(Self {
            region,
            geometry,
            lease_tables: classes,
            is_private: true,
        })
    }

    /// Maps a pool of `bytes` bytes that the node created, as reported by the node.
    pub fn open_region(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        let region = Region::open_sealed(fd, bytes, MapAccess::Write)?;
        let geometry = read_geometry(&region)?;
        Self::from_region(region, geometry)
    }

    fn from_region(region: Arc<Region>, geometry: PoolGeometry) -> io::Result<Self> {
        let leases = |class: &geometry::SizeClass| {
            let words = region.atomic_cells(class.words_offset, class.count as usize)?;
            Some(LeaseTable::new(
                words,
                region.atomic_cells(class.hints_offset, class.count.div_ceil(64) as usize)?,
            ))
        };
        let classes: Option<Vec<LeaseTable>> = geometry.classes().iter().map(leases).collect();
        let classes =
            classes.ok_or_else(|| io::Error::other("the pool is larger than its region"))?;
        Ok(Self {
            region,
            geometry,
            lease_tables: classes,
            is_private: false,
        })
    }

    /// Returns true for a pool of [`SlotPool::create_strict`].
    pub fn is_strict(&self) -> bool {
        self.is_private
    }

    /// Returns the layout.
    pub fn geometry(&self) -> &PoolGeometry {
        &self.geometry
    }

    /// Returns the bytes of the region, as [`SlotPool::open_region`] expects them.
    pub fn region_bytes(&self) -> usize {
        self.region.len()
    }

    /// Returns the page size of the memory in bytes.
    pub fn page_size(&self) -> u64 {
        self.region.page_size()
    }

    /// Returns the lease table of a class.
    pub fn lease_table(&self, class: usize) -> Option<&LeaseTable> {
        self.lease_tables.get(class)
    }

    /// Iterates over all classes with their slot sizes.
    pub fn lease_tables(&self) -> impl Iterator<Item = (u32, &LeaseTable)> {
        self.geometry
            .classes()
            .iter()
            .map(|class| class.size)
            .zip(&self.lease_tables)
    }

    /// Checks a descriptor against the layout; its lease is not checked.
    pub fn check_descriptor(&self, descriptor: &Descriptor) -> Result<(), DescriptorError> {
        descriptor.check_bounds(self.geometry.slot_size(descriptor.slot))
    }

    /// Copies bytes out of a slot; false when they would lie outside.
    pub(crate) fn read_slot(&self, slot: SlotId, offset: u32, into: &mut [u8]) -> bool {
        self.region_offset(slot, offset, into.len())
            .is_some_and(|offset| self.region.read_bytes(offset, into))
    }

    /// Copies bytes into a slot; false when they would lie outside.
    pub(crate) fn write_slot(&self, slot: SlotId, offset: u32, bytes: &[u8]) -> bool {
        self.region_offset(slot, offset, bytes.len())
            .is_some_and(|offset| self.region.write_bytes(offset, bytes))
    }

    /// Returns a pointer into a slot; none when the bytes would lie outside.
    pub(crate) fn slot_ptr(&self, slot: SlotId, offset: u32, bytes: usize) -> Option<NonNull<u8>> {
        self.region
            .byte_ptr(self.region_offset(slot, offset, bytes)?, bytes)
    }

    fn region_offset(&self, slot: SlotId, offset: u32, bytes: usize) -> Option<u64> {
        let end = u64::from(offset).checked_add(bytes as u64)?;
        let fits = end <= u64::from(self.geometry.slot_size(slot)?);
        fits.then_some(self.geometry.slot_offset(slot)? + u64::from(offset))
    }
}

/// Reads the header of a pool once and checks the copy.
pub(crate) fn read_geometry(region: &Region) -> io::Result<PoolGeometry> {
    let mut header = [0; 32 + 32 * geometry::MAX_CLASSES];
    // A region shorter than the header leaves zeros, which the check of the magic refuses.
    region.read_bytes(0, &mut header);
    PoolGeometry::from_bytes(&header, region.len() as u64)
        .map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))
}

impl AsFd for SlotPool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}
