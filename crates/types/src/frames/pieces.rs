//! Whole frames out of bytes that come as they like.

use super::BadFrame;

/// Holds what came until a frame is whole. Who reads puts its bytes into [`room`](Self::room), and asks for a [`whole`](Self::whole) one first.
#[derive(Debug)]
pub struct Pieces {
    held: Vec<u8>,
    longest: usize,
}

impl Pieces {
    /// For frames of at most so many bytes, without their length.
    pub fn up_to(longest: usize) -> Self {
        Self { held: Vec::new(), longest }
    }

    /// Where to put what is read, behind what is there; with room for `more` bytes.
    pub fn room(&mut self, more: usize) -> &mut Vec<u8> {
        self.held.reserve(more);
        &mut self.held
    }

    /// Whether nothing of a frame is there.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The next frame, without its length, if all of it is there.
    ///
    /// # Errors
    /// [`BadFrame::TooLong`]: nothing after it can be understood.
    pub fn whole(&mut self) -> Result<Option<Vec<u8>>, BadFrame> {
        let Some(length) = self.held.first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.longest {
            return Err(BadFrame::TooLong(length));
        }
        if self.held.len() < 4 + length {
            return Ok(None);
        }
        let frame = self.held[4..4 + length].to_vec();
        self.held.drain(..4 + length);
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
            let (mut pieces, mut read) = (Pieces::up_to(50), Vec::new());
            for cut in cuts.iter().cycle() {
                while let Some(frame) = pieces.whole().unwrap() {
                    read.push(frame);
                }
                if bytes.is_empty() {
                    break;
                }
                let (now, later) = bytes.split_at(bytes.len().min(*cut));
                pieces.room(now.len()).extend_from_slice(now);
                bytes = later;
            }
            prop_assert!(pieces.is_empty());
            prop_assert_eq!(read, frames);
        }
    }

    #[test]
    fn a_frame_has_a_bound_before_its_bytes_are_there() {
        let mut pieces = Pieces::up_to(7);
        pieces.room(4).extend_from_slice(&8u32.to_le_bytes());
        assert_eq!(pieces.whole(), Err(BadFrame::TooLong(8)));
    }
}
