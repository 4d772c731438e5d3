//! Layout of a pool. Pure: all offsets follow from the size classes, so a header has exactly one
//! valid form.

use crate::descriptor::SlotId;

/// Magic bytes at the start of a pool.
pub const POOL_MAGIC: [u8; 8] = *b"NPPOOL01";
/// Bytes before the first area.
pub const POOL_HEADER_BYTES: usize = 4096;
/// Maximum number of size classes: a descriptor has 4 bits for the class, and 15 is reserved.
pub const MAX_CLASSES: usize = 15;
/// Valid slot sizes in bytes.
pub const SLOT_SIZE_RANGE: std::ops::RangeInclusive<u32> = 64..=1 << 24;

/// Requested size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassSpec {
    /// Bytes per slot, a power of two within [`SLOT_SIZE_RANGE`].
    pub size: u32,
    /// Number of slots.
    pub count: u32,
}

/// A size class with its location; offsets count from the start of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes per slot.
    pub size: u32,
    /// Number of slots.
    pub count: u32,
    /// Offset of `count` lease words.
    pub words_offset: u64,
    /// Offset of `ceil(count / 64)` hint words.
    pub hints_offset: u64,
    /// Offset of the first slot.
    pub slots_offset: u64,
}

/// Layout of a pool: a private copy that is never read again from shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolGeometry {
    classes: Vec<SizeClass>,
    total_bytes: u64,
}

impl PoolGeometry {
    /// Lays the classes out: words and hints of all classes first, then the slots.
    pub fn new(sizes: &[ClassSpec]) -> Result<Self, GeometryError> {
        check_specs(sizes)?;
        let mut end = POOL_HEADER_BYTES as u64;
        let mut take = |bytes: u64, align: u64| {
            let start = end.next_multiple_of(align);
            end = start + bytes;
            start
        };
        let mut classes: Vec<SizeClass> = sizes
            .iter()
            .map(|s| SizeClass {
                size: s.size,
                count: s.count,
                words_offset: 0,
                hints_offset: 0,
                slots_offset: 0,
            })
            .collect();
        for class in &mut classes {
            // 64 bytes: claims in two classes contend for no common cache line.
            class.words_offset = take(u64::from(class.count) * 8, 64);
            class.hints_offset = take(u64::from(class.count).div_ceil(64) * 8, 64);
        }
        for class in &mut classes {
            // Aligned to its size, at most to a page: a slot smaller than a page never crosses
            // pages.
            class.slots_offset = take(
                u64::from(class.count) * u64::from(class.size),
                u64::from(class.size).min(4096),
            );
        }
        let bytes = end.next_multiple_of(4096);
        Ok(Self {
            classes,
            total_bytes: bytes,
        })
    }

    /// Returns the classes in ascending size.
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// Returns the bytes of the layout; the region may be larger when it uses huge pages.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the size of a slot, if the pool has it.
    pub fn slot_size(&self, slot: SlotId) -> Option<u32> {
        self.classes
            .get(slot.class())
            .filter(|class| slot.index() < class.count)
            .map(|class| class.size)
    }

    /// Returns the offset of a slot from the start of the region, if the pool has it.
    pub fn slot_offset(&self, slot: SlotId) -> Option<u64> {
        let class = self
            .classes
            .get(slot.class())
            .filter(|class| slot.index() < class.count)?;
        Some(class.slots_offset + u64::from(slot.index()) * u64::from(class.size))
    }

    /// Returns the smallest class whose slots hold `bytes` bytes.
    pub fn class_for(&self, bytes: u32) -> Option<usize> {
        self.classes.iter().position(|class| class.size >= bytes)
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + 32 * self.classes.len());
        out.extend_from_slice(&POOL_MAGIC);
        out.extend_from_slice(&(self.classes.len() as u32).to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&self.total_bytes.to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        for class in &self.classes {
            out.extend_from_slice(&class.size.to_le_bytes());
            out.extend_from_slice(&class.count.to_le_bytes());
            [class.words_offset, class.hints_offset, class.slots_offset]
                .iter()
                .for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
        }
        out
    }

    /// Decodes a copy of a header. Accepts only the one valid form of its classes, and only within
    /// `region` bytes.
    pub fn from_bytes(header: &[u8], region: u64) -> Result<Self, GeometryError> {
        let u32_at = |at: usize| {
            header
                .get(at..at + 4)
                .map(|b| u32::from_le_bytes(b.try_into().expect("4 bytes")))
        };
        if header.get(..8) != Some(&POOL_MAGIC[..]) {
            return Err(GeometryError::Magic);
        }
        let count = u32_at(8).ok_or(GeometryError::Layout)? as usize;
        if count > MAX_CLASSES {
            return Err(GeometryError::Classes);
        }
        let size = |k: usize| {
            Some(ClassSpec {
                size: u32_at(32 + 32 * k)?,
                count: u32_at(36 + 32 * k)?,
            })
        };
        let sizes: Vec<ClassSpec> = (0..count)
            .map(size)
            .collect::<Option<_>>()
            .ok_or(GeometryError::Layout)?;
        // Offsets are computed and compared, never taken over: no hostile offset is used.
        let geometry = Self::new(&sizes)?;
        let expected = geometry.to_bytes();
        if header.get(..expected.len()) != Some(&expected[..]) {
            return Err(GeometryError::Layout);
        }
        if geometry.total_bytes > region {
            Err(GeometryError::Region)
        } else {
            Ok(geometry)
        }
    }
}

fn check_specs(sizes: &[ClassSpec]) -> Result<(), GeometryError> {
    let fits = |s: &ClassSpec| {
        s.size.is_power_of_two()
            && SLOT_SIZE_RANGE.contains(&s.size)
            && (1..=SlotId::MAX_INDEX + 1).contains(&s.count)
    };
    let ascending = sizes.windows(2).all(|pair| pair[0].size < pair[1].size);
    let good = (1..=MAX_CLASSES).contains(&sizes.len()) && sizes.iter().all(fits) && ascending;
    if good {
        Ok(())
    } else {
        Err(GeometryError::Classes)
    }
}

/// Reason why a header is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The magic bytes differ: not a pool of this version.
    #[error("the region does not begin with NPPOOL01")]
    Magic,
    /// A class is invalid: 1–15 classes, ascending powers of two from 64 B to 16 MiB, each with
    /// 1–2²⁸ slots.
    #[error("the pool's size classes are out of bounds")]
    Classes,
    /// The header is too short, or its offsets do not follow from its classes.
    #[error("the pool's offsets do not follow from its size classes")]
    Layout,
    /// The pool would end outside the region.
    #[error("the pool is larger than its region")]
    Region,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_specs() -> impl Strategy<Value = Vec<ClassSpec>> {
        proptest::collection::btree_map(6u32..=24, 1u32..5000, 1..=15).prop_map(|map| {
            map.into_iter()
                .map(|(bits, count)| ClassSpec {
                    size: 1 << bits,
                    count,
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn areas_are_disjoint_and_aligned(sizes in any_specs()) {
            let geometry = PoolGeometry::new(&sizes).unwrap();
            let mut areas = vec![(0, POOL_HEADER_BYTES as u64)];
            for class in geometry.classes() {
                prop_assert!(class.words_offset % 64 == 0 && class.hints_offset % 64 == 0);
                prop_assert_eq!(class.slots_offset % u64::from(class.size).min(4096), 0);
                areas.push((class.words_offset, u64::from(class.count) * 8));
                areas.push((class.hints_offset, u64::from(class.count).div_ceil(64) * 8));
                areas.push((class.slots_offset, u64::from(class.count) * u64::from(class.size)));
            }
            areas.sort_unstable();
            prop_assert!(areas.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            let (start, length) = areas[areas.len() - 1];
            prop_assert!(start + length <= geometry.total_bytes());
            prop_assert_eq!(PoolGeometry::from_bytes(&geometry.to_bytes(), geometry.total_bytes()).unwrap(), geometry);
        }

        #[test]
        fn a_header_with_a_flipped_bit_is_refused(sizes in any_specs(), at: prop::sample::Index, bit in 0..8) {
            let geometry = PoolGeometry::new(&sizes).unwrap();
            let mut header = geometry.to_bytes();
            let at = at.index(header.len());
            header[at] ^= 1u8 << bit;
            if let Ok(other) = PoolGeometry::from_bytes(&header, geometry.total_bytes()) {
                prop_assert_eq!(other.to_bytes(), header, "only another header that is right in itself passes");
            }
        }

        #[test]
        fn any_header_bytes_are_parsed_without_panic(bytes: Vec<u8>, region: u64) {
            let _ = PoolGeometry::from_bytes(&bytes, region);
        }
    }
}
