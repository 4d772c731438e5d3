//! The tokens of a Rust file, as far as imports need them: names, paths and brackets, without
//! comments and literals.

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or keyword.
    Name(String),
    /// `::`.
    Path,
    /// Any other character.
    Sign(char),
}

/// Splits a file into tokens.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut tokens) = (0, Vec::new());
    while at < chars.len() {
        let rest = &chars[at..];
        at += match rest[0] {
            '/' if rest.starts_with(&['/', '/']) => line_length(rest),
            '/' if rest.starts_with(&['/', '*']) => block_comment_length(rest),
            '"' => string_length(rest),
            // A quote inside a literal must not start a string.
            '\'' => char_or_lifetime_length(rest),
            c if c.is_alphabetic() || c == '_' => name(rest, &mut tokens),
            c if c.is_ascii_digit() => rest
                .iter()
                .take_while(|c| c.is_alphanumeric() || **c == '_')
                .count(),
            ':' if rest.get(1) == Some(&':') => {
                tokens.push(Token::Path);
                2
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token::Sign(c));
                }
                1
            }
        };
    }
    tokens
}

fn line_length(rest: &[char]) -> usize {
    rest.iter().take_while(|c| **c != '\n').count()
}

fn block_comment_length(rest: &[char]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (at, depth) = (at + 2, depth + 1),
            ['*', '/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        // Rust's block comments nest.
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_length(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        // An escaped quote does not end the string.
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// `'a'` and `'\n'` are characters, `'a` is a lifetime.
fn char_or_lifetime_length(rest: &[char]) -> usize {
    match rest {
        [_, '\\', _, tail @ ..] => 3 + tail.iter().take_while(|c| **c != '\'').count() + 1,
        [_, _, '\'', ..] => 3,
        _ => 1,
    }
}

/// A name; one that is a literal's prefix (`b"…"`, `r#"…"#`) is skipped with its literal.
fn name(rest: &[char], tokens: &mut Vec<Token>) -> usize {
    let length = rest
        .iter()
        .take_while(|c| c.is_alphanumeric() || **c == '_')
        .count();
    let name: String = rest[..length].iter().collect();
    let after = &rest[length..];
    match (name.as_str(), after.first()) {
        ("r" | "br" | "cr", Some('"' | '#')) if is_raw_string(after) => {
            length + raw_string_length(after)
        }
        ("b" | "c", Some('"')) => length + string_length(after),
        ("b", Some('\'')) => length + char_or_lifetime_length(after),
        ("r", Some('#')) => length + 1, // a raw identifier: the name follows
        _ => {
            tokens.push(Token::Name(name));
            length
        }
    }
}

fn is_raw_string(after: &[char]) -> bool {
    after.iter().find(|c| **c != '#') == Some(&'"')
}

fn raw_string_length(after: &[char]) -> usize {
    let marks = after.iter().take_while(|c| **c == '#').count();
    let mut at = marks + 1;
    while at < after.len() {
        if after[at] == '"' && after[at + 1..].iter().take_while(|c| **c == '#').count() >= marks {
            return at + 1 + marks;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_skipped() {
        let text = "// crate::a\n/* crate::b /* c */ */ fn x<'a>(y: &'a str) { r#\"crate::d\"#; b\"\\\"e\"; 'f'; '\\''; 1u8; g::h }";
        let names: Vec<_> = tokens(text)
            .into_iter()
            .filter_map(|token| match token {
                Token::Name(name) => Some(name),
                _ => None,
            })
            .collect();
        assert_eq!(names, ["fn", "x", "a", "y", "a", "str", "g", "h"]);
    }
}
