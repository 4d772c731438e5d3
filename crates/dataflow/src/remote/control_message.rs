//! Control messages that are longer than a report: cut into parts, and put together again. Pure.
//!
//! A part is the body of a [`Report::Other`]: `{"letter":NUMBER,"part":NUMBER,"of":NUMBER,"text":TEXT}`
//! (`contract/dataflow.md`, "Control messages"). A rendezvous keeps the order of what one worker says, so whoever begins a new
//! letter has given up the one before.

use nearpath_p2p::message::{MOST_OF_A_REPORT, Report};
use serde::{Deserialize, Serialize};

/// The longest text, in bytes.
pub const LONGEST: usize = 1 << 20;

/// The report around a part takes so much at most.
const AROUND: usize = 128;

/// One part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    letter: u64,
    part: usize,
    of: usize,
    text: String,
}

/// A text that is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a control message of {0} bytes is longer than {LONGEST}: say less, or send it over an edge")]
pub struct TooLong(usize);

/// The reports that carry a text. `letter`: another number than the one before.
///
/// # Errors
/// See [`TooLong`].
pub fn cut(letter: u64, text: &str) -> Result<Vec<Report>, TooLong> {
    if text.len() > LONGEST {
        return Err(TooLong(text.len()));
    }
    let texts = pieces(text, MOST_OF_A_REPORT - AROUND);
    let of = texts.len();
    let parts = texts.into_iter().enumerate().map(|(part, text)| Part { letter, part, of, text: text.to_owned() });
    Ok(parts.map(|part| Report::Other { body: serde_json::to_value(part).expect("text keys only") }).collect())
}

/// Cuts between characters, so that no piece takes more as JSON. Nothing is one piece, too.
fn pieces(text: &str, most: usize) -> Vec<&str> {
    let (mut pieces, mut rest, mut taken, mut at) = (Vec::new(), text, 0, 0);
    for letter in text.chars() {
        let takes = as_json(letter);
        if taken + takes > most {
            let (piece, left) = rest.split_at(at);
            pieces.push(piece);
            (rest, taken, at) = (left, 0, 0);
        }
        (taken, at) = (taken + takes, at + letter.len_utf8());
    }
    pieces.push(rest);
    pieces
}

/// Bytes of a character in a string of JSON (RFC 8259 section 7).
fn as_json(letter: char) -> usize {
    match letter {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    }
}

impl Part {
    /// Reads a report; `None`: it is no part of a letter.
    pub fn read(report: Report) -> Option<Self> {
        let Report::Other { body } = report else { return None };
        serde_json::from_value(body).ok()
    }
}

/// What came of one worker's letter so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opened {
    letter: u64,
    next: usize,
    text: String,
}

impl Opened {
    /// Bytes that are kept.
    pub fn kept(&self) -> usize {
        self.text.capacity()
    }

    /// The next part; the text, when it was the last one. A letter of which a part is missing, or that is too long, comes to
    /// nothing.
    pub fn take(&mut self, part: Part) -> Option<String> {
        if part.part == 0 {
            *self = Self { letter: part.letter, ..Self::default() };
        }
        let follows = part.letter == self.letter && part.part == self.next && part.part < part.of;
        if !follows || self.text.len() + part.text.len() > LONGEST {
            *self = Self { next: usize::MAX, ..Self::default() };
            return None;
        }
        self.text.reserve_exact(part.text.len()); // what is kept is what came, and not twice that
        self.text += &part.text;
        self.next += 1;
        (self.next == part.of).then(|| std::mem::take(self).text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(letter: u64, text: &str) -> Vec<Part> {
        cut(letter, text).unwrap().into_iter().map(|report| Part::read(report).unwrap()).collect()
    }

    fn join(parts: Vec<Part>) -> Vec<String> {
        let mut opened = Opened::default();
        parts.into_iter().filter_map(|part| opened.take(part)).collect()
    }

    #[test]
    fn the_longest_text_arrives_and_a_longer_one_is_refused() {
        let text = "\u{1}".repeat(LONGEST);
        assert_eq!(join(parts(1, &text)), std::slice::from_ref(&text));
        assert_eq!(cut(1, &(text + "x")), Err(TooLong(LONGEST + 1)));
    }

    #[test]
    fn a_letter_that_breaks_off_comes_to_nothing_and_the_next_one_arrives() {
        let long = "x".repeat(10_000);
        let mut said = parts(1, &long);
        said.pop();
        said.extend(parts(2, &long));
        said.extend(parts(3, "short"));
        assert_eq!(join(said), [long.clone(), "short".to_owned()]);
        let mut gap = parts(1, &long);
        gap.remove(1);
        assert!(join(gap).is_empty());
        let mut mixed = parts(1, &long);
        mixed[1].letter = 7;
        assert!(join(mixed).is_empty());
    }

    #[test]
    fn nobody_makes_the_reader_keep_more_than_a_text() {
        let (mut opened, text) = (Opened::default(), "x".repeat(4000));
        for part in 0..1000 {
            assert_eq!(opened.take(Part { letter: 1, part, of: usize::MAX, text: text.clone() }), None);
            assert!(opened.kept() <= LONGEST);
        }
        assert_eq!(opened.take(Part { letter: 0, part: 1, of: 2, text }), None);
    }

    proptest! {
        #[test]
        fn any_text_arrives_in_reports_that_are_passed_on(texts in prop::collection::vec("(?s).{0,3000}", 1..4)) {
            let mut all = Vec::new();
            for (letter, text) in texts.iter().enumerate() {
                let reports = cut(letter as u64, text).unwrap();
                prop_assert!(reports.iter().all(Report::fits));
                all.extend(reports.into_iter().map(|report| Part::read(report).unwrap()));
            }
            prop_assert_eq!(join(all), texts);
        }

        #[test]
        fn any_parts_are_read_without_harm(parts in prop::collection::vec((0..3u64, 0..4usize, 0..4usize), 0..30)) {
            let parts = parts.into_iter().map(|(letter, part, of)| Part { letter, part, of, text: "x".into() });
            for text in join(parts.collect()) {
                prop_assert!((1..4).contains(&text.len()));
            }
        }
    }
}
