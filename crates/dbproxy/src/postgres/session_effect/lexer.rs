//! Lexer of SQL, after PostgreSQL's `scan.l` with `standard_conforming_strings` on.

/// A token of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SqlToken<'a> {
    /// A keyword or an unquoted name.
    Word(&'a [u8]),
    /// A quoted name, without its quotes.
    Quoted(&'a [u8]),
    /// A string literal of any kind, without its quotes.
    Text(&'a [u8]),
    /// A number or a parameter.
    Number,
    /// Any other byte.
    Symbol(u8),
}

/// A text that cannot be split reliably, or that is not SQL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnclearSql;

/// Lexer over a text.
pub(super) struct SqlLexer<'a> {
    text: &'a [u8],
}

impl<'a> SqlLexer<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text }
    }

    fn next_token(&mut self) -> Result<Option<SqlToken<'a>>, UnclearSql> {
        self.skip_blank()?;
        let Some(&first) = self.text.first() else {
            return Ok(None);
        };
        let token = match first {
            b'\'' => SqlToken::Text(self.read_quoted(b'\'')?),
            b'"' => SqlToken::Quoted(self.read_quoted(b'"')?),
            b'$' => self.read_dollar()?,
            b'0'..=b'9' => {
                self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'));
                SqlToken::Number
            }
            _ if begins_word(first) => self.read_word()?,
            mark => {
                self.text = &self.text[1..];
                SqlToken::Symbol(mark)
            }
        };
        Ok(Some(token))
    }

    fn skip_blank(&mut self) -> Result<(), UnclearSql> {
        loop {
            self.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c));
            if self.text.starts_with(b"--") {
                self.take_while(|byte| !matches!(byte, b'\n' | b'\r'));
            } else if self.text.starts_with(b"/*") {
                self.skip_comment()?;
            } else {
                return Ok(());
            }
        }
    }

    /// Skips a comment. Comments nest.
    fn skip_comment(&mut self) -> Result<(), UnclearSql> {
        // Nested as in standard SQL and unlike C: a lexer without nesting would resume within a comment.
        let mut depth = 0;
        loop {
            if self.text.starts_with(b"/*") {
                depth += 1;
                self.text = &self.text[2..];
            } else if self.text.starts_with(b"*/") {
                depth -= 1;
                self.text = &self.text[2..];
            } else {
                self.text = self.text.get(1..).ok_or(UnclearSql)?;
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Reads a quoted text; a doubled quote is part of it.
    fn read_quoted(&mut self, quote: u8) -> Result<&'a [u8], UnclearSql> {
        let (text, mut at) = (self.text, 1);
        loop {
            at += text[at..]
                .iter()
                .position(|&byte| byte == quote)
                .ok_or(UnclearSql)?;
            if text.get(at + 1) != Some(&quote) {
                break;
            }
            at += 2;
        }
        self.text = &text[at + 1..];
        Ok(&text[1..at])
    }

    /// Reads `E'…'`, where a backslash escapes. A continuation after a new line is not followed.
    fn read_escaped(&mut self) -> Result<SqlToken<'a>, UnclearSql> {
        let (text, mut at) = (self.text, 1);
        loop {
            match text.get(at).ok_or(UnclearSql)? {
                b'\\' => at += 2,
                b'\'' if text.get(at + 1) == Some(&b'\'') => at += 2,
                b'\'' => break,
                _ => at += 1,
            }
        }
        self.text = &text[at + 1..];
        // Two literals with a line break between them are one; the second one would have escapes,
        // too.
        self.skip_blank()?;
        if self.text.starts_with(b"'") {
            Err(UnclearSql)
        } else {
            Ok(SqlToken::Text(&text[1..at]))
        }
    }

    fn read_word(&mut self) -> Result<SqlToken<'a>, UnclearSql> {
        let word =
            self.take_while(|byte| begins_word(byte) || byte.is_ascii_digit() || byte == b'$');
        match (word, self.text.first()) {
            (b"e" | b"E", Some(b'\'')) => self.read_escaped(),
            (b"b" | b"B" | b"x" | b"X" | b"n" | b"N", Some(b'\'')) => {
                Ok(SqlToken::Text(self.read_quoted(b'\'')?))
            }
            // The Unicode escapes of such a name are not decoded, so the name is unknown.
            (b"u" | b"U", Some(b'&')) if matches!(self.text.get(1), Some(b'"' | b'\'')) => {
                Err(UnclearSql)
            }
            _ => Ok(SqlToken::Word(word)),
        }
    }

    /// Reads `$1`, or a text between `$tag$` and `$tag$`.
    fn read_dollar(&mut self) -> Result<SqlToken<'a>, UnclearSql> {
        // A tag follows the rules of a name and cannot begin with a digit.
        let tag = 1 + self.text[1..]
            .iter()
            .take_while(|&&byte| begins_word(byte) || byte.is_ascii_digit())
            .count();
        if self.text.get(1).is_some_and(u8::is_ascii_digit) || self.text.get(tag) != Some(&b'$') {
            self.text = &self.text[1..];
            return Ok(SqlToken::Symbol(b'$'));
        }
        let (quote, rest) = self.text.split_at(tag + 1);
        let end = find_bytes(rest, quote).ok_or(UnclearSql)?;
        self.text = &rest[end + quote.len()..];
        Ok(SqlToken::Text(&rest[..end]))
    }

    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self
            .text
            .iter()
            .position(|&byte| !wanted(byte))
            .unwrap_or(self.text.len());
        let (taken, rest) = self.text.split_at(end);
        self.text = rest;
        taken
    }
}

impl<'a> Iterator for SqlLexer<'a> {
    type Item = Result<SqlToken<'a>, UnclearSql>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_token().transpose()
    }
}

fn begins_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn find_bytes(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len())
        .position(|window| window == wanted)
}

impl SqlToken<'_> {
    /// Returns whether this is the given keyword or name; quotes do not matter, because they do not
    /// hide a function.
    pub(super) fn is(&self, name: &str) -> bool {
        matches!(self, Self::Word(word) | Self::Quoted(word) if word.eq_ignore_ascii_case(name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::SqlToken::{Number, Quoted, Symbol, Text, Word};
    use super::*;

    fn tokens(text: &str) -> Result<Vec<SqlToken<'_>>, UnclearSql> {
        SqlLexer::new(text.as_bytes()).collect()
    }

    #[test]
    fn texts_names_and_comments_hide_their_content() {
        let cut = |text| tokens(text).unwrap();
        assert_eq!(
            cut("a 'it''s; b' \"c\"\"d\""),
            [Word(b"a"), Text(b"it''s; b"), Quoted(b"c\"\"d")]
        );
        assert_eq!(
            cut("/* a /* b */ ; */ x -- y\n;"),
            [Word(b"x"), Symbol(b';')]
        );
        assert_eq!(
            cut(r"E'a\'; b', 'c\' d"),
            [Text(br"a\'; b"), Symbol(b','), Text(br"c\"), Word(b"d")]
        );
        assert_eq!(
            cut("$1 $$a;$b$ $$ $t$ $$ $t$ a$b$c"),
            [
                Symbol(b'$'),
                Number,
                Text(b"a;$b$ "),
                Text(b" $$ "),
                Word(b"a$b$c")
            ]
        );
        assert_eq!(cut("1e5 1.5_0 x'1f'"), [Number, Number, Text(b"1f")]);
    }

    #[test]
    fn ambiguous_text_is_unclear() {
        for text in [
            "'a",
            "\"a",
            "/* a /* */",
            "$a$ $b$",
            r"E'\'",
            "U&\"a\"",
            "E'a'\n'b'",
        ] {
            assert_eq!(tokens(text), Err(UnclearSql), "{text}");
        }
    }
}
