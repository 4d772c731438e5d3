//! Whole frames out of bytes that come as they like.

use super::IdentityFrameError;

/// Holds what came until a frame is whole. Who reads puts its bytes into [`reserve`](Self::room), and asks for a [`whole`](Self::whole) one first.
#[derive(Debug)]
pub struct FrameBuffer {
    buffer: Vec<u8>,
    max_frame_bytes: usize,
}

impl FrameBuffer {
    /// For frames of at most so many bytes, without their length.
    pub fn with_limit(max_frame_bytes: usize) -> Self {
        Self {
            buffer: Vec::new(),
            max_frame_bytes: max_frame_bytes,
        }
    }

    /// Where to put what is read, behind what is there; with room for `more` bytes.
    pub fn reserve(&mut self, more: usize) -> &mut Vec<u8> {
        self.buffer.reserve(more);
        &mut self.buffer
    }

    /// Whether nothing of a frame is there.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next frame, without its length, if all of it is there.
    ///
    /// # Errors
    /// [`IdentityFrameError::MessageTooLong`]: nothing after it can be understood.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, IdentityFrameError> {
        let Some(length) = self.buffer.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.max_frame_bytes {
            return Err(IdentityFrameError::TooLong(length));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        let frame = self.buffer[4..4 + length].to_vec();
        self.buffer.drain(..4 + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_come_whole_however_they_were_cut(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..20),
            cuts in proptest::collection::vec(1usize..40, 1..20),
        ) {
            let of = |frame: &Vec<u8>| [&(frame.len() as u32).to_le_bytes()[..], frame].concat();
            let mut bytes = &frames.iter().flat_map(of).collect::<Vec<_>>()[..];
            let (mut pieces, mut read) = (FrameBuffer::with_limit(50), Vec::new());
            for cut in cuts.iter().cycle() {
                while let Some(frame) = pieces.next_frame().unwrap() {
                    read.push(frame);
                }
                if bytes.is_empty() {
                    break;
                }
                let (now, later) = bytes.split_at(bytes.len().min(*cut));
                pieces.reserve(now.len()).extend_from_slice(now);
                bytes = later;
            }
            prop_assert!(pieces.is_empty());
            prop_assert_eq!(read, frames);
        }
    }

    #[test]
    fn a_frame_has_a_bound_before_its_bytes_are_there() {
        let mut pieces = FrameBuffer::with_limit(7);
        pieces.reserve(4).extend_from_slice(&8u32.to_le_bytes());
        assert_eq!(pieces.next_frame(), Err(IdentityFrameError::TooLong(8)));
    }
}
