//! Frames of a few bytes, as slow callers send them.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Maximum bytes of frames that are put together.
const MAX_MERGED_BYTES: usize = 4096;

/// Adds a frame at the end. Small ones are put together: a frame of one byte occupies 32 bytes more,
/// which no bound counts, and may keep a larger buffer.
pub(super) fn push_merged(frames: &mut VecDeque<Bytes>, data: Bytes) {
    let is_small = |last: &Bytes| last.len() + data.len() <= MAX_MERGED_BYTES;
    let Some(last) = frames.back_mut().filter(|last| is_small(last)) else {
        frames.push_back(data);
        return;
    };
    let mut merged = std::mem::take(last)
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    merged.extend_from_slice(&data);
    *last = merged.freeze();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_are_put_together_in_their_order() {
        let mut frames = VecDeque::new();
        let bytes: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        for byte in &bytes {
            push_merged(&mut frames, Bytes::copy_from_slice(&[*byte]));
        }
        assert_eq!(frames.len(), 3);
        push_merged(&mut frames, vec![0; MAX_MERGED_BYTES].into());
        assert_eq!(frames.len(), 4, "large ones are not copied");
        let read: Vec<u8> = frames.iter().flatten().copied().collect();
        assert_eq!(read[..bytes.len()], bytes);
    }
}
