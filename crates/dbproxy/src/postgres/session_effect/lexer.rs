//! Cuts a text into the tokens of SQL as PostgreSQL's `scan.l` does, with `standard_conforming_strings` on.

/// One token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A keyword or a name without quotes.
    Word(&'a [u8]),
    /// A name in quotes, without them.
    Quoted(&'a [u8]),
    /// A text, of any kind, without its quotes.
    Text(&'a [u8]),
    /// A number or a parameter.
    Number,
    /// Any other byte.
    Mark(u8),
}

/// What cannot be told without more knowledge than this has, or is no SQL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unclear;

/// The tokens of `text`.
pub(super) struct Tokens<'a> {
    text: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(super) fn of(text: &'a [u8]) -> Self {
        Self { text }
    }

    fn one(&mut self) -> Result<Option<Token<'a>>, Unclear> {
        self.skip_blank()?;
        let Some(&first) = self.text.first() else { return Ok(None) };
        let token = match first {
            b'\'' => Token::Text(self.quoted(b'\'')?),
            b'"' => Token::Quoted(self.quoted(b'"')?),
            b'$' => self.dollar()?,
            b'0'..=b'9' => {
                self.take(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'));
                Token::Number
            }
            _ if begins_word(first) => self.word()?,
            mark => {
                self.text = &self.text[1..];
                Token::Mark(mark)
            }
        };
        Ok(Some(token))
    }

    fn skip_blank(&mut self) -> Result<(), Unclear> {
        loop {
            self.take(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c));
            if self.text.starts_with(b"--") {
                self.take(|byte| !matches!(byte, b'\n' | b'\r'));
            } else if self.text.starts_with(b"/*") {
                self.comment()?;
            } else {
                return Ok(());
            }
        }
    }

    /// Comments nest.
    fn comment(&mut self) -> Result<(), Unclear> {
        let mut depth = 0;
        loop {
            if self.text.starts_with(b"/*") {
                depth += 1;
                self.text = &self.text[2..];
            } else if self.text.starts_with(b"*/") {
                depth -= 1;
                self.text = &self.text[2..];
            } else {
                self.text = self.text.get(1..).ok_or(Unclear)?;
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// In quotes; a doubled one is none.
    fn quoted(&mut self, quote: u8) -> Result<&'a [u8], Unclear> {
        let (text, mut at) = (self.text, 1);
        loop {
            at += text[at..].iter().position(|&byte| byte == quote).ok_or(Unclear)?;
            if text.get(at + 1) != Some(&quote) {
                break;
            }
            at += 2;
        }
        self.text = &text[at + 1..];
        Ok(&text[1..at])
    }

    /// `E'…'`: backslashes escape, also in what continues it after a new line. That is not followed.
    fn escaped(&mut self) -> Result<Token<'a>, Unclear> {
        let (text, mut at) = (self.text, 1);
        loop {
            match text.get(at).ok_or(Unclear)? {
                b'\\' => at += 2,
                b'\'' if text.get(at + 1) == Some(&b'\'') => at += 2,
                b'\'' => break,
                _ => at += 1,
            }
        }
        self.text = &text[at + 1..];
        self.skip_blank()?;
        if self.text.starts_with(b"'") { Err(Unclear) } else { Ok(Token::Text(&text[1..at])) }
    }

    fn word(&mut self) -> Result<Token<'a>, Unclear> {
        let word = self.take(|byte| begins_word(byte) || byte.is_ascii_digit() || byte == b'$');
        match (word, self.text.first()) {
            (b"e" | b"E", Some(b'\'')) => self.escaped(),
            (b"b" | b"B" | b"x" | b"X" | b"n" | b"N", Some(b'\'')) => Ok(Token::Text(self.quoted(b'\'')?)),
            // Unicode escapes would have to be undone to know the name.
            (b"u" | b"U", Some(b'&')) if matches!(self.text.get(1), Some(b'"' | b'\'')) => Err(Unclear),
            _ => Ok(Token::Word(word)),
        }
    }

    /// `$1`, or a text between `$tag$` and `$tag$`.
    fn dollar(&mut self) -> Result<Token<'a>, Unclear> {
        let tag = 1 + self.text[1..].iter().take_while(|&&byte| begins_word(byte) || byte.is_ascii_digit()).count();
        if self.text.get(1).is_some_and(u8::is_ascii_digit) || self.text.get(tag) != Some(&b'$') {
            self.text = &self.text[1..];
            return Ok(Token::Mark(b'$'));
        }
        let (quote, rest) = self.text.split_at(tag + 1);
        let end = find(rest, quote).ok_or(Unclear)?;
        self.text = &rest[end + quote.len()..];
        Ok(Token::Text(&rest[..end]))
    }

    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.text.iter().position(|&byte| !wanted(byte)).unwrap_or(self.text.len());
        let (taken, rest) = self.text.split_at(end);
        self.text = rest;
        taken
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Result<Token<'a>, Unclear>;

    fn next(&mut self) -> Option<Self::Item> {
        self.one().transpose()
    }
}

fn begins_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

impl Token<'_> {
    /// Whether it is this keyword or name; quotes do not matter, for they do not hide a function.
    pub(super) fn is(&self, name: &str) -> bool {
        matches!(self, Self::Word(word) | Self::Quoted(word) if word.eq_ignore_ascii_case(name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::Token::{Mark, Number, Quoted, Text, Word};
    use super::*;

    fn tokens(text: &str) -> Result<Vec<Token<'_>>, Unclear> {
        Tokens::of(text.as_bytes()).collect()
    }

    #[test]
    fn texts_names_and_comments_hide_what_is_in_them() {
        let cut = |text| tokens(text).unwrap();
        assert_eq!(cut("a 'it''s; b' \"c\"\"d\""), [Word(b"a"), Text(b"it''s; b"), Quoted(b"c\"\"d")]);
        assert_eq!(cut("/* a /* b */ ; */ x -- y\n;"), [Word(b"x"), Mark(b';')]);
        assert_eq!(cut(r"E'a\'; b', 'c\' d"), [Text(br"a\'; b"), Mark(b','), Text(br"c\"), Word(b"d")]);
        assert_eq!(
            cut("$1 $$a;$b$ $$ $t$ $$ $t$ a$b$c"),
            [Mark(b'$'), Number, Text(b"a;$b$ "), Text(b" $$ "), Word(b"a$b$c")]
        );
        assert_eq!(cut("1e5 1.5_0 x'1f'"), [Number, Number, Text(b"1f")]);
    }

    #[test]
    fn what_is_not_understood_is_unclear() {
        for text in ["'a", "\"a", "/* a /* */", "$a$ $b$", r"E'\'", "U&\"a\"", "E'a'\n'b'"] {
            assert_eq!(tokens(text), Err(Unclear), "{text}");
        }
    }
}
