//! Which bytes of two copies come next. Pure.

use bytes::{Buf, Bytes};

/// Bytes that come ahead are the first ones of a way; at most so many, both sides keep to it.
pub(super) const MOST: u64 = 16 << 10;

/// One direction, as its reader sees it: everything comes over the relay, and some of the beginning over the line, too.
#[derive(Debug, Default)]
pub(super) struct Joint {
    /// Given to the reader.
    given: u64,
    /// Came over the relay.
    relayed: u64,
}

impl Joint {
    /// What came over the line: the next bytes, if it has any of them.
    pub(super) fn line(&mut self, at: u64, bytes: Bytes) -> Option<Bytes> {
        let fits = at.checked_add(bytes.len() as u64).is_some_and(|end| end <= MOST);
        // What would leave a gap is no use: it comes over the relay.
        if fits && at <= self.given { self.give(at, bytes) } else { None }
    }

    /// What came over the relay, likewise.
    pub(super) fn relay(&mut self, bytes: Bytes) -> Option<Bytes> {
        let at = self.relayed;
        self.relayed += bytes.len() as u64;
        self.give(at, bytes)
    }

    fn give(&mut self, at: u64, mut bytes: Bytes) -> Option<Bytes> {
        let known = usize::try_from(self.given - at).unwrap_or(usize::MAX);
        if known >= bytes.len() {
            return None;
        }
        bytes.advance(known);
        self.given += bytes.len() as u64;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"the first bytes of a way, of which each is given once";

    proptest! {
        /// Whatever comes over the line, of the true text, in whatever pieces and when: the reader gets the text.
        #[test]
        fn every_byte_is_given_once(steps in prop::collection::vec((any::<bool>(), 0..60_u64, 0..20_usize), 0..40)) {
            let (mut joint, mut read, mut relay) = (Joint::default(), Vec::new(), 0);
            for (line, at, length) in steps {
                let from = if line { at as usize } else { relay };
                let piece = TEXT.get(from..).unwrap_or_default();
                let piece = Bytes::copy_from_slice(&piece[..length.min(piece.len())]);
                let given = if line {
                    joint.line(at, piece)
                } else {
                    relay += piece.len();
                    joint.relay(piece)
                };
                read.extend(given.unwrap_or_default());
            }
            read.extend(joint.relay(Bytes::from_static(&TEXT[relay..])).unwrap_or_default());
            prop_assert_eq!(read, TEXT);
        }
    }

    #[test]
    fn what_claims_to_be_far_ahead_is_not_believed() {
        let mut joint = Joint::default();
        assert_eq!(joint.line(u64::MAX, Bytes::from_static(b"x")), None);
        assert_eq!(joint.line(0, vec![0; MOST as usize + 1].into()), None);
        assert_eq!(joint.line(1, Bytes::from_static(b"b")), None, "a gap");
        assert_eq!(joint.line(0, Bytes::from_static(b"a")).as_deref(), Some(&b"a"[..]));
    }
}
