//! The 16 bytes that move between parties.

use crate::envelope;

/// Which slot: the class in bits 31–28, the index within the class in bits 27–0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// Index of the last slot that a class can have.
    pub const MAX_INDEX: u32 = (1 << 28) - 1;

    /// `class` is below 16 and `index` at most [`Slot::MAX_INDEX`]; higher bits are cut off.
    pub const fn new(class: usize, index: u32) -> Self {
        Self((class as u32) << 28 | index & Self::MAX_INDEX)
    }

    /// Number of the size class.
    pub const fn class(self) -> usize {
        (self.0 >> 28) as usize
    }

    /// Number of the slot within its class.
    pub const fn index(self) -> u32 {
        self.0 & Self::MAX_INDEX
    }
}

/// Where a message lies: never a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The slot.
    pub slot: Slot,
    /// Of the slot when it was claimed; never 0.
    pub generation: u32,
    /// First byte of the message within the slot, a multiple of 8.
    pub offset: u32,
    /// Bytes of the message within the slot, envelope included.
    pub length: u32,
}

impl Descriptor {
    /// Size in a ring.
    pub const SIZE: usize = 16;

    /// As two little-endian words, the way a ring holds it.
    pub const fn to_words(self) -> [u64; 2] {
        [self.slot.0 as u64 | (self.generation as u64) << 32, self.offset as u64 | (self.length as u64) << 32]
    }

    /// Any two words are some descriptor; [`Descriptor::check`] says whether it can be a message.
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self {
            slot: Slot(words[0] as u32),
            generation: (words[0] >> 32) as u32,
            offset: words[1] as u32,
            length: (words[1] >> 32) as u32,
        }
    }

    /// The bytes of the contract.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let [first, second] = self.to_words();
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// The inverse of [`Descriptor::to_bytes`].
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 of 16 bytes"));
        Self::from_words([word(0), word(8)])
    }

    /// Checks all that can be known without the slot's lease word. `slot_size` is that of the slot's class, if there is such
    /// a slot.
    pub fn check(&self, slot_size: Option<u32>) -> Result<(), BadDescriptor> {
        let size = slot_size.ok_or(BadDescriptor::NoSuchSlot)?;
        match self {
            Self { generation: 0, .. } => Err(BadDescriptor::Generation),
            _ if !self.offset.is_multiple_of(8) => Err(BadDescriptor::Unaligned),
            _ if (self.length as usize) < envelope::SIZE => Err(BadDescriptor::TooShort),
            _ if u64::from(self.offset) + u64::from(self.length) > u64::from(size) => Err(BadDescriptor::TooLong),
            _ => Ok(()),
        }
    }
}

/// Why a descriptor cannot be one; the sender is at fault or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadDescriptor {
    /// Class or index is not in the pool.
    #[error("the descriptor names a slot that the pool does not have")]
    NoSuchSlot,
    /// Generation 0.
    #[error("the descriptor has generation 0")]
    Generation,
    /// The offset is no multiple of 8.
    #[error("the descriptor's offset is no multiple of 8")]
    Unaligned,
    /// No room for an envelope.
    #[error("the descriptor's length is less than an envelope")]
    TooShort,
    /// The message would end outside the slot.
    #[error("the descriptor ends outside its slot")]
    TooLong,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_and_back(bytes: [u8; 16]) {
            prop_assert_eq!(Descriptor::from_bytes(bytes).to_bytes(), bytes);
        }

        #[test]
        fn what_passes_lies_inside(bytes: [u8; 16], size in 64u32..1 << 21) {
            let descriptor = Descriptor::from_bytes(bytes);
            if descriptor.check(Some(size)).is_ok() {
                let end = descriptor.offset.checked_add(descriptor.length).unwrap();
                prop_assert!(end <= size && descriptor.length >= 64 && descriptor.offset.is_multiple_of(8));
            }
        }
    }

    #[test]
    fn a_length_that_wraps_is_refused() {
        let descriptor = Descriptor { slot: Slot::new(0, 0), generation: 1, offset: 4096, length: u32::MAX - 4000 };
        assert_eq!(descriptor.check(Some(1 << 20)), Err(BadDescriptor::TooLong));
    }
}
