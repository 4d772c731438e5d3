//! Fields of a frame, one after another; integers are little-endian.

use super::BadFrame;
use crate::FunctionId;

/// The rest of a frame.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads all of a frame: what is left over is a fault.
    pub(super) fn whole<T>(
        frame: &'a [u8],
        read: impl FnOnce(&mut Self) -> Result<T, BadFrame>,
    ) -> Result<T, BadFrame> {
        let mut reader = Self(frame);
        let read = read(&mut reader)?;
        if reader.0.is_empty() { Ok(read) } else { Err(BadFrame::Length) }
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], BadFrame> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(BadFrame::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFrame> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(BadFrame::Length)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, BadFrame> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, BadFrame> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, BadFrame> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, BadFrame> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn ip(&mut self) -> Result<[u8; 16], BadFrame> {
        self.array()
    }

    /// So many entries, at most `most`.
    pub(super) fn many<T>(
        &mut self,
        most: usize,
        read: impl Fn(&mut Self) -> Result<T, BadFrame>,
    ) -> Result<Vec<T>, BadFrame> {
        let count = self.u16()? as usize;
        if count > most {
            return Err(BadFrame::TooMuch);
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// A short text behind its length in one byte.
    pub(super) fn text(&mut self) -> Result<&'a str, BadFrame> {
        let length = self.u8()?.into();
        std::str::from_utf8(self.bytes(length)?).map_err(|_| BadFrame::Name)
    }

    pub(super) fn function(&mut self) -> Result<FunctionId, BadFrame> {
        self.text()?.parse().map_err(|_| BadFrame::Name)
    }
}

/// So many entries as fit into `most`.
pub(super) fn put_many<T>(all: &[T], most: usize, out: &mut Vec<u8>, write: impl Fn(&T, &mut Vec<u8>)) {
    let all = &all[..all.len().min(most).min(u16::MAX.into())];
    out.extend((all.len() as u16).to_le_bytes());
    all.iter().for_each(|one| write(one, out));
}

/// A name is far shorter than 256 bytes; one that is not is cut, and then nobody's.
pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    let text = &text.as_bytes()[..text.len().min(u8::MAX.into())];
    out.push(text.len() as u8);
    out.extend(text);
}
