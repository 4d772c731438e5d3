//! The 16-byte descriptor that moves between endpoints.

use crate::envelope;

/// Identifies a slot: class in bits 31–28, index within the class in bits 27–0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

impl SlotId {
    /// Largest index within a class.
    pub const MAX_INDEX: u32 = (1 << 28) - 1;

    /// Combines a class below 16 and an index up to [`SlotId::MAX_INDEX`]; higher bits are cut off.
    pub const fn new(class: usize, index: u32) -> Self {
        Self((class as u32) << 28 | index & Self::MAX_INDEX)
    }

    /// Returns the number of the size class.
    pub const fn class(self) -> usize {
        (self.0 >> 28) as usize
    }

    /// Returns the index within the class.
    pub const fn index(self) -> u32 {
        self.0 & Self::MAX_INDEX
    }
}

/// Location of a message; never a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The slot.
    pub slot: SlotId,
    /// Generation of the slot when it was claimed; never 0.
    pub generation: u32,
    /// Offset of the message within the slot, a multiple of 8.
    pub offset: u32,
    /// Bytes of the message, envelope included.
    pub length: u32,
}

impl Descriptor {
    /// Bytes of a descriptor in a ring.
    pub const SIZE: usize = 16;

    /// Encodes the descriptor as the two words of a ring entry.
    pub const fn to_words(self) -> [u64; 2] {
        [
            self.slot.0 as u64 | (self.generation as u64) << 32,
            self.offset as u64 | (self.length as u64) << 32,
        ]
    }

    /// Decodes any two words; [`Descriptor::check_bounds`] validates the result.
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self {
            slot: SlotId(words[0] as u32),
            generation: (words[0] >> 32) as u32,
            offset: words[1] as u32,
            length: (words[1] >> 32) as u32,
        }
    }

    /// Encodes the descriptor as little-endian bytes.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let [first, second] = self.to_words();
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Decodes the bytes of [`Descriptor::to_bytes`].
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 of 16 bytes"));
        Self::from_words([word(0), word(8)])
    }

    /// Validates everything but the lease word. `slot_size` is the size of the slot's class, if the
    /// slot exists.
    pub fn check_bounds(&self, slot_size: Option<u32>) -> Result<(), DescriptorError> {
        let size = slot_size.ok_or(DescriptorError::NoSuchSlot)?;
        // Order of `contract/memory.md`: all implementations report the same fault for the shared
        // vectors.
        match self {
            Self { generation: 0, .. } => Err(DescriptorError::Generation),
            _ if !self.offset.is_multiple_of(8) => Err(DescriptorError::Unaligned),
            _ if (self.length as usize) < envelope::ENVELOPE_BYTES => {
                Err(DescriptorError::TooShort)
            }
            // u64 arithmetic: offset + length of a hostile descriptor can overflow u32.
            _ if u64::from(self.offset) + u64::from(self.length) > u64::from(size) => {
                Err(DescriptorError::TooLong)
            }
            _ => Ok(()),
        }
    }
}

/// Reason why a descriptor is invalid; the sender is faulty or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// The pool has no such class or index.
    #[error("the descriptor names a slot that the pool does not have")]
    NoSuchSlot,
    /// The generation is 0.
    #[error("the descriptor has generation 0")]
    Generation,
    /// The offset is not a multiple of 8.
    #[error("the descriptor's offset is not a multiple of 8")]
    Unaligned,
    /// The length is too small for an envelope.
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
        fn a_descriptor_survives_decoding_and_encoding(bytes: [u8; 16]) {
            prop_assert_eq!(Descriptor::from_bytes(bytes).to_bytes(), bytes);
        }

        #[test]
        fn an_accepted_descriptor_lies_inside_its_slot(bytes: [u8; 16], size in 64u32..1 << 21) {
            let descriptor = Descriptor::from_bytes(bytes);
            if descriptor.check_bounds(Some(size)).is_ok() {
                let end = descriptor.offset.checked_add(descriptor.length).unwrap();
                prop_assert!(end <= size && descriptor.length >= 64 && descriptor.offset.is_multiple_of(8));
            }
        }
    }

    #[test]
    fn a_length_that_wraps_is_refused() {
        let descriptor = Descriptor {
            slot: SlotId::new(0, 0),
            generation: 1,
            offset: 4096,
            length: u32::MAX - 4000,
        };
        assert_eq!(
            descriptor.check_bounds(Some(1 << 20)),
            Err(DescriptorError::TooLong)
        );
    }
}
