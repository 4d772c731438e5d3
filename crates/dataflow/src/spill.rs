//! Queue on disk for frames that wait for room at their consumer.
//!
//! First in, first out, in one file. The file is unlinked as soon as it is open, so it disappears
//! with the process, however that ends. When all frames are read, the file is truncated and starts
//! again.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;

use crate::frame::{EdgeFrame, FrameKind, HEADER_BYTES, MalformedFrame};

/// A queue on disk with a size limit.
#[derive(Debug)]
pub struct SpillQueue {
    file: File,
    limit: u64,
    /// Start of the next frame to read.
    read_offset: u64,
    /// End of the last frame.
    write_offset: u64,
    /// Kind and payload size of each waiting frame.
    pending_frames: VecDeque<(FrameKind, usize)>,
}

impl SpillQueue {
    /// Creates the file in `folder`; it holds at most `limit` bytes.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn new(folder: &Path, limit: u64) -> io::Result<Self> {
        // The process id and an address on the stack make the name unique for the moment until the
        // file is unlinked.
        let path = folder.join(format!(
            "spill.{}.{:x}",
            std::process::id(),
            std::ptr::from_ref(&limit).addr()
        ));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // Unlinked at once: the kernel frees the blocks when the descriptor closes, also after
        // `kill -9`.
        std::fs::remove_file(&path)?;
        Ok(Self {
            file,
            limit,
            read_offset: 0,
            write_offset: 0,
            pending_frames: VecDeque::new(),
        })
    }

    /// True when no frame waits.
    pub fn is_empty(&self) -> bool {
        self.pending_frames.is_empty()
    }

    /// Number of waiting frames.
    pub fn len(&self) -> usize {
        self.pending_frames.len()
    }

    /// Bytes of waiting frames.
    pub fn pending_bytes(&self) -> u64 {
        self.write_offset - self.read_offset
    }

    /// True when a payload of `bytes` fits. Read frames keep their space until the queue is empty.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.write_offset + (HEADER_BYTES + bytes) as u64 <= self.limit
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn push(&mut self, kind: FrameKind, payload: &Bytes) -> io::Result<()> {
        // No sequence number yet: frames are numbered when they leave the queue, in the order in
        // which they are sent.
        let frame = EdgeFrame::unnumbered(kind, payload.clone());
        self.file
            .write_all_at(&frame.encode_header(), self.write_offset)?;
        self.file
            .write_all_at(payload, self.write_offset + HEADER_BYTES as u64)?;
        self.write_offset += (HEADER_BYTES + payload.len()) as u64;
        self.pending_frames.push_back((kind, payload.len()));
        Ok(())
    }

    /// Kind and payload size of the first frame.
    pub fn peek_front(&self) -> Option<(FrameKind, usize)> {
        self.pending_frames.front().copied()
    }

    /// Removes the first frame.
    ///
    /// # Errors
    /// Errors of the disk, and bytes that differ from what was written.
    pub fn pop(&mut self) -> io::Result<Option<(FrameKind, Bytes)>> {
        let Some((kind, length)) = self.pending_frames.pop_front() else {
            return Ok(None);
        };
        let mut bytes = vec![0; HEADER_BYTES + length];
        self.file.read_exact_at(&mut bytes, self.read_offset)?;
        self.read_offset += bytes.len() as u64;
        let mut payload = Bytes::from(bytes);
        let header = payload.split_to(HEADER_BYTES);
        verify_frame(&header, &payload).map_err(io::Error::other)?;
        // The only moment at which space is reclaimed: holes in front of unread frames would need a
        // second file.
        if self.pending_frames.is_empty() {
            (self.read_offset, self.write_offset) = (0, 0);
            self.file.set_len(0)?;
        }
        Ok(Some((kind, payload)))
    }
}

/// Checks length and checksum. The sequence number is 0, which
/// [`crate::frame::FrameHeader::parse`] would refuse.
fn verify_frame(head: &Bytes, payload: &Bytes) -> Result<(), MalformedFrame> {
    let kind = FrameKind::try_from(head[4])?;
    let expected_header = EdgeFrame::unnumbered(kind, payload.clone()).encode_header();
    if expected_header[..] == head[..] {
        Ok(())
    } else {
        Err(MalformedFrame::ChecksumMismatch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_order_and_no_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = SpillQueue::new(folder.path(), 1000).unwrap();
        for round in 0..3_u8 {
            for at in 0..5_u8 {
                spill
                    .push(
                        FrameKind::Data,
                        &Bytes::from(vec![at; usize::from(at) * 10]),
                    )
                    .unwrap();
            }
            spill.push(FrameKind::End, &Bytes::new()).unwrap();
            assert_eq!(spill.peek_front(), Some((FrameKind::Data, 0)));
            for at in 0..5_u8 {
                let popped = spill.pop().unwrap().unwrap();
                assert_eq!(
                    popped,
                    (FrameKind::Data, Bytes::from(vec![at; usize::from(at) * 10])),
                    "round {round}"
                );
            }
            assert_eq!(spill.pop().unwrap(), Some((FrameKind::End, Bytes::new())));
            assert!(
                spill.is_empty() && spill.pending_bytes() == 0 && spill.pop().unwrap().is_none()
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn frames_beyond_the_limit_and_damaged_frames_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = SpillQueue::new(folder.path(), 100).unwrap();
        assert!(spill.has_room_for(80) && !spill.has_room_for(81));
        spill
            .push(FrameKind::Data, &Bytes::from_static(b"something"))
            .unwrap();
        assert!(!spill.has_room_for(80));
        spill.file.write_all_at(b"x", HEADER_BYTES as u64).unwrap();
        assert!(spill.pop().is_err());
    }
}
