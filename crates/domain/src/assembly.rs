//! Bodies that come in parts, put together within bounds. Pure.

use bytes::{Bytes, BytesMut};

/// What is there of a body.
#[derive(Debug)]
pub struct Assembly<T> {
    /// What came with the first part: kept for the end.
    pub first: T,
    body: BytesMut,
    bound: usize,
}

/// The body is longer than the receiver takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is longer than {0} bytes")]
pub struct TooLong(pub usize);

impl<T> Assembly<T> {
    /// `total` is what the sender says: believed only as far as it saves growing.
    pub fn new(first: T, total: u64, bound: usize) -> Self {
        let reserve = usize::try_from(total).unwrap_or(0).min(bound).min(1 << 20);
        Self { first, body: BytesMut::with_capacity(reserve), bound }
    }

    /// Room for the next part, to be filled in.
    pub fn grow(&mut self, bytes: usize) -> Result<&mut [u8], TooLong> {
        let start = self.body.len();
        if bytes > self.bound - start {
            return Err(TooLong(self.bound));
        }
        self.body.resize(start + bytes, 0);
        Ok(&mut self.body[start..])
    }

    /// The whole.
    pub fn finish(self) -> (T, Bytes) {
        (self.first, self.body.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_whole_is_the_sum_of_its_parts(parts: Vec<Vec<u8>>, total: u64, bound in 0usize..2000) {
            let mut assembly = Assembly::new((), total, bound);
            let mut whole = Vec::new();
            for part in &parts {
                let fits = whole.len() + part.len() <= bound;
                let grown = assembly.grow(part.len());
                prop_assert_eq!(grown.is_ok(), fits);
                if let Ok(room) = grown {
                    room.copy_from_slice(part);
                    whole.extend_from_slice(part);
                }
            }
            prop_assert_eq!(assembly.finish().1, whole);
        }
    }
}
