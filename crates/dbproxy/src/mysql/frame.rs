//! Packets of the MySQL protocol
//! (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_basic_packets.html>).
//!
//! A packet has a length of three bytes, a sequence id of one byte, and the payload. A payload of
//! 16 MiB - 1 bytes or more is split over several packets.

/// Length of a packet that another part follows.
const MAX_PART_BYTES: usize = 0xff_ffff;
/// Kept bytes of a payload: enough for everything that a relay reads in replies.
pub const MAX_KEPT_BYTES: usize = 64;

/// A complete payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MysqlPacket<'a> {
    /// Its first bytes.
    pub head: &'a [u8],
    /// Its whole length in bytes.
    pub length: u64,
    /// The sequence id of its last part.
    pub sequence_id: u8,
}

/// Finds the ends of consecutive payloads, for any chunking.
#[derive(Debug, Default)]
pub struct MysqlFramer {
    header: Vec<u8>,
    /// Bytes of the current part still to come.
    part_bytes_left: usize,
    head: Vec<u8>,
    length: u64,
    /// Set within a payload.
    in_payload: bool,
}

impl MysqlFramer {
    /// Returns whether the framer is between two payloads.
    pub fn is_between_packets(&self) -> bool {
        !self.in_payload && self.header.is_empty()
    }

    /// Returns how many of `bytes` belong to the current payload, and the payload if they complete
    /// it.
    pub fn step(&mut self, bytes: &[u8]) -> (usize, Option<MysqlPacket<'_>>) {
        let mut used = 0;
        while used < bytes.len() {
            if self.header.len() < 4 {
                used += self.read_header(&bytes[used..]);
            } else {
                used += self.read_payload(&bytes[used..]);
            }
            // Checked after the header as well: an empty payload has no bytes that would complete
            // it.
            if self.header.len() == 4 && self.part_bytes_left == 0 && self.finish_part() {
                let number = self.header[3];
                self.header.clear();
                self.in_payload = false;
                return (
                    used,
                    Some(MysqlPacket {
                        head: &self.head,
                        length: self.length,
                        sequence_id: number,
                    }),
                );
            }
        }
        (used, None)
    }

    /// Reads the header of a part.
    fn read_header(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(4 - self.header.len());
        self.header.extend_from_slice(&bytes[..taken]);
        if self.header.len() == 4 {
            // Only the first part starts a payload; later parts continue it.
            if !self.in_payload {
                (self.in_payload, self.length) = (true, 0);
                self.head.clear();
            }
            self.part_bytes_left = self.part_length();
            self.length += self.part_bytes_left as u64;
        }
        taken
    }

    fn read_payload(&mut self, bytes: &[u8]) -> usize {
        let taken = self.part_bytes_left.min(bytes.len());
        let kept = taken.min(MAX_KEPT_BYTES - self.head.len());
        self.head.extend_from_slice(&bytes[..kept]);
        self.part_bytes_left -= taken;
        taken
    }

    fn part_length(&self) -> usize {
        usize::from(self.header[0])
            | usize::from(self.header[1]) << 8
            | usize::from(self.header[2]) << 16
    }

    /// Finishes a part. Returns whether the payload is complete.
    fn finish_part(&mut self) -> bool {
        // A payload of exactly this length is followed by an empty part, so the length alone
        // decides.
        let more = self.part_length() == MAX_PART_BYTES;
        if more {
            self.header.clear();
        }
        !more
    }
}

/// Encodes a payload as one packet. The payload has to be shorter than 16 MiB - 1 bytes.
pub fn encode_packet(number: u8, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() < MAX_PART_BYTES);
    let length = u32::try_from(payload.len())
        .unwrap_or_default()
        .to_le_bytes();
    [&length[..3], &[number], payload].concat()
}

/// Reads the fields of a payload in order.
#[derive(Debug, Clone, Copy)]
pub struct PayloadReader<'a>(pub &'a [u8]);

impl<'a> PayloadReader<'a> {
    /// Reads so many bytes.
    pub fn read_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads one byte.
    pub fn read_byte(&mut self) -> Option<u8> {
        Some(self.read_bytes(1)?[0])
    }

    /// Reads a little-endian number of `size` bytes.
    pub fn read_number(&mut self, size: usize) -> Option<u64> {
        let bytes = self.read_bytes(size)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    /// Reads a length-encoded integer.
    pub fn read_length(&mut self) -> Option<u64> {
        match self.read_byte()? {
            0xfc => self.read_number(2),
            0xfd => self.read_number(3),
            0xfe => self.read_number(8),
            // 0xfb is NULL and 0xff an error; neither is a number.
            0xfb | 0xff => None,
            small => Some(u64::from(small)),
        }
    }

    /// Reads a text that ends with a zero byte.
    pub fn read_text(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(0, self.0)?;
        let text = self.read_bytes(end)?;
        self.read_bytes(1)?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all payloads in `bytes`, read in chunks of `size`: length and head.
    fn all_packets(bytes: &[u8], size: usize) -> Vec<(u64, Vec<u8>, u8)> {
        let (mut packets, mut found) = (MysqlFramer::default(), Vec::new());
        for piece in bytes.chunks(size) {
            let mut used = 0;
            while used < piece.len() {
                let (taken, packet) = packets.step(&piece[used..]);
                used += taken;
                found.extend(
                    packet.map(|packet| (packet.length, packet.head.to_vec(), packet.sequence_id)),
                );
            }
        }
        found
    }

    #[test]
    fn long_and_empty_payloads_are_one_packet() {
        let mut bytes = encode_packet(0, b"");
        bytes.extend([0xff, 0xff, 0xff, 0]);
        bytes.extend(vec![b'x'; MAX_PART_BYTES]);
        bytes.extend(encode_packet(1, b"yy"));
        bytes.extend(encode_packet(7, b"z"));
        let found = all_packets(&bytes, 1_000_000);
        assert_eq!(
            found
                .iter()
                .map(|(length, _, number)| (*length, *number))
                .collect::<Vec<_>>(),
            [(0, 0), (MAX_PART_BYTES as u64 + 2, 1), (1, 7)]
        );
        let mut exact = [0xff, 0xff, 0xff, 0].to_vec();
        exact.extend(vec![b'x'; MAX_PART_BYTES]);
        exact.extend(encode_packet(1, b""));
        assert_eq!(all_packets(&exact, 77_777)[0].0, MAX_PART_BYTES as u64);
    }

    proptest! {
        #[test]
        fn chunking_does_not_change_packets(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..10), size in 1_usize..50) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|payload| encode_packet(3, payload)).collect();
            let found = all_packets(&bytes, size);
            let expected: Vec<_> = payloads.iter().map(|payload| (payload.len() as u64, payload[..payload.len().min(MAX_KEPT_BYTES)].to_vec(), 3)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
