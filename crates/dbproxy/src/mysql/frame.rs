//! Packets of the MySQL protocol (<https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_basic_packets.html>): three bytes of length, one that
//! counts, and the payload. Sixteen megabytes and more go in several.

/// A packet of this length has another part.
const FULL: usize = 0xff_ffff;
/// So much of a payload is kept: enough for all that a relay looks at in replies.
pub const KEPT: usize = 64;

/// A payload whose end was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its first bytes.
    pub head: &'a [u8],
    /// Its whole length.
    pub length: u64,
    /// The number of its last part.
    pub number: u8,
}

/// Finds the ends of payloads, one after the other, whatever the pieces in which they come.
#[derive(Debug, Default)]
pub struct Packets {
    header: Vec<u8>,
    /// Bytes of this part still to come.
    left: usize,
    head: Vec<u8>,
    length: u64,
    /// In the middle of a payload.
    within: bool,
}

impl Packets {
    /// Whether nothing of a packet was seen yet.
    pub fn between(&self) -> bool {
        !self.within && self.header.is_empty()
    }

    /// How many of `bytes` belong to this packet, and the packet if they end it.
    pub fn step(&mut self, bytes: &[u8]) -> (usize, Option<Packet<'_>>) {
        let mut used = 0;
        while used < bytes.len() {
            if self.header.len() < 4 {
                used += self.begin(&bytes[used..]);
            } else {
                used += self.take(&bytes[used..]);
            }
            if self.header.len() == 4 && self.left == 0 && self.part_ended() {
                let number = self.header[3];
                self.header.clear();
                self.within = false;
                return (used, Some(Packet { head: &self.head, length: self.length, number }));
            }
        }
        (used, None)
    }

    /// Reads a part's header.
    fn begin(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(4 - self.header.len());
        self.header.extend_from_slice(&bytes[..taken]);
        if self.header.len() == 4 {
            if !self.within {
                (self.within, self.length) = (true, 0);
                self.head.clear();
            }
            self.left = self.part();
            self.length += self.left as u64;
        }
        taken
    }

    fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = self.left.min(bytes.len());
        let kept = taken.min(KEPT - self.head.len());
        self.head.extend_from_slice(&bytes[..kept]);
        self.left -= taken;
        taken
    }

    fn part(&self) -> usize {
        usize::from(self.header[0]) | usize::from(self.header[1]) << 8 | usize::from(self.header[2]) << 16
    }

    /// A part is over; whether the payload is.
    fn part_ended(&mut self) -> bool {
        let more = self.part() == FULL;
        if more {
            self.header.clear();
        }
        !more
    }
}

/// A payload as a packet. It has to be shorter than sixteen megabytes.
pub fn packet(number: u8, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() < FULL);
    let length = u32::try_from(payload.len()).unwrap_or_default().to_le_bytes();
    [&length[..3], &[number], payload].concat()
}

/// What a payload holds, read from its beginning.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// One byte.
    pub fn byte(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }

    /// A number of `size` bytes.
    pub fn number(&mut self, size: usize) -> Option<u64> {
        let bytes = self.bytes(size)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// A number whose first byte says how long it is.
    pub fn length(&mut self) -> Option<u64> {
        match self.byte()? {
            0xfc => self.number(2),
            0xfd => self.number(3),
            0xfe => self.number(8),
            0xfb | 0xff => None,
            small => Some(u64::from(small)),
        }
    }

    /// A text that ends with a zero byte.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(0, self.0)?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All payloads in `bytes`, read in pieces of `size`: length and head.
    fn all(bytes: &[u8], size: usize) -> Vec<(u64, Vec<u8>, u8)> {
        let (mut packets, mut found) = (Packets::default(), Vec::new());
        for piece in bytes.chunks(size) {
            let mut used = 0;
            while used < piece.len() {
                let (taken, packet) = packets.step(&piece[used..]);
                used += taken;
                found.extend(packet.map(|packet| (packet.length, packet.head.to_vec(), packet.number)));
            }
        }
        found
    }

    #[test]
    fn a_long_payload_is_one_and_an_empty_one_too() {
        let mut bytes = packet(0, b"");
        bytes.extend([0xff, 0xff, 0xff, 0]);
        bytes.extend(vec![b'x'; FULL]);
        bytes.extend(packet(1, b"yy"));
        bytes.extend(packet(7, b"z"));
        let found = all(&bytes, 1_000_000);
        assert_eq!(
            found.iter().map(|(length, _, number)| (*length, *number)).collect::<Vec<_>>(),
            [(0, 0), (FULL as u64 + 2, 1), (1, 7)]
        );
        let mut exact = [0xff, 0xff, 0xff, 0].to_vec();
        exact.extend(vec![b'x'; FULL]);
        exact.extend(packet(1, b""));
        assert_eq!(all(&exact, 77_777)[0].0, FULL as u64);
    }

    proptest! {
        #[test]
        fn pieces_change_nothing(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..10), size in 1_usize..50) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|payload| packet(3, payload)).collect();
            let found = all(&bytes, size);
            let expected: Vec<_> = payloads.iter().map(|payload| (payload.len() as u64, payload[..payload.len().min(KEPT)].to_vec(), 3)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
