//! The text of a file: as it was written, as it reads after `${VAR}` substitution, and the way back from one to the other,
//! so that every problem points at what the author wrote.

mod substitution;

use crate::problem::{MAX_EXCERPT_CHARS, ProblemSeverity, StackProblem};
use substitution::{SubstitutionProblem, TextSegment, VariableLookup};

/// A stretch of the written text: first character and the one after the last, counted in characters from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SourceSpan {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A file's text and what it reads as.
pub(crate) struct SourceText {
    name: String,
    original: String,
    substituted: String,
    segments: Vec<TextSegment>,
    /// Where each line starts: in characters, and in bytes.
    lines: Vec<(usize, usize)>,
}

impl SourceText {
    /// Substitutes variables in `written`. Flaws of the substitution come back with it.
    pub(crate) fn new(
        name: &str,
        written: &str,
        lookup: VariableLookup<'_>,
    ) -> (Self, Vec<SubstitutionProblem>) {
        let written = written
            .strip_prefix('\u{feff}')
            .unwrap_or(written)
            .to_owned();
        let substituted = substitution::substitute(&written, lookup);
        let lines = line_starts(&written);
        let source = Self {
            name: name.to_owned(),
            substituted: substituted.text,
            segments: substituted.segments,
            lines,
            original: written,
        };
        (source, substituted.problems)
    }

    /// A text in which nothing is substituted.
    pub(crate) fn without_substitution(name: &str, text: &str) -> Self {
        let original = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
        let lines = line_starts(&original);
        Self {
            name: name.to_owned(),
            substituted: original.clone(),
            segments: Vec::new(),
            lines,
            original,
        }
    }

    /// The text after substitution: what the YAML parser sees.
    pub(crate) fn substituted_text(&self) -> &str {
        &self.substituted
    }

    /// Where characters `start..end` of the read text were written.
    pub(crate) fn span_of(&self, start: usize, end: usize) -> SourceSpan {
        let start = self.original_offset(start);
        SourceSpan {
            start,
            end: self.original_offset(end).max(start),
        }
    }

    fn original_offset(&self, read: usize) -> usize {
        let next = self
            .segments
            .partition_point(|piece| piece.substituted_start <= read);
        let Some(piece) = next
            .checked_sub(1)
            .and_then(|index| self.segments.get(index))
        else {
            return read;
        };
        match piece.is_literal {
            true => piece.original_start + (read - piece.substituted_start),
            false => piece.original_start,
        }
    }

    /// The line of a place, counted from 1.
    pub(crate) fn line_number(&self, place: SourceSpan) -> usize {
        self.lines
            .partition_point(|(chars, _)| *chars <= place.start)
            .max(1)
    }

    /// A problem at a place, with the line it is on.
    pub(crate) fn problem_at(
        &self,
        severity: ProblemSeverity,
        place: SourceSpan,
        text: String,
    ) -> StackProblem {
        let line = self.line_number(place);
        let (first_char, first_byte) = self.lines[line - 1];
        let full_line = self.original[first_byte..]
            .lines()
            .next()
            .unwrap_or_default();
        let width = full_line.chars().count();
        let column = (place.start - first_char).min(width);
        let length = place
            .end
            .saturating_sub(place.start)
            .clamp(1, (width - column).max(1));
        let skipped = column.saturating_sub(MAX_EXCERPT_CHARS / 2);
        let excerpt = full_line
            .chars()
            .skip(skipped)
            .take(MAX_EXCERPT_CHARS)
            .collect();
        let file = self.name.clone();
        StackProblem {
            severity,
            file,
            line,
            column: column + 1,
            length,
            excerpt,
            skipped,
            text,
            help: None,
        }
    }
}

fn line_starts(text: &str) -> Vec<(usize, usize)> {
    let newlines = text
        .char_indices()
        .enumerate()
        .filter(|(_, (_, char))| *char == '\n');
    let starts = newlines.map(|(chars, (bytes, _))| (chars + 1, bytes + 1));
    std::iter::once((0, 0)).chain(starts).collect()
}
