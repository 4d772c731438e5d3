//! Checks of pseudo-header fields that the `h3` crate leaves out: it keeps the last of several, in
//! any order, and drops those of trailers (RFC 9114 section 4.3 forbids all three).
//!
//! A scan reads along with `h3`: frames (RFC 9114 section 7.1), and in HEADERS frames the names of
//! the field lines (RFC 9204 section 4.5). Values are skipped. Whatever is malformed otherwise is
//! left to `h3`. The dynamic table is never used, because the server announces none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Type of a HEADERS frame.
const HEADERS_FRAME: u64 = 1;
/// Longest frame head: two integers of 8 bytes.
const MAX_FRAME_HEAD_BYTES: usize = 16;

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

    /// Returns whether pseudo-header fields of the head are repeated, late or not a request's.
    pub(super) fn in_head(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::HEAD != 0
    }

    /// Returns whether the trailers have a pseudo-header field.
    pub(super) fn in_trailers(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::TRAILERS != 0
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
        } else if field_names(&section).any(|name| name.is_some()) {
            self.faults.set(PseudoHeaderFaults::TRAILERS);
        }
    }
}

/// Returns whether the pseudo-header fields of a head come first, once each, and are a request's.
fn is_valid_head(section: &[u8]) -> bool {
    let (mut seen, mut has_fields) = (pseudo::STATUS, false);
    for name in field_names(section) {
        match name {
            None => has_fields = true,
            Some(name) if has_fields || seen & name != 0 => return false,
            Some(name) => seen |= name,
        }
    }
    true
}

/// Returns for each field line which pseudo-header field it is; `None`: another field. Ends where
/// the section is malformed.
fn field_names(section: &[u8]) -> impl Iterator<Item = Option<u8>> {
    // The prefix (RFC 9204 section 4.5.1): the required insert count, and the base.
    let lines = read_prefix_int(section, 8).and_then(|(_, rest)| Some(read_prefix_int(rest, 7)?.1));
    let mut rest = lines.unwrap_or_default();
    std::iter::from_fn(move || {
        let (name, after) = read_line(rest)?;
        rest = after;
        Some(name)
    })
}

/// Reads a field line (RFC 9204 sections 4.5.2, 4.5.4 and 4.5.6).
fn read_line(line: &[u8]) -> Option<(Option<u8>, &[u8])> {
    const STATIC_INDEXED: u8 = 0x40;
    const STATIC_NAME: u8 = 0x10;
    const HUFFMAN_NAME: u8 = 0x08;
    let first = *line.first()?;
    match first {
        0x80.. => {
            let (index, rest) = read_prefix_int(line, 6)?;
            (first & STATIC_INDEXED != 0).then(|| (static_name(index), rest))
        }
        0x40.. => {
            let (index, rest) = read_prefix_int(line, 4)?;
            let (_, rest) = read_string(rest, 7)?;
            (first & STATIC_NAME != 0).then(|| (static_name(index), rest))
        }
        0x20.. => {
            let (name, rest) = read_string(line, 3)?;
            let (_, rest) = read_string(rest, 7)?;
            Some((literal_name(name, first & HUFFMAN_NAME != 0), rest))
        }
        // References to the dynamic table.
        _ => None,
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

fn literal_name(name: &[u8], is_huffman: bool) -> Option<u8> {
    LITERAL_NAMES
        .iter()
        .find(|(_, text, code)| name == if is_huffman { *code } else { *text })
        .map(|(bit, ..)| *bit)
}

fn read_string(bytes: &[u8], prefix_bits: u32) -> Option<(&[u8], &[u8])> {
    let (length, rest) = read_prefix_int(bytes, prefix_bits)?;
    rest.split_at_checked(usize::try_from(length).ok()?)
}

/// Reads an integer with a prefix of `bits` bits (RFC 7541 section 5.1).
fn read_prefix_int(bytes: &[u8], bits: u32) -> Option<(u64, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let max = u8::MAX >> (8 - bits);
    let mut value = u64::from(first & max);
    if value < u64::from(max) {
        return Some((value, rest));
    }
    // More would not fit, and no section is that long.
    for shift in (0..56).step_by(7) {
        let (byte, after) = rest.split_first()?;
        rest = after;
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
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
mod tests {
    use super::*;

    const GET: &[u8] = &[0x80 | 0x40 | 17];
    const PATH: &[u8] = &[0x80 | 0x40 | 1];
    const HTTPS: &[u8] = &[0x80 | 0x40 | 23];
    const ORIGIN: &[u8] = b"\x50\x03abc"; // :authority by its index, with a literal value
    const PLAIN_PATH: &[u8] = b"\x25:path\x02/b";
    const HUFFMAN_PATH: &[u8] = b"\x2c\xb9\x58\xd3\x3f\x02/b";
    const STATUS: &[u8] = &[0x80 | 0x40 | 25];
    const FIELD: &[u8] = b"\x21x\x01y";

    /// Returns the frames of a request with these lines in its head and its trailers.
    fn frames(head: &[&[u8]], trailers: Option<&[&[u8]]>) -> Vec<u8> {
        let mut all = vec![0x21, 2, 0, 0]; // an unknown frame, which is allowed before the head
        for lines in [Some(head), trailers].into_iter().flatten() {
            let section = [&[0, 0], lines.concat().as_slice()].concat();
            all.extend([1, 0x40, section.len() as u8]); // a length of two bytes
            all.extend(section);
            all.extend(b"\0\x03abc"); // DATA
        }
        all
    }

    /// Returns the faults of head and trailers, however the bytes are cut.
    fn scan(head: &[&[u8]], trailers: Option<&[&[u8]]>) -> (bool, bool) {
        let bytes = frames(head, trailers);
        let results = [1, 2, 3, 7, bytes.len()].map(|size| {
            let mut scan = PseudoHeaderScan::default();
            bytes.chunks(size).for_each(|piece| scan.read(piece));
            (scan.faults.in_head(), scan.faults.in_trailers())
        });
        assert!(results.iter().all(|result| *result == results[0]));
        results[0]
    }

    #[test]
    fn pseudo_headers_come_first_and_once() {
        let good: &[&[u8]] = &[GET, HTTPS, ORIGIN, PATH, FIELD, FIELD];
        assert_eq!(scan(good, None), (false, false));
        assert_eq!(
            scan(&[GET, HTTPS, ORIGIN, HUFFMAN_PATH, FIELD], None),
            (false, false)
        );
        assert_eq!(scan(good, Some(&[FIELD])), (false, false));
        let repeated: [&[&[u8]]; 4] = [
            &[GET, PATH, PATH],
            &[GET, PATH, PLAIN_PATH],
            &[GET, PLAIN_PATH, HUFFMAN_PATH],
            &[GET, GET, PATH],
        ];
        for head in repeated {
            assert_eq!(scan(head, None), (true, false), "{head:?}");
        }
        assert_eq!(scan(&[GET, PATH, FIELD, HTTPS], None), (true, false));
        assert_eq!(scan(&[GET, PATH, HTTPS, STATUS], None), (true, false));
    }

    #[test]
    fn trailers_have_none() {
        for line in [PATH, PLAIN_PATH, HUFFMAN_PATH, STATUS] {
            let found = scan(&[GET, PATH], Some(&[FIELD, line]));
            assert_eq!(found, (false, true), "{line:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes: Vec<u8>) {
            PseudoHeaderScan::default().read(&bytes);
            field_names(&bytes).count();
        }
    }
}
