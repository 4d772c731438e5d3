//! Frames that wait on disk for room at their consumer.
//!
//! First in, first out, in one file that nobody else sees: it has no name any more once it is open, so nothing stays behind
//! whatever ends the process. When all has been read, it begins anew.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;

use crate::frame::{Frame, HEAD, Kind, Malformed};

/// A queue on disk, with a bound.
#[derive(Debug)]
pub struct Spill {
    file: File,
    limit: u64,
    /// Where the next frame is read from, and written to.
    read: u64,
    written: u64,
    /// Kind and bytes of each payload.
    frames: VecDeque<(Kind, usize)>,
}

impl Spill {
    /// In that folder, with so many bytes at most.
    ///
    /// # Errors
    /// The disk's.
    pub fn new(folder: &Path, limit: u64) -> io::Result<Self> {
        let path = folder.join(format!("spill.{}.{:x}", std::process::id(), std::ptr::from_ref(&limit).addr()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Self { file, limit, read: 0, written: 0, frames: VecDeque::new() })
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How many frames wait.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.written - self.read
    }

    /// Whether so many more fit. What has been read takes its place until all is.
    pub fn admits(&self, bytes: usize) -> bool {
        self.written + (HEAD + bytes) as u64 <= self.limit
    }

    /// At the end.
    ///
    /// # Errors
    /// The disk's.
    pub fn push(&mut self, kind: Kind, payload: &Bytes) -> io::Result<()> {
        let frame = Frame::plain(kind, payload.clone());
        self.file.write_all_at(&frame.head(), self.written)?;
        self.file.write_all_at(payload, self.written + HEAD as u64)?;
        self.written += (HEAD + payload.len()) as u64;
        self.frames.push_back((kind, payload.len()));
        Ok(())
    }

    /// Kind and bytes of what is first.
    pub fn front(&self) -> Option<(Kind, usize)> {
        self.frames.front().copied()
    }

    /// What is first.
    ///
    /// # Errors
    /// The disk's, and bytes that are not those that were written.
    pub fn pop(&mut self) -> io::Result<Option<(Kind, Bytes)>> {
        let Some((kind, length)) = self.frames.pop_front() else { return Ok(None) };
        let mut bytes = vec![0; HEAD + length];
        self.file.read_exact_at(&mut bytes, self.read)?;
        self.read += bytes.len() as u64;
        let mut payload = Bytes::from(bytes);
        let head = payload.split_to(HEAD);
        check(&head, &payload).map_err(io::Error::other)?;
        if self.frames.is_empty() {
            (self.read, self.written) = (0, 0);
            self.file.set_len(0)?;
        }
        Ok(Some((kind, payload)))
    }
}

/// The head has number 0, which no frame on an edge has: only length and checksum are looked at.
fn check(head: &Bytes, payload: &Bytes) -> Result<(), Malformed> {
    let kind = Kind::try_from(head[4])?;
    let written = Frame::plain(kind, payload.clone()).head();
    if written[..] == head[..] { Ok(()) } else { Err(Malformed::Check) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_no_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(folder.path(), 1000).unwrap();
        for round in 0..3_u8 {
            for at in 0..5_u8 {
                spill.push(Kind::Data, &Bytes::from(vec![at; usize::from(at) * 10])).unwrap();
            }
            spill.push(Kind::End, &Bytes::new()).unwrap();
            assert_eq!(spill.front(), Some((Kind::Data, 0)));
            for at in 0..5_u8 {
                let popped = spill.pop().unwrap().unwrap();
                assert_eq!(popped, (Kind::Data, Bytes::from(vec![at; usize::from(at) * 10])), "round {round}");
            }
            assert_eq!(spill.pop().unwrap(), Some((Kind::End, Bytes::new())));
            assert!(spill.is_empty() && spill.bytes() == 0 && spill.pop().unwrap().is_none());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn has_a_bound_and_sees_faults() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(folder.path(), 100).unwrap();
        assert!(spill.admits(80) && !spill.admits(81));
        spill.push(Kind::Data, &Bytes::from_static(b"something")).unwrap();
        assert!(!spill.admits(80));
        spill.file.write_all_at(b"x", HEAD as u64).unwrap();
        assert!(spill.pop().is_err());
    }
}
