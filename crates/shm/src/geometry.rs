//! Where everything lies in a pool. Pure: all offsets follow from the classes, so that a header has one right form.

use crate::descriptor::Slot;

/// First bytes of a pool.
pub const MAGIC: [u8; 8] = *b"NPPOOL01";
/// Bytes before the first area.
pub const HEADER: usize = 4096;
/// Classes that a pool can have: the class has 4 bits in a descriptor, and 15 is kept free.
pub const MAX_CLASSES: usize = 15;
/// Smallest and largest slot.
pub const SLOT_SIZES: std::ops::RangeInclusive<u32> = 64..=1 << 24;

/// One size class, as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Bytes of a slot, a power of two within [`SLOT_SIZES`].
    pub size: u32,
    /// Slots.
    pub count: u32,
}

/// One size class and where it lies; offsets are from the region's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Bytes of a slot.
    pub size: u32,
    /// Slots.
    pub count: u32,
    /// Of `count` lease words.
    pub words: u64,
    /// Of `ceil(count / 64)` words of hints.
    pub hints: u64,
    /// Of the first slot.
    pub slots: u64,
}

/// A pool's layout: a private copy, never read again from shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    classes: Vec<Class>,
    bytes: u64,
}

impl Geometry {
    /// Lays the classes out: words and hints of every class first, then the slots of every class.
    pub fn new(sizes: &[Size]) -> Result<Self, BadGeometry> {
        check(sizes)?;
        let mut end = HEADER as u64;
        let mut take = |bytes: u64, align: u64| {
            let start = end.next_multiple_of(align);
            end = start + bytes;
            start
        };
        let mut classes: Vec<Class> =
            sizes.iter().map(|s| Class { size: s.size, count: s.count, words: 0, hints: 0, slots: 0 }).collect();
        for class in &mut classes {
            class.words = take(u64::from(class.count) * 8, 64);
            class.hints = take(u64::from(class.count).div_ceil(64) * 8, 64);
        }
        for class in &mut classes {
            class.slots = take(u64::from(class.count) * u64::from(class.size), u64::from(class.size).min(4096));
        }
        let bytes = end.next_multiple_of(4096);
        Ok(Self { classes, bytes })
    }

    /// The classes, ascending by size.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Bytes that the layout needs; the region may be larger (huge pages).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Size of this slot, if the pool has it.
    pub fn slot_size(&self, slot: Slot) -> Option<u32> {
        self.classes.get(slot.class()).filter(|class| slot.index() < class.count).map(|class| class.size)
    }

    /// Offset of this slot from the region's start, if the pool has it.
    pub fn slot_offset(&self, slot: Slot) -> Option<u64> {
        let class = self.classes.get(slot.class()).filter(|class| slot.index() < class.count)?;
        Some(class.slots + u64::from(slot.index()) * u64::from(class.size))
    }

    /// The smallest class whose slots hold so many bytes.
    pub fn class_for(&self, bytes: u32) -> Option<usize> {
        self.classes.iter().position(|class| class.size >= bytes)
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + 32 * self.classes.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&(self.classes.len() as u32).to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        for class in &self.classes {
            out.extend_from_slice(&class.size.to_le_bytes());
            out.extend_from_slice(&class.count.to_le_bytes());
            [class.words, class.hints, class.slots].iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
        }
        out
    }

    /// Reads a copy of a header and accepts it only in the one form that its classes have, and only if all of it lies
    /// within `region` bytes.
    pub fn from_bytes(header: &[u8], region: u64) -> Result<Self, BadGeometry> {
        let u32_at = |at: usize| header.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("4 bytes")));
        if header.get(..8) != Some(&MAGIC[..]) {
            return Err(BadGeometry::Magic);
        }
        let count = u32_at(8).ok_or(BadGeometry::Layout)? as usize;
        if count > MAX_CLASSES {
            return Err(BadGeometry::Classes);
        }
        let size = |k: usize| Some(Size { size: u32_at(32 + 32 * k)?, count: u32_at(36 + 32 * k)? });
        let sizes: Vec<Size> = (0..count).map(size).collect::<Option<_>>().ok_or(BadGeometry::Layout)?;
        let geometry = Self::new(&sizes)?;
        let expected = geometry.to_bytes();
        if header.get(..expected.len()) != Some(&expected[..]) {
            return Err(BadGeometry::Layout);
        }
        if geometry.bytes > region { Err(BadGeometry::Region) } else { Ok(geometry) }
    }
}

fn check(sizes: &[Size]) -> Result<(), BadGeometry> {
    let fits = |s: &Size| {
        s.size.is_power_of_two() && SLOT_SIZES.contains(&s.size) && (1..=Slot::MAX_INDEX + 1).contains(&s.count)
    };
    let ascending = sizes.windows(2).all(|pair| pair[0].size < pair[1].size);
    let good = (1..=MAX_CLASSES).contains(&sizes.len()) && sizes.iter().all(fits) && ascending;
    if good { Ok(()) } else { Err(BadGeometry::Classes) }
}

/// Why this is no pool's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadGeometry {
    /// Not a pool of this version.
    #[error("the region does not begin with NPPOOL01")]
    Magic,
    /// 1…15 classes, ascending powers of two from 64 B to 16 MiB, each with 1…2²⁸ slots.
    #[error("the pool's size classes are out of bounds")]
    Classes,
    /// The header is too short or names other offsets than follow from its classes.
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

    fn sizes() -> impl Strategy<Value = Vec<Size>> {
        proptest::collection::btree_map(6u32..=24, 1u32..5000, 1..=15)
            .prop_map(|map| map.into_iter().map(|(bits, count)| Size { size: 1 << bits, count }).collect())
    }

    proptest! {
        #[test]
        fn areas_are_apart_and_aligned(sizes in sizes()) {
            let geometry = Geometry::new(&sizes).unwrap();
            let mut areas = vec![(0, HEADER as u64)];
            for class in geometry.classes() {
                prop_assert!(class.words % 64 == 0 && class.hints % 64 == 0);
                prop_assert_eq!(class.slots % u64::from(class.size).min(4096), 0);
                areas.push((class.words, u64::from(class.count) * 8));
                areas.push((class.hints, u64::from(class.count).div_ceil(64) * 8));
                areas.push((class.slots, u64::from(class.count) * u64::from(class.size)));
            }
            areas.sort_unstable();
            prop_assert!(areas.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            let (start, length) = areas[areas.len() - 1];
            prop_assert!(start + length <= geometry.bytes());
            prop_assert_eq!(Geometry::from_bytes(&geometry.to_bytes(), geometry.bytes()).unwrap(), geometry);
        }

        #[test]
        fn a_header_changed_anywhere_is_refused(sizes in sizes(), at: prop::sample::Index, bit in 0..8) {
            let geometry = Geometry::new(&sizes).unwrap();
            let mut header = geometry.to_bytes();
            let at = at.index(header.len());
            header[at] ^= 1u8 << bit;
            if let Ok(other) = Geometry::from_bytes(&header, geometry.bytes()) {
                prop_assert_eq!(other.to_bytes(), header, "only another header that is right in itself passes");
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>, region: u64) {
            let _ = Geometry::from_bytes(&bytes, region);
        }
    }
}
