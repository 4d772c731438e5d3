//! The text of a file: as it was written, as it reads after `${VAR}` substitution, and the way back from one to the other,
//! so that every problem points at what the author wrote.

mod subst;

use crate::problem::{Problem, WINDOW, Weight};
use subst::{Flaw, Lookup, Piece};

/// A stretch of the written text: first character and the one after the last, counted in characters from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A file's text and what it reads as.
pub(crate) struct Source {
    name: String,
    written: String,
    read: String,
    pieces: Vec<Piece>,
    /// Where each line starts: in characters, and in bytes.
    lines: Vec<(usize, usize)>,
}

impl Source {
    /// Substitutes variables in `written`. Flaws of the substitution come back with it.
    pub(crate) fn new(name: &str, written: &str, lookup: Lookup<'_>) -> (Self, Vec<Flaw>) {
        let written = written.strip_prefix('\u{feff}').unwrap_or(written).to_owned();
        let substituted = subst::substitute(&written, lookup);
        let lines = line_starts(&written);
        let source = Self { name: name.to_owned(), read: substituted.text, pieces: substituted.pieces, lines, written };
        (source, substituted.flaws)
    }

    /// A text in which nothing is substituted.
    pub(crate) fn verbatim(name: &str, text: &str) -> Self {
        let written = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
        let lines = line_starts(&written);
        Self { name: name.to_owned(), read: written.clone(), pieces: Vec::new(), lines, written }
    }

    /// The text after substitution: what the YAML parser sees.
    pub(crate) fn read(&self) -> &str {
        &self.read
    }

    /// Where characters `start..end` of the read text were written.
    pub(crate) fn place(&self, start: usize, end: usize) -> Place {
        let start = self.written_at(start);
        Place { start, end: self.written_at(end).max(start) }
    }

    fn written_at(&self, read: usize) -> usize {
        let next = self.pieces.partition_point(|piece| piece.read <= read);
        let Some(piece) = next.checked_sub(1).and_then(|index| self.pieces.get(index)) else { return read };
        match piece.literal {
            true => piece.written + (read - piece.read),
            false => piece.written,
        }
    }

    /// The line of a place, counted from 1.
    pub(crate) fn line(&self, place: Place) -> usize {
        self.lines.partition_point(|(chars, _)| *chars <= place.start).max(1)
    }

    /// A problem at a place, with the line it is on.
    pub(crate) fn problem(&self, weight: Weight, place: Place, text: String) -> Problem {
        let line = self.line(place);
        let (first_char, first_byte) = self.lines[line - 1];
        let whole = self.written[first_byte..].lines().next().unwrap_or_default();
        let width = whole.chars().count();
        let column = (place.start - first_char).min(width);
        let length = place.end.saturating_sub(place.start).clamp(1, (width - column).max(1));
        let skipped = column.saturating_sub(WINDOW / 2);
        let excerpt = whole.chars().skip(skipped).take(WINDOW).collect();
        let file = self.name.clone();
        Problem { weight, file, line, column: column + 1, length, excerpt, skipped, text, help: None }
    }
}

fn line_starts(text: &str) -> Vec<(usize, usize)> {
    let newlines = text.char_indices().enumerate().filter(|(_, (_, char))| *char == '\n');
    let starts = newlines.map(|(chars, (bytes, _))| (chars + 1, bytes + 1));
    std::iter::once((0, 0)).chain(starts).collect()
}
