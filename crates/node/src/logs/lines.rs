//! Cuts a stream of bytes into lines.

/// The longest line in bytes; a longer one is split.
pub const LONGEST: usize = 16 * 1024;

/// Collects bytes until they make a line. Bytes that are not UTF-8 are replaced, as `String::from_utf8_lossy` does.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Takes the next bytes and hands out the lines that they complete, without their ends.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(String)) {
        while !bytes.is_empty() {
            let room = &bytes[..bytes.len().min(LONGEST - self.pending.len())];
            let (taken, ended) = match room.iter().position(|b| *b == b'\n') {
                Some(end) => (end + 1, true),
                None => (room.len(), false),
            };
            self.pending.extend_from_slice(&room[..taken]);
            bytes = &bytes[taken..];
            if ended || self.pending.len() >= LONGEST {
                self.cut().into_iter().for_each(&mut each);
            }
        }
    }

    /// What is left when the stream ended without a line end.
    pub fn finish(&mut self) -> Option<String> {
        (!self.pending.is_empty()).then(|| self.cut()).flatten()
    }

    fn cut(&mut self) -> Option<String> {
        let mut line = std::mem::take(&mut self.pending);
        let overflow = match line.last() {
            Some(b'\n') => None,
            _ => Some(incomplete(&line)),
        };
        if let Some(start) = overflow.filter(|start| *start > 0 && *start < line.len() && line.len() >= LONGEST) {
            self.pending = line.split_off(start); // a character that the split would tear apart goes to the next line
        }
        for end in [b'\n', b'\r'] {
            line.pop_if(|last| *last == end);
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

/// Where an unfinished UTF-8 sequence at the end starts; the length when there is none.
fn incomplete(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let lead = bytes[tail..].iter().rposition(|b| *b >= 0xC0).map(|at| tail + at);
    match lead {
        Some(at) if std::str::from_utf8(&bytes[at..]).is_err_and(|e| e.error_len().is_none()) => at,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        pieces.iter().for_each(|piece| lines.push(piece, |line| out.push(line)));
        out.extend(lines.finish());
        out
    }

    #[test]
    fn ends_are_removed_and_empty_lines_kept() {
        assert_eq!(lines(&[b"a\r\n\nb", b"c\nlast"]), ["a", "", "bc", "last"]);
        assert_eq!(lines(&[b"\xff\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn a_split_never_tears_a_character() {
        let text = format!("x{}", "é".repeat(LONGEST));
        let out = lines(&[text.as_bytes()]);
        assert_eq!(out.concat(), text);
        assert!(out.len() > 1);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            let cut = cut.min(bytes.len());
            prop_assert_eq!(lines(&[&bytes[..cut], &bytes[cut..]]), lines(&[&bytes]));
        }
        #[test]
        fn no_line_is_longer_than_allowed(byte in any::<u8>(), length in 0usize..5 * LONGEST) {
            let (mut lines, mut raw) = (Lines::default(), 0);
            lines.push(&vec![byte; length], |line| raw = raw.max(line.len()));
            let widest = char::REPLACEMENT_CHARACTER.len_utf8();
            prop_assert!(raw <= LONGEST * widest);
        }
    }
}
