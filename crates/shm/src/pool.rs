//! The slots of one security domain, or of one strict party.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::descriptor::{BadDescriptor, Descriptor, Slot};
use crate::geometry::{self, Geometry, Size};
use crate::leases::Leases;
use crate::region::{Access, Pages, Region};

/// A mapped pool: the private copy of its geometry, and its words by class.
#[derive(Debug)]
pub struct Pool {
    region: Arc<Region>,
    geometry: Geometry,
    classes: Vec<Leases>,
    own: bool,
}

impl Pool {
    /// Makes one with all slots free. For the node.
    pub fn create(sizes: &[Size], pages: Pages) -> io::Result<Self> {
        let geometry = Geometry::new(sizes).map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault))?;
        let bytes = usize::try_from(geometry.bytes()).map_err(io::Error::other)?;
        let region = Region::create("nearpath-pool", bytes, pages)?;
        region.write(0, &geometry.to_bytes());
        let pool = Self::with(region, geometry)?;
        for leases in &pool.classes {
            leases.restore_hints();
        }
        Ok(pool)
    }

    /// Makes one in which nobody else can write, all slots free: a strict party's own. Its words are private memory; where they
    /// would lie in the region there are zeros.
    pub fn create_own(sizes: &[Size]) -> io::Result<Self> {
        let geometry = Geometry::new(sizes).map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault))?;
        let bytes = usize::try_from(geometry.bytes()).map_err(io::Error::other)?;
        let region = Region::create_read_only_for_others("nearpath-own", bytes)?;
        region.write(0, &geometry.to_bytes());
        let classes = geometry.classes().iter().map(|class| Leases::in_memory(class.count as usize)).collect();
        Ok(Self { region, geometry, classes, own: true })
    }

    /// Maps one that the node made, of `bytes` bytes as the node told.
    pub fn open(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        let region = Region::open(fd, bytes, Access::Write)?;
        let geometry = read_geometry(&region)?;
        Self::with(region, geometry)
    }

    fn with(region: Arc<Region>, geometry: Geometry) -> io::Result<Self> {
        let leases = |class: &geometry::Class| {
            let words = region.cells(class.words, class.count as usize)?;
            Some(Leases::new(words, region.cells(class.hints, class.count.div_ceil(64) as usize)?))
        };
        let classes: Option<Vec<Leases>> = geometry.classes().iter().map(leases).collect();
        let classes = classes.ok_or_else(|| io::Error::other("the pool is larger than its region"))?;
        Ok(Self { region, geometry, classes, own: false })
    }

    /// Whether it was made with [`Pool::create_own`].
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// Where everything lies.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes of the region: what [`Pool::open`] must be told.
    pub fn bytes(&self) -> usize {
        self.region.len()
    }

    /// Bytes of a page of the memory.
    pub fn page_size(&self) -> u64 {
        self.region.page_size()
    }

    /// Words and hints of a class.
    pub fn class(&self, class: usize) -> Option<&Leases> {
        self.classes.get(class)
    }

    /// Every class with its size.
    pub fn classes(&self) -> impl Iterator<Item = (u32, &Leases)> {
        self.geometry.classes().iter().map(|class| class.size).zip(&self.classes)
    }

    /// All checks of a descriptor but that of its lease.
    pub fn check(&self, descriptor: &Descriptor) -> Result<(), BadDescriptor> {
        descriptor.check(self.geometry.slot_size(descriptor.slot))
    }

    /// Copies bytes out of a slot; false when they would lie outside of it.
    pub(crate) fn read(&self, slot: Slot, offset: u32, into: &mut [u8]) -> bool {
        self.offset(slot, offset, into.len()).is_some_and(|offset| self.region.read(offset, into))
    }

    /// Copies bytes into a slot; false when they would lie outside of it.
    pub(crate) fn write(&self, slot: Slot, offset: u32, bytes: &[u8]) -> bool {
        self.offset(slot, offset, bytes.len()).is_some_and(|offset| self.region.write(offset, bytes))
    }

    /// Where bytes of a slot lie; nothing when they would lie outside of it.
    pub(crate) fn place(&self, slot: Slot, offset: u32, bytes: usize) -> Option<NonNull<u8>> {
        self.region.place(self.offset(slot, offset, bytes)?, bytes)
    }

    fn offset(&self, slot: Slot, offset: u32, bytes: usize) -> Option<u64> {
        let end = u64::from(offset).checked_add(bytes as u64)?;
        let fits = end <= u64::from(self.geometry.slot_size(slot)?);
        fits.then_some(self.geometry.slot_offset(slot)? + u64::from(offset))
    }
}

/// Reads the header of a pool once and checks the copy.
pub(crate) fn read_geometry(region: &Region) -> io::Result<Geometry> {
    let mut header = [0; 32 + 32 * geometry::MAX_CLASSES];
    region.read(0, &mut header);
    Geometry::from_bytes(&header, region.len() as u64)
        .map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))
}

impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}
