//! Checks of pseudo-header fields that the `h3` crate leaves out: it keeps the last of several, in
//! any order, and drops those of trailers (RFC 9114 section 4.3 forbids all three).
//!
//! A scan reads along with `h3`: frames (RFC 9114 section 7.1), and in HEADERS frames the names of
//! the field lines (RFC 9204 section 4.5). Values are skipped. A section that cannot be read to its
//! end is malformed, because `h3` could read it differently. The dynamic table is never used,
//! because the server announces none.
//!
//! The scan also notices a stream that ends inside a frame: `h3` takes the frame for complete if
//! the end arrives later than the frame's last bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Type of a HEADERS frame.
const HEADERS_FRAME: u64 = 1;
/// Longest frame head: two integers of 8 bytes.
const MAX_FRAME_HEAD_BYTES: usize = 16;
/// Code of the colon (RFC 7541 appendix B), in the upper 7 bits.
const COLON_CODE: u8 = 0b1011_1000;
/// Continuation bytes of an integer that `h3` reads. More would not fit into 64 bits.
const MAX_CONTINUATION_BYTES: u32 = 9;

/// Pseudo-header fields, as bits.
mod pseudo {
    pub(super) const AUTHORITY: u8 = 1;
    pub(super) const PATH: u8 = 2;
    pub(super) const METHOD: u8 = 4;
    pub(super) const SCHEME: u8 = 8;
    pub(super) const PROTOCOL: u8 = 16;
    /// Not allowed in requests.
    pub(super) const STATUS: u8 = 32;
}

/// Names as text, and in the code of RFC 7541 appendix B.
const LITERAL_NAMES: [(u8, &[u8], &[u8]); 6] = [
    (
        pseudo::AUTHORITY,
        b":authority",
        b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f",
    ),
    (pseudo::PATH, b":path", b"\xb9\x58\xd3\x3f"),
    (pseudo::METHOD, b":method", b"\xb9\x49\x53\x39\xe4"),
    (pseudo::SCHEME, b":scheme", b"\xb8\x82\x4e\x5a\x4b"),
    (
        pseudo::PROTOCOL,
        b":protocol",
        b"\xb9\x5d\x87\x49\xc8\x7a\x3f",
    ),
    (pseudo::STATUS, b":status", b"\xb8\x84\x8d\x36\xa3"),
];

/// Faults that a scan has found, shared with the reader of the request.
#[derive(Debug, Clone, Default)]
pub(super) struct PseudoHeaderFaults(Arc<AtomicU8>);

impl PseudoHeaderFaults {
    const HEAD: u8 = 1;
    const TRAILERS: u8 = 2;
    const CUT_FRAME: u8 = 4;

    /// Returns whether pseudo-header fields of the head are repeated, late or not a request's, or
    /// the head cannot be checked.
    pub(super) fn in_head(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::HEAD != 0
    }

    /// Returns whether the trailers have a pseudo-header field, or cannot be checked.
    pub(super) fn in_trailers(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::TRAILERS != 0
    }

    /// Returns whether the stream ended inside a frame.
    pub(super) fn in_last_frame(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::CUT_FRAME != 0
    }

    fn set(&self, fault: u8) {
        self.0.fetch_or(fault, Ordering::Relaxed);
    }
}

/// Scan of a request's stream.
#[derive(Debug, Default)]
pub(super) struct PseudoHeaderScan {
    faults: PseudoHeaderFaults,
    /// Start of a frame head that has not arrived whole.
    frame_head: Vec<u8>,
    /// Bytes of the current frame that are still to come.
    frame_left: u64,
    /// Content of the HEADERS frame that is arriving.
    section: Option<Vec<u8>>,
    is_head_read: bool,
}

impl PseudoHeaderScan {
    /// Returns the faults as they are found. They are known before `h3` has the section.
    pub(super) fn faults(&self) -> PseudoHeaderFaults {
        self.faults.clone()
    }

    /// Reads received bytes. The limit of unread bytes bounds what is kept of a head.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.frame_left == 0 {
                bytes = self.read_frame_head(bytes);
                continue;
            }
            let taken =
                usize::try_from(self.frame_left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (content, rest) = bytes.split_at(taken);
            if let Some(section) = &mut self.section {
                section.extend_from_slice(content);
            }
            self.frame_left -= taken as u64;
            self.end_frame();
            bytes = rest;
        }
    }

    /// Notes the end of the stream.
    pub(super) fn end_stream(&self) {
        if self.frame_left > 0 || !self.frame_head.is_empty() {
            self.faults.set(PseudoHeaderFaults::CUT_FRAME);
        }
    }

    /// Reads a byte of a frame head; returns the bytes after it.
    fn read_frame_head<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (byte, rest) = bytes.split_at(1);
        self.frame_head.extend_from_slice(byte);
        let whole = read_varint(&self.frame_head)
            .and_then(|(kind, after)| Some((kind, read_varint(after)?.0)));
        if let Some((kind, length)) = whole {
            self.frame_head.clear();
            self.frame_left = length;
            self.section = (kind == HEADERS_FRAME).then(Vec::new);
            self.end_frame();
        }
        debug_assert!(self.frame_head.len() <= MAX_FRAME_HEAD_BYTES);
        rest
    }

    fn end_frame(&mut self) {
        if self.frame_left > 0 {
            return;
        }
        let Some(section) = self.section.take() else {
            return;
        };
        // A second section holds the trailers (RFC 9114 section 4.1).
        if !std::mem::replace(&mut self.is_head_read, true) {
            if !is_valid_head(&section) {
                self.faults.set(PseudoHeaderFaults::HEAD);
            }
        } else if !is_valid_trailers(&section) {
            self.faults.set(PseudoHeaderFaults::TRAILERS);
        }
    }
}

/// A section, or a name in it, that `h3` could read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UnreadableSection;

/// Returns whether the pseudo-header fields of a head come first, once each, and are a request's.
fn is_valid_head(section: &[u8]) -> bool {
    let Ok(names) = field_names(section) else {
        return false;
    };
    let (mut seen, mut has_fields) = (pseudo::STATUS, false);
    for name in names {
        match name {
            Ok(None) => has_fields = true,
            Ok(Some(name)) if !has_fields && seen & name == 0 => seen |= name,
            Ok(Some(_)) | Err(UnreadableSection) => return false,
        }
    }
    true
}

/// Returns whether trailers have no pseudo-header field.
fn is_valid_trailers(section: &[u8]) -> bool {
    field_names(section).is_ok_and(|mut names| names.all(|name| name == Ok(None)))
}

/// Returns for each field line which pseudo-header field it is; `None`: another field. The last
/// item is an error if the section cannot be read to its end.
fn field_names(
    section: &[u8],
) -> Result<impl Iterator<Item = Result<Option<u8>, UnreadableSection>>, UnreadableSection> {
    // The prefix (RFC 9204 section 4.5.1): the required insert count, and the base.
    let (_, rest) = read_prefix_int(section, 8)?;
    let (_, mut rest) = read_prefix_int(rest, 7)?;
    Ok(std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let line = read_line(rest);
        rest = line.map_or(&[], |(_, after)| after);
        Some(line.map(|(name, _)| name))
    }))
}

/// Reads a field line (RFC 9204 sections 4.5.2, 4.5.4 and 4.5.6).
fn read_line(line: &[u8]) -> Result<(Option<u8>, &[u8]), UnreadableSection> {
    const STATIC_INDEXED: u8 = 0x40;
    const STATIC_NAME: u8 = 0x10;
    const HUFFMAN_NAME: u8 = 0x08;
    match *line.first().ok_or(UnreadableSection)? {
        first @ 0x80.. if first & STATIC_INDEXED != 0 => {
            let (index, rest) = read_prefix_int(line, 6)?;
            Ok((static_name(index), rest))
        }
        first @ 0x40..0x80 if first & STATIC_NAME != 0 => {
            let (index, rest) = read_prefix_int(line, 4)?;
            let (_, rest) = read_string(rest, 7)?;
            Ok((static_name(index), rest))
        }
        first @ 0x20..0x40 => {
            let (name, rest) = read_string(line, 3)?;
            let (_, rest) = read_string(rest, 7)?;
            Ok((literal_name(name, first & HUFFMAN_NAME != 0)?, rest))
        }
        // References to the dynamic table.
        _ => Err(UnreadableSection),
    }
}

/// Names of the static table (RFC 9204 appendix A).
fn static_name(index: u64) -> Option<u8> {
    match index {
        0 => Some(pseudo::AUTHORITY),
        1 => Some(pseudo::PATH),
        15..=21 => Some(pseudo::METHOD),
        22 | 23 => Some(pseudo::SCHEME),
        24..=28 | 63..=71 => Some(pseudo::STATUS),
        _ => None,
    }
}

/// Returns which pseudo-header field a name is. A name in another form is an error if it begins
/// with a colon: `h3` ignores surplus padding of the code.
fn literal_name(name: &[u8], is_huffman: bool) -> Result<Option<u8>, UnreadableSection> {
    let known = LITERAL_NAMES
        .iter()
        .find(|(_, text, code)| name == if is_huffman { *code } else { *text })
        .map(|(bit, ..)| *bit);
    let begins_with_colon = name.first().is_some_and(|first| match is_huffman {
        true => first & 0xfe == COLON_CODE,
        false => *first == b':',
    });
    match known {
        None if begins_with_colon => Err(UnreadableSection),
        known => Ok(known),
    }
}

fn read_string(bytes: &[u8], prefix_bits: u32) -> Result<(&[u8], &[u8]), UnreadableSection> {
    let (length, rest) = read_prefix_int(bytes, prefix_bits)?;
    let length = usize::try_from(length).map_err(|_| UnreadableSection)?;
    rest.split_at_checked(length).ok_or(UnreadableSection)
}

/// Reads an integer with a prefix of `bits` bits (RFC 7541 section 5.1).
fn read_prefix_int(bytes: &[u8], bits: u32) -> Result<(u64, &[u8]), UnreadableSection> {
    let (first, mut rest) = bytes.split_first().ok_or(UnreadableSection)?;
    let max = u8::MAX >> (8 - bits);
    let mut value = u64::from(first & max);
    if value < u64::from(max) {
        return Ok((value, rest));
    }
    for position in 0..MAX_CONTINUATION_BYTES {
        let (byte, after) = rest.split_first().ok_or(UnreadableSection)?;
        rest = after;
        value += u64::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            return Ok((value, rest));
        }
    }
    Err(UnreadableSection)
}

/// Reads an integer of QUIC (RFC 9000 section 16).
fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (content, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value = content[1..]
        .iter()
        .fold(u64::from(first & 0x3f), |value, byte| {
            value << 8 | u64::from(*byte)
        });
    Some((value, rest))
}

#[cfg(test)]
mod h3_reader;
#[cfg(test)]
mod tests;
