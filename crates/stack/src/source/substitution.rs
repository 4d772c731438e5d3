//! `${VAR}` substitution before a file is parsed, in the plain forms of OpenFaaS's client.
//!
//! | written | reads as |
//! | --- | --- |
//! | `${VAR}` | the variable; nothing when it is not set (with a warning) |
//! | `${VAR:-text}`, `${VAR:=text}` | the variable, or `text` when it is not set or empty |
//! | `${VAR-text}`, `${VAR=text}` | the variable, or `text` when it is not set |
//! | `$${` | `${` |
//!
//! `$VAR` and a lone `$` stay unchanged. Every other `${…}` is an error, except on lines that are
//! only a comment. Pure: variables come through a function.

/// Returns the value of an environment variable.
pub(crate) type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Origin of a range of the result, up to the start of the next segment. Counted in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextSegment {
    pub(crate) substituted_start: usize,
    pub(crate) original_start: usize,
    /// True when the text was copied; else the segment replaces one `${…}`.
    pub(crate) is_literal: bool,
}

/// Problem of a `${…}`, at these characters of the original text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubstitutionProblem {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) is_fatal: bool,
    pub(crate) text: String,
}

/// Result of a substitution, with the mapping to the original.
#[derive(Debug, Default)]
pub(crate) struct SubstitutedText {
    pub(crate) text: String,
    pub(crate) segments: Vec<TextSegment>,
    pub(crate) problems: Vec<SubstitutionProblem>,
    char_count: usize,
}

/// Largest result: a short text can name a long variable many times.
const MAX_RESULT_BYTES: usize = 4 << 20;
/// Depth of `${…}` in defaults of `${…}`; the expansion recurses.
const MAX_DEFAULT_DEPTH: usize = 8;

/// Replaces every `${…}` in `text`.
pub(crate) fn substitute(text: &str, lookup: VariableLookup<'_>) -> SubstitutedText {
    let mut result = SubstitutedText::default();
    let (mut rest, mut at) = (text, 0);
    while !rest.is_empty() {
        let literal = literal_length(rest);
        let (copied, tail) = rest.split_at(literal);
        result.push_segment(copied, at, true);
        at += copied.chars().count();
        rest = tail;
        if let Some(tail) = rest.strip_prefix("$${") {
            result.push_segment("${", at, false);
            (rest, at) = (tail, at + 3);
        } else if rest.starts_with("${") {
            let consumed = result.replace_expression(rest, at, lookup);
            at += rest[..consumed].chars().count();
            rest = &rest[consumed..];
        }
        if result.text.len() > MAX_RESULT_BYTES {
            result.add_problem(
                at,
                at,
                true,
                format!(
                    "the file is larger than {} MiB after substitution",
                    MAX_RESULT_BYTES >> 20
                ),
            );
            break;
        }
    }
    result
}

impl SubstitutedText {
    fn push_segment(&mut self, text: &str, written: usize, literal: bool) {
        self.segments.push(TextSegment {
            substituted_start: self.char_count,
            original_start: written,
            is_literal: literal,
        });
        self.text.push_str(text);
        self.char_count += text.chars().count();
    }

    fn add_problem(&mut self, start: usize, end: usize, fatal: bool, text: String) {
        self.problems.push(SubstitutionProblem {
            start,
            end,
            is_fatal: fatal,
            text,
        });
    }

    /// Replaces the `${…}` at the start of `rest`; returns the bytes of `rest` that it takes.
    fn replace_expression(&mut self, rest: &str, at: usize, lookup: VariableLookup<'_>) -> usize {
        let mut unset = Vec::new();
        match expand_expression(rest, lookup, 0, &mut unset) {
            Ok((value, used)) => {
                let end = at + rest[..used].chars().count();
                for name in unset {
                    let text = format!(
                        "{name} is not set: `${{{name}}}` is empty; `${{{name}:-text}}` gives a default"
                    );
                    self.add_problem(at, end, false, text);
                }
                self.push_segment(&value, at, false);
                used
            }
            Err(text) => {
                self.add_problem(at, at + 2, true, text);
                // Copied: the rest of the file is still read, so that its other problems are
                // reported too.
                self.push_segment("${", at, true);
                2
            }
        }
    }
}

/// Bytes of `text` before the next `${` or `$${` that is not on a comment line.
fn literal_length(text: &str) -> usize {
    let mut from = 0;
    while let Some(offset) = text[from..].find("${") {
        let expression_start = from + offset;
        let line = text[..expression_start]
            .rfind('\n')
            .map_or(0, |newline| newline + 1);
        // `text` may start in the middle of a line, where a `#` belongs to a value and starts no
        // comment.
        let whole_line = line > 0 || from == 0;
        if !(whole_line && text[line..expression_start].trim_start().starts_with('#')) {
            // `$${` is handled by the caller, which needs both dollar signs.
            let escaped = expression_start > 0 && text.as_bytes()[expression_start - 1] == b'$';
            return expression_start - usize::from(escaped);
        }
        from = text[expression_start..]
            .find('\n')
            .map_or(text.len(), |newline| expression_start + newline);
    }
    text.len()
}

/// Value of the `${…}` at the start of `text`, and its length in bytes.
fn expand_expression(
    text: &str,
    lookup: VariableLookup<'_>,
    depth: usize,
    unset: &mut Vec<String>,
) -> Result<(String, usize), String> {
    let inner = &text[2..];
    let name = &inner[..inner
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(inner.len())];
    // Names of POSIX variables: anything else, such as `${1}` or `${A!}`, belongs to other shells.
    if name.is_empty()
        || name.starts_with(|c: char| c.is_ascii_digit())
        || depth > MAX_DEFAULT_DEPTH
    {
        return Err(unknown_form_message());
    }
    let value = lookup(name);
    let after = &inner[name.len()..];
    let operator = [":-", ":=", "-", "=", "}"]
        .into_iter()
        .find(|operator| after.starts_with(operator));
    let operator = operator.ok_or_else(unknown_form_message)?;
    let head = 2 + name.len() + operator.len();
    if operator == "}" {
        if value.is_none() {
            unset.push(name.to_owned());
        }
        return Ok((value.unwrap_or_default(), head));
    }
    // The shell's rule (POSIX, 2.6.2 Parameter Expansion): the colon makes an empty value count as
    // unset.
    let value = value.filter(|value| !(operator.starts_with(':') && value.is_empty()));
    // Variables in an unused default cause no warnings.
    let mut unset_inside = Vec::new();
    let (default, used) = expand_default(&text[head..], lookup, depth, &mut unset_inside)?;
    if value.is_none() {
        unset.append(&mut unset_inside);
    }
    Ok((value.unwrap_or(default), head + used))
}

/// Expands a default up to its `}`; the length includes the `}`.
fn expand_default(
    text: &str,
    lookup: VariableLookup<'_>,
    depth: usize,
    unset: &mut Vec<String>,
) -> Result<(String, usize), String> {
    let (mut out, mut used) = (String::new(), 0);
    loop {
        let rest = &text[used..];
        if rest.starts_with("${") {
            let (value, length) = expand_expression(rest, lookup, depth + 1, unset)?;
            out.push_str(&value);
            used += length;
            continue;
        }
        match rest.chars().next() {
            Some('}') => return Ok((out, used + 1)),
            // Limited to one line: a missing brace would else swallow the rest of the file.
            None | Some('\n') => {
                return Err(
                    "`${` has no `}` on its line; write `$${` for a literal `${`".to_owned(),
                );
            }
            Some(char) => {
                out.push(char);
                used += char.len_utf8();
            }
        }
    }
}

fn unknown_form_message() -> String {
    "unknown form of `${…}`: write `${VAR}`, `${VAR:-default}` or `${VAR-default}`, or `$${` for a literal `${`"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "A" => Some("alpha".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn every_form_is_substituted() {
        for (written, reads) in [
            ("x ${A} y", "x alpha y"),
            ("${B}", ""),
            ("${B:-b}", "b"),
            ("${B-b}", "b"),
            ("${B:=b}", "b"),
            ("${EMPTY:-e}|${EMPTY-e}", "e|"),
            ("${B:-${A}/${C:-c}}", "alpha/c"),
            ("${B:-http://x:1}", "http://x:1"),
            ("$${A} $A $$ $", "${A} $A $$ $"),
            ("# ${A!}\nx: ${A}", "# ${A!}\nx: alpha"),
            ("é${A}é", "éalphaé"),
        ] {
            let out = substitute(written, &lookup);
            assert_eq!(out.text, reads, "{written}");
            assert!(
                out.problems.iter().all(|problem| !problem.is_fatal),
                "{written}: {:?}",
                out.problems
            );
        }
    }

    #[test]
    fn unknown_forms_are_reported_at_their_place() {
        for written in [
            "é ${A!}",
            "é ${}",
            "é ${1}",
            "é ${A:?no}",
            "é ${A",
            "é ${A:-x\n}",
        ] {
            let problems = substitute(written, &lookup).problems;
            assert_eq!(
                problems
                    .iter()
                    .map(|f| (f.start, f.is_fatal))
                    .collect::<Vec<_>>(),
                [(2, true)],
                "{written}"
            );
        }
    }

    proptest! {
        #[test]
        fn segments_of_any_text_are_in_order(text in "[${}A:\\-=#\\n é]{0,60}") {
            let out = substitute(&text, &lookup);
            prop_assert!(out.segments.windows(2).all(|w| w[0].substituted_start <= w[1].substituted_start && w[0].original_start <= w[1].original_start));
        }
        #[test]
        fn text_without_variables_is_itself(text in "[^$]{0,80}") {
            prop_assert_eq!(substitute(&text, &lookup).text, text);
        }
    }
}
