//! Assembly of bodies that arrive in parts, within bounds. Pure.

use bytes::{Bytes, BytesMut};

/// A partly received body.
#[derive(Debug)]
pub struct BodyAssembly<T> {
    /// Content of the first part, kept for the end.
    pub first: T,
    body: BytesMut,
    max_bytes: usize,
}

/// The body exceeds the receiver's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is longer than {0} bytes")]
pub struct BodyTooLong(pub usize);

impl<T> BodyAssembly<T> {
    /// Starts an assembly. The sender's `total` only sizes the first allocation, up to 1 MiB.
    pub fn new(first: T, total: u64, bound: usize) -> Self {
        // 1 MiB: a sender that declares more than it sends reserves little memory.
        let reserve = usize::try_from(total).unwrap_or(0).min(bound).min(1 << 20);
        Self {
            first,
            body: BytesMut::with_capacity(reserve),
            max_bytes: bound,
        }
    }

    /// Extends the body by `bytes` bytes and returns them, to be filled in.
    pub fn grow_body(&mut self, bytes: usize) -> Result<&mut [u8], BodyTooLong> {
        let start = self.body.len();
        if bytes > self.max_bytes - start {
            return Err(BodyTooLong(self.max_bytes));
        }
        self.body.resize(start + bytes, 0);
        Ok(&mut self.body[start..])
    }

    /// Returns the first part's content and the whole body.
    pub fn into_parts(self) -> (T, Bytes) {
        (self.first, self.body.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_assembled_body_is_the_concatenation_of_its_parts(parts: Vec<Vec<u8>>, total: u64, bound in 0usize..2000) {
            let mut assembly = BodyAssembly::new((), total, bound);
            let mut whole = Vec::new();
            for part in &parts {
                let fits = whole.len() + part.len() <= bound;
                let grown = assembly.grow_body(part.len());
                prop_assert_eq!(grown.is_ok(), fits);
                if let Ok(room) = grown {
                    room.copy_from_slice(part);
                    whole.extend_from_slice(part);
                }
            }
            prop_assert_eq!(assembly.into_parts().1, whole);
        }
    }
}
