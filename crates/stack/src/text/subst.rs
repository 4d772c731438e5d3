//! `${VAR}` substitution on the text of a file, before it is parsed: what OpenFaaS's client does, in its plain forms.
//!
//! | written | reads as |
//! | --- | --- |
//! | `${VAR}` | the variable; nothing when it is not set (with a warning) |
//! | `${VAR:-text}`, `${VAR:=text}` | the variable, or `text` when it is not set or empty |
//! | `${VAR-text}`, `${VAR=text}` | the variable, or `text` when it is not set |
//! | `$${` | `${` |
//!
//! `$VAR` and a lone `$` stay as they are. Every other `${…}` is a flaw, except on lines that are only a comment. Pure:
//! variables come through a function.

/// Gives the value of an environment variable.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where a stretch of the result comes from; it reaches to the start of the next piece. Counted in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) read: usize,
    pub(crate) written: usize,
    /// Whether it was copied; else it stands for one `${…}`.
    pub(crate) literal: bool,
}

/// Something wrong with a `${…}`, at these characters of the written text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) fatal: bool,
    pub(crate) text: String,
}

/// The result, and the way back to what was written.
#[derive(Debug, Default)]
pub(crate) struct Substituted {
    pub(crate) text: String,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) flaws: Vec<Flaw>,
    chars: usize,
}

/// The result may not grow beyond this many bytes.
const MAX_RESULT: usize = 4 << 20;
/// Defaults may hold `${…}` themselves, this deep.
const MAX_DEPTH: usize = 8;

/// Replaces every `${…}` in `text`.
pub(crate) fn substitute(text: &str, lookup: Lookup<'_>) -> Substituted {
    let mut out = Substituted::default();
    let (mut rest, mut at) = (text, 0);
    while !rest.is_empty() {
        let plain = plain_length(rest);
        let (copied, tail) = rest.split_at(plain);
        out.push(copied, at, true);
        at += copied.chars().count();
        rest = tail;
        if let Some(tail) = rest.strip_prefix("$${") {
            out.push("${", at, false);
            (rest, at) = (tail, at + 3);
        } else if rest.starts_with("${") {
            let used = out.replace(rest, at, lookup);
            at += rest[..used].chars().count();
            rest = &rest[used..];
        }
        if out.text.len() > MAX_RESULT {
            out.flaw(at, at, true, format!("the file is larger than {} MiB after substitution", MAX_RESULT >> 20));
            break;
        }
    }
    out
}

impl Substituted {
    fn push(&mut self, text: &str, written: usize, literal: bool) {
        self.pieces.push(Piece { read: self.chars, written, literal });
        self.text.push_str(text);
        self.chars += text.chars().count();
    }

    fn flaw(&mut self, start: usize, end: usize, fatal: bool, text: String) {
        self.flaws.push(Flaw { start, end, fatal, text });
    }

    /// Replaces the `${…}` that `rest` starts with; returns how many bytes of `rest` that used.
    fn replace(&mut self, rest: &str, at: usize, lookup: Lookup<'_>) -> usize {
        let mut unset = Vec::new();
        match expand(rest, lookup, 0, &mut unset) {
            Ok((value, used)) => {
                let end = at + rest[..used].chars().count();
                for name in unset {
                    let text = format!(
                        "{name} is not set: `${{{name}}}` reads as nothing; `${{{name}:-text}}` gives a default"
                    );
                    self.flaw(at, end, false, text);
                }
                self.push(&value, at, false);
                used
            }
            Err(text) => {
                self.flaw(at, at + 2, true, text);
                self.push("${", at, true);
                2
            }
        }
    }
}

/// Bytes of `text` up to the next `${` or `$${` that is not on a comment line.
fn plain_length(text: &str) -> usize {
    let mut from = 0;
    while let Some(found) = text[from..].find("${") {
        let hit = from + found;
        let line = text[..hit].rfind('\n').map_or(0, |newline| newline + 1);
        let whole_line = line > 0 || from == 0;
        if !(whole_line && text[line..hit].trim_start().starts_with('#')) {
            let escaped = hit > 0 && text.as_bytes()[hit - 1] == b'$';
            return hit - usize::from(escaped);
        }
        from = text[hit..].find('\n').map_or(text.len(), |newline| hit + newline);
    }
    text.len()
}

/// The value of the `${…}` that `text` starts with, and its length in bytes.
fn expand(text: &str, lookup: Lookup<'_>, depth: usize, unset: &mut Vec<String>) -> Result<(String, usize), String> {
    let inner = &text[2..];
    let name = &inner[..inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len())];
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || depth > MAX_DEPTH {
        return Err(unknown_form());
    }
    let value = lookup(name);
    let after = &inner[name.len()..];
    let operator = [":-", ":=", "-", "=", "}"].into_iter().find(|operator| after.starts_with(operator));
    let operator = operator.ok_or_else(unknown_form)?;
    let head = 2 + name.len() + operator.len();
    if operator == "}" {
        if value.is_none() {
            unset.push(name.to_owned());
        }
        return Ok((value.unwrap_or_default(), head));
    }
    let value = value.filter(|value| !(operator.starts_with(':') && value.is_empty()));
    let mut unset_inside = Vec::new();
    let (default, used) = default_text(&text[head..], lookup, depth, &mut unset_inside)?;
    if value.is_none() {
        unset.append(&mut unset_inside);
    }
    Ok((value.unwrap_or(default), head + used))
}

/// A default up to its `}`, with what is nested in it replaced; its length includes the `}`.
fn default_text(
    text: &str,
    lookup: Lookup<'_>,
    depth: usize,
    unset: &mut Vec<String>,
) -> Result<(String, usize), String> {
    let (mut out, mut used) = (String::new(), 0);
    loop {
        let rest = &text[used..];
        if rest.starts_with("${") {
            let (value, length) = expand(rest, lookup, depth + 1, unset)?;
            out.push_str(&value);
            used += length;
            continue;
        }
        match rest.chars().next() {
            Some('}') => return Ok((out, used + 1)),
            None | Some('\n') => return Err("`${` has no `}` on its line; write `$${` for a literal `${`".to_owned()),
            Some(char) => {
                out.push(char);
                used += char.len_utf8();
            }
        }
    }
}

fn unknown_form() -> String {
    "this form of `${…}` is not known: write `${VAR}`, `${VAR:-default}` or `${VAR-default}`, or `$${` for a literal `${`"
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
    fn every_form() {
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
            assert!(out.flaws.iter().all(|flaw| !flaw.fatal), "{written}: {:?}", out.flaws);
        }
    }

    #[test]
    fn other_forms_are_flaws_where_they_stand() {
        for written in ["é ${A!}", "é ${}", "é ${1}", "é ${A:?no}", "é ${A", "é ${A:-x\n}"] {
            let flaws = substitute(written, &lookup).flaws;
            assert_eq!(flaws.iter().map(|f| (f.start, f.fatal)).collect::<Vec<_>>(), [(2, true)], "{written}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered_and_its_pieces_are_in_order(text in "[${}A:\\-=#\\n é]{0,60}") {
            let out = substitute(&text, &lookup);
            prop_assert!(out.pieces.windows(2).all(|w| w[0].read <= w[1].read && w[0].written <= w[1].written));
        }
        #[test]
        fn text_without_variables_is_itself(text in "[^$]{0,80}") {
            prop_assert_eq!(substitute(&text, &lookup).text, text);
        }
    }
}
