//! Splitting of a byte stream into lines.

/// Maximum length of a line in bytes; longer ones are split.
pub const MAX_LINE_BYTES: usize = 16 * 1024;

/// Collects bytes into lines. Invalid UTF-8 is replaced, like `String::from_utf8_lossy` does.
#[derive(Debug, Default)]
pub struct LineSplitter {
    pending: Vec<u8>,
}

impl LineSplitter {
    /// Adds bytes, and passes each completed line to `each` without its end.
    pub fn push_bytes(&mut self, mut bytes: &[u8], mut each: impl FnMut(String)) {
        while !bytes.is_empty() {
            let available = &bytes[..bytes.len().min(MAX_LINE_BYTES - self.pending.len())];
            let (line_len, ended) = match available.iter().position(|b| *b == b'\n') {
                Some(end) => (end + 1, true),
                None => (available.len(), false),
            };
            self.pending.extend_from_slice(&available[..line_len]);
            bytes = &bytes[line_len..];
            if ended || self.pending.len() >= MAX_LINE_BYTES {
                self.cut_line().into_iter().for_each(&mut each);
            }
        }
    }

    /// Returns the rest at the end of the stream.
    pub fn finish_line(&mut self) -> Option<String> {
        (!self.pending.is_empty())
            .then(|| self.cut_line())
            .flatten()
    }

    fn cut_line(&mut self) -> Option<String> {
        let mut line = std::mem::take(&mut self.pending);
        let overflow = match line.last() {
            Some(b'\n') => None,
            _ => Some(incomplete_char_start(&line)),
        };
        if let Some(start) = overflow
            .filter(|start| *start > 0 && *start < line.len() && line.len() >= MAX_LINE_BYTES)
        {
            // Keeps a character whole that the split would cut.
            self.pending = line.split_off(start);
        }
        for end in [b'\n', b'\r'] {
            line.pop_if(|last| *last == end);
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

/// Returns the start of an incomplete UTF-8 sequence at the end; the length if there is none.
fn incomplete_char_start(bytes: &[u8]) -> usize {
    // A character has four bytes at most, so an incomplete one has three.
    let tail = bytes.len().saturating_sub(3);
    let lead = bytes[tail..]
        .iter()
        .rposition(|b| *b >= 0xC0)
        .map(|at| tail + at);
    match lead {
        Some(at) if std::str::from_utf8(&bytes[at..]).is_err_and(|e| e.error_len().is_none()) => at,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split_lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut out) = (LineSplitter::default(), Vec::new());
        pieces
            .iter()
            .for_each(|piece| lines.push_bytes(piece, |line| out.push(line)));
        out.extend(lines.finish_line());
        out
    }

    #[test]
    fn line_ends_are_removed_and_empty_lines_kept() {
        assert_eq!(
            split_lines(&[b"a\r\n\nb", b"c\nlast"]),
            ["a", "", "bc", "last"]
        );
        assert_eq!(split_lines(&[b"\xff\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn a_split_never_breaks_a_character() {
        let text = format!("x{}", "é".repeat(MAX_LINE_BYTES));
        let out = split_lines(&[text.as_bytes()]);
        assert_eq!(out.concat(), text);
        assert!(out.len() > 1);
    }

    proptest! {
        #[test]
        fn splitting_is_independent_of_the_pieces(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            let cut = cut.min(bytes.len());
            prop_assert_eq!(split_lines(&[&bytes[..cut], &bytes[cut..]]), split_lines(&[&bytes]));
        }
        #[test]
        fn no_line_exceeds_the_maximum(byte in any::<u8>(), length in 0usize..5 * MAX_LINE_BYTES) {
            let (mut lines, mut raw) = (LineSplitter::default(), 0);
            lines.push_bytes(&vec![byte; length], |line| raw = raw.max(line.len()));
            let replacement_len = char::REPLACEMENT_CHARACTER.len_utf8();
            prop_assert!(raw <= MAX_LINE_BYTES * replacement_len);
        }
    }
}
