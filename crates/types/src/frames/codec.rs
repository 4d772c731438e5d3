//! Encoding of frame fields, one after another; integers are little-endian.

use super::IdentityFrameError;
use crate::FunctionId;

/// Reader of the rest of a frame.
#[derive(Debug)]
pub(super) struct FrameReader<'a>(&'a [u8]);

impl<'a> FrameReader<'a> {
    /// Reads a whole frame; bytes left over are an error.
    pub(super) fn read_all<T>(
        frame: &'a [u8],
        read: impl FnOnce(&mut Self) -> Result<T, IdentityFrameError>,
    ) -> Result<T, IdentityFrameError> {
        let mut reader = Self(frame);
        let read = read(&mut reader)?;
        // A longer frame may be of another release, so it must not be half understood.
        if reader.0.is_empty() {
            Ok(read)
        } else {
            Err(IdentityFrameError::Length)
        }
    }

    pub(super) fn take_bytes(&mut self, count: usize) -> Result<&'a [u8], IdentityFrameError> {
        // Checked, because lengths come from the other side of the socket.
        let (bytes, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(IdentityFrameError::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], IdentityFrameError> {
        let (bytes, rest) = self
            .0
            .split_first_chunk()
            .ok_or(IdentityFrameError::Length)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, IdentityFrameError> {
        self.take_array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, IdentityFrameError> {
        self.take_array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, IdentityFrameError> {
        self.take_array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, IdentityFrameError> {
        self.take_array().map(u64::from_le_bytes)
    }

    pub(super) fn take_ip(&mut self) -> Result<[u8; 16], IdentityFrameError> {
        self.take_array()
    }

    /// Reads a list of at most `max_entries`, behind its count in two bytes.
    pub(super) fn take_list<T>(
        &mut self,
        max_entries: usize,
        read: impl Fn(&mut Self) -> Result<T, IdentityFrameError>,
    ) -> Result<Vec<T>, IdentityFrameError> {
        let count = self.u16()? as usize;
        // Before allocation: the count alone could ask for 65,535 entries.
        if count > max_entries {
            return Err(IdentityFrameError::OverLimit);
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// Reads a text behind its length in one byte.
    pub(super) fn take_text(&mut self) -> Result<&'a str, IdentityFrameError> {
        let length = self.u8()?.into();
        std::str::from_utf8(self.take_bytes(length)?).map_err(|_| IdentityFrameError::Name)
    }

    pub(super) fn take_function(&mut self) -> Result<FunctionId, IdentityFrameError> {
        self.take_text()?
            .parse()
            .map_err(|_| IdentityFrameError::Name)
    }
}

/// Writes a list of at most `max_entries`.
pub(super) fn put_list<T>(
    all: &[T],
    max_entries: usize,
    out: &mut Vec<u8>,
    write: impl Fn(&T, &mut Vec<u8>),
) {
    // The reader has the same bound and refuses a longer list as a whole.
    let all = &all[..all.len().min(max_entries).min(u16::MAX.into())];
    out.extend((all.len() as u16).to_le_bytes());
    all.iter().for_each(|one| write(one, out));
}

/// Writes a text. Names are far shorter than 256 bytes; a longer one is cut, and then matches no
/// name.
pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    let text = &text.as_bytes()[..text.len().min(u8::MAX.into())];
    out.push(text.len() as u8);
    out.extend(text);
}
