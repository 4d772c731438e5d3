//! Framing of RESP 2 and 3, for any chunking
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! A relay needs only the end of a value, not its content. So the framer keeps the first line
//! alone, and a reply of any size passes through buffers of fixed size. Existing parsers build the
//! value and start again with every chunk.

/// Kept bytes of a first line; the rest is skipped.
const MAX_LINE_BYTES: usize = 64;
/// Nested values of one value, over all depths. The announced number is counted and never reserved
/// in memory.
const MAX_NESTED_VALUES: u64 = 1 << 40;

/// Input that is not RESP: the end of its value is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not RESP")]
pub struct MalformedResp;

/// A complete value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RespValue<'a> {
    /// The first line without its end, at most 64 bytes of it.
    pub line: &'a [u8],
}

impl RespValue<'_> {
    /// Returns whether this is a push of RESP 3, which replies to no command.
    pub fn is_push(&self) -> bool {
        self.line.first() == Some(&b'>')
    }

    /// Returns whether this is an error, simple or bulk.
    pub fn is_error(&self) -> bool {
        matches!(self.line.first(), Some(b'-' | b'!'))
    }
}

/// Finds the ends of consecutive values.
#[derive(Debug, Default)]
pub struct RespFramer {
    /// The line that is being read.
    line: Vec<u8>,
    /// The last byte read.
    last_byte: u8,
    /// Bytes of a bulk string still to come, including its line end.
    skip_bytes: u64,
    /// Values still to come until the outer one is complete; 0 between two values.
    values_left: u64,
    /// The first line of the outer value.
    first_line: Vec<u8>,
}

impl RespFramer {
    /// Returns whether the framer is between two values.
    pub fn is_between_values(&self) -> bool {
        self.values_left == 0 && self.skip_bytes == 0 && self.line.is_empty()
    }

    /// Returns how many of `bytes` belong to the current value, and the value if they complete it.
    ///
    /// # Errors
    /// Fails when the bytes are not RESP.
    pub fn step(&mut self, bytes: &[u8]) -> Result<(usize, Option<RespValue<'_>>), MalformedResp> {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            let (taken, ended) = if self.skip_bytes > 0 {
                self.skip_string(rest)?
            } else {
                self.read_head(rest)?
            };
            used += taken;
            if ended && self.values_left == 0 {
                return Ok((
                    used,
                    Some(RespValue {
                        line: &self.first_line,
                    }),
                ));
            }
        }
        Ok((used, None))
    }

    /// Skips bytes of a bulk string. Returns whether a value ended.
    fn skip_string(&mut self, bytes: &[u8]) -> Result<(usize, bool), MalformedResp> {
        let taken = usize::try_from(self.skip_bytes)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let after = self.skip_bytes - taken as u64;
        // The last two bytes have to be CR LF, in whatever chunks they arrive.
        // Without this check a wrong length would move the boundary of every later reply.
        for (at, expected) in [(2, b'\r'), (1, b'\n')] {
            if self.skip_bytes >= at
                && after < at
                && bytes[usize::try_from(self.skip_bytes - at).map_err(|_| MalformedResp)?]
                    != expected
            {
                return Err(MalformedResp);
            }
        }
        self.skip_bytes = after;
        if after == 0 {
            self.values_left -= 1;
        }
        Ok((taken, after == 0))
    }

    /// Reads the head line of a value. Returns whether a value ended.
    fn read_head(&mut self, bytes: &[u8]) -> Result<(usize, bool), MalformedResp> {
        let end = memchr::memchr(b'\n', bytes);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        // A byte more than is kept, so that the CR of a line of exactly that length is seen.
        let room = (MAX_LINE_BYTES + 1)
            .saturating_sub(self.line.len())
            .min(part.len());
        self.line.extend_from_slice(&part[..room]);
        self.last_byte = part.last().copied().unwrap_or(self.last_byte);
        let Some(end) = end else {
            return Ok((bytes.len(), false));
        };
        if self.last_byte != b'\r' {
            return Err(MalformedResp);
        }
        self.last_byte = 0;
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        let ended = self.begin_value()?;
        Ok((end + 1, ended))
    }

    /// Handles a complete head line. Returns whether it ended a value.
    fn begin_value(&mut self) -> Result<bool, MalformedResp> {
        let mut line = std::mem::take(&mut self.line);
        if self.values_left == 0 {
            self.values_left = 1;
            self.first_line.clear();
            self.first_line
                .extend_from_slice(&line[..line.len().min(MAX_LINE_BYTES)]);
        }
        let ended = self.parse_head(&line);
        line.clear();
        self.line = line;
        ended
    }

    /// Counts the values that follow a head line. Returns whether it ended a value.
    fn parse_head(&mut self, line: &[u8]) -> Result<bool, MalformedResp> {
        let (kind, rest) = line.split_first().ok_or(MalformedResp)?;
        match kind {
            b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => self.update_values_left(0, 1),
            b'$' | b'!' | b'=' => match parse_length(rest)? {
                None => self.update_values_left(0, 1),
                Some(length) => {
                    self.skip_bytes = length + 2;
                    Ok(false)
                }
            },
            b'*' | b'~' | b'>' => self.update_values_left(parse_length(rest)?.unwrap_or(0), 1),
            // Each entry of a map is two values.
            b'%' => self.update_values_left(parse_length(rest)?.unwrap_or(0) * 2, 1),
            // Attributes precede the value that they belong to, so they complete none.
            b'|' => self.update_values_left(parse_length(rest)?.unwrap_or(0) * 2, 0),
            _ => Err(MalformedResp),
        }
    }

    fn update_values_left(&mut self, more: u64, less: u64) -> Result<bool, MalformedResp> {
        self.values_left = self.values_left + more - less;
        // Bounded, so that the counter cannot overflow however deep a server nests.
        if self.values_left > MAX_NESTED_VALUES {
            Err(MalformedResp)
        } else {
            Ok(true)
        }
    }
}

/// Parses a length. `None`: the null of RESP 2.
fn parse_length(digits: &[u8]) -> Result<Option<u64>, MalformedResp> {
    if digits == b"-1" {
        return Ok(None);
    }
    let text = std::str::from_utf8(digits).map_err(|_| MalformedResp)?;
    // `parse` would accept a leading plus, which RESP 2 does not have.
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(MalformedResp);
    }
    text.parse()
        .ok()
        .filter(|count| *count <= MAX_NESTED_VALUES)
        .map(Some)
        .ok_or(MalformedResp)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the ends of all values in `bytes`, read in chunks of `size`.
    fn value_ends(bytes: &[u8], size: usize) -> Result<Vec<(usize, Vec<u8>)>, MalformedResp> {
        let (mut frames, mut found, mut at) = (RespFramer::default(), Vec::new(), 0);
        for piece in bytes.chunks(size) {
            let mut used = 0;
            while used < piece.len() {
                let (taken, value) = frames.step(&piece[used..])?;
                used += taken;
                if let Some(value) = value {
                    found.push((at + used, value.line.to_vec()));
                }
            }
            at += piece.len();
        }
        Ok(found)
    }

    #[test]
    fn the_end_of_every_kind_of_value_is_found() {
        let values: [&[u8]; 14] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-1\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\na\r\nb\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"%1\r\n+a\r\n~2\r\n#t\r\n,1.5\r\n",
            b"=6\r\ntxt:ab\r\n",
            b"|1\r\n+ttl\r\n:1\r\n_\r\n",
            b">2\r\n+invalidate\r\n*0\r\n",
            b"(123\r\n",
        ];
        let all = values.concat();
        for size in 1..=all.len() {
            let found = value_ends(&all, size).unwrap();
            let mut end = 0;
            for (value, (at, _)) in values.iter().zip(&found) {
                end += value.len();
                assert_eq!(*at, end);
            }
            assert_eq!(found.len(), values.len());
        }
    }

    #[test]
    fn bytes_that_are_not_resp_are_refused() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\n"[..],
            b"+OK\n",
            b"$1\r\nabc\r\n",
            b"$x\r\n",
            b"$+1\r\n",
            b"*99999999999999999999\r\n",
            b"\r\n",
        ] {
            for size in 1..=bytes.len() {
                assert_eq!(
                    value_ends(bytes, size),
                    Err(MalformedResp),
                    "{:?}",
                    String::from_utf8_lossy(bytes)
                );
            }
        }
    }

    proptest! {
        #[test]
        fn chunking_does_not_change_values(bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'$'), Just(b'*'), Just(b'1'), Just(b'2'), Just(b'+'), any::<u8>()], 0..200), size in 1_usize..20) {
            // Both framers see the same values up to the first byte that is not RESP.
            let (whole, pieces) = (value_ends(&bytes, bytes.len().max(1)), value_ends(&bytes, size));
            prop_assert_eq!(whole, pieces);
        }
    }
}
