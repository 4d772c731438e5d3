//! Parser of the tenant's command line.

/// Splits at white space; `'…'` and `"…"` keep white space inside an argument. There are no escapes
/// and no variables: a command that needs a shell is written `sh -c '…'`.
pub fn split_command(text: &str) -> Result<Vec<String>, String> {
    let mut arguments = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => arguments.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    arguments.extend(word);
    match (quote, arguments.is_empty()) {
        (Some(quote), _) => Err(format!("the quote {quote} is not closed")),
        (None, true) => Err("the command is empty".to_owned()),
        (None, false) if arguments.iter().any(|word| word.contains('\0')) => {
            // execve(2) takes strings that end with NUL, so none can be inside.
            Err("the command contains a NUL".to_owned())
        }
        (None, false) => Ok(arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_and_quotes() {
        assert_eq!(
            split_command("python3  index.py").unwrap(),
            ["python3", "index.py"]
        );
        assert_eq!(
            split_command(r#"sh -c 'echo "a b"' """#).unwrap(),
            ["sh", "-c", r#"echo "a b""#, ""]
        );
        assert_eq!(split_command("a'b c'd").unwrap(), ["ab cd"]);
        for bad in ["", "   ", "sh -c 'echo"] {
            assert!(split_command(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in prop::collection::vec("[a-z \"$\\\\]{0,8}", 1..6)) {
            let line: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
            prop_assert_eq!(split_command(&line.join(" ")).unwrap(), words);
        }
        #[test]
        fn any_text_is_answered(text in ".{0,60}") {
            let _ = split_command(&text);
        }
    }
}
