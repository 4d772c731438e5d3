//! Text of a file: the original, the result of `${VAR}` substitution, and the mapping between them,
//! so that every problem points at the original.

mod substitution;

use substitution::{SubstitutionProblem, TextSegment, VariableLookup};

/// Range of the original text: first character, and the one after the last, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SourceSpan {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A file's text before and after substitution.
pub(crate) struct SourceText {
    name: String,
    original: String,
    substituted: String,
    segments: Vec<TextSegment>,
    /// Start of each line, in characters and in bytes.
    lines: Vec<(usize, usize)>,
}

impl SourceText {
    /// Substitutes variables in `original`. Also returns the problems of the substitution.
    pub(crate) fn new(
        name: &str,
        original: &str,
        lookup: VariableLookup<'_>,
    ) -> (Self, Vec<SubstitutionProblem>) {
        // Editors on Windows write a byte order mark, which YAML would read as part of the first
        // key.
        let original = original
            .strip_prefix('\u{feff}')
            .unwrap_or(original)
            .to_owned();
        let substituted = substitution::substitute(&original, lookup);
        let lines = line_starts(&original);
        let source = Self {
            name: name.to_owned(),
            substituted: substituted.text,
            segments: substituted.segments,
            lines,
            original,
        };
        (source, substituted.problems)
    }

    /// A text without substitution.
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

    /// Text after substitution, as the YAML parser sees it.
    pub(crate) fn substituted_text(&self) -> &str {
        &self.substituted
    }

    /// Original range of the characters `start..end` of the substituted text.
    pub(crate) fn span_of(&self, start: usize, end: usize) -> SourceSpan {
        let start = self.original_offset(start);
        SourceSpan {
            start,
            end: self.original_offset(end).max(start),
        }
    }

    fn original_offset(&self, read: usize) -> usize {
        // The last segment that starts at or before the offset; segments are in order.
        let next = self
            .segments
            .partition_point(|segment| segment.substituted_start <= read);
        let Some(segment) = next
            .checked_sub(1)
            .and_then(|index| self.segments.get(index))
        else {
            return read;
        };
        // All characters of a replaced expression map to its start: the author wrote only the
        // expression.
        match segment.is_literal {
            true => segment.original_start + (read - segment.substituted_start),
            false => segment.original_start,
        }
    }

    /// Line of a position, from 1.
    pub(crate) fn line_number(&self, span: SourceSpan) -> usize {
        self.lines
            .partition_point(|(chars, _)| *chars <= span.start)
            .max(1)
    }

    /// Name of the file, as given by the caller.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Text of the line with this number, and the offset of its first character.
    pub(crate) fn original_line(&self, number: usize) -> (usize, &str) {
        let (first_char, first_byte) = self.lines[number - 1];
        let text = self.original[first_byte..]
            .lines()
            .next()
            .unwrap_or_default();
        (first_char, text)
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
