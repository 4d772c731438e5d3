//! Frames from a byte stream that comes in arbitrary pieces.

use super::IdentityFrameError;

/// Buffer of received bytes until a frame is complete. A reader first takes
/// [`next_frame`](Self::next_frame), then reads into [`reserve`](Self::reserve).
#[derive(Debug)]
pub struct FrameBuffer {
    buffer: Vec<u8>,
    max_frame_bytes: usize,
}

impl FrameBuffer {
    /// Creates a buffer for frames of at most so many bytes, without their length.
    pub fn with_limit(max_frame_bytes: usize) -> Self {
        Self {
            buffer: Vec::new(),
            max_frame_bytes,
        }
    }

    /// Returns the buffer to read into, with room for `more` bytes.
    pub fn reserve(&mut self, more: usize) -> &mut Vec<u8> {
        self.buffer.reserve(more);
        &mut self.buffer
    }

    /// Returns whether no byte of a frame is buffered.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Takes the next frame, without its length, if it is complete.
    ///
    /// # Errors
    /// [`IdentityFrameError::TooLong`]: the beginning of the next frame is unknown.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, IdentityFrameError> {
        let Some(length) = self.buffer.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        // Before the bytes are there: a length alone must not make the buffer grow.
        if length > self.max_frame_bytes {
            return Err(IdentityFrameError::TooLong(length));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        // Copied, so that the buffer keeps its allocation for the next frames.
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
