//! Colours of texts: only on a terminal, and neither with `NO_COLOR` (<https://no-color.org>) nor
//! with `TERM=dumb`.

use std::io::IsTerminal;

/// Meaning of a text, which selects its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextMeaning {
    Good,
    Warning,
    Bad,
    Faint,
}

/// Style of an output stream: with colours, or plain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextStyle {
    has_colors: bool,
}

impl TextStyle {
    /// Returns the style for standard output or standard error of this process.
    pub(crate) fn for_stream(stream: &impl IsTerminal) -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            has_colors: stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb,
        }
    }

    /// Returns the text with escape sequences for that colour, or unchanged in the plain style.
    pub(crate) fn paint(self, color: TextMeaning, text: &str) -> String {
        // SGR parameters (ECMA-48 section 8.3.117), which every terminal supports.
        let code = match color {
            TextMeaning::Good => 32,    // green
            TextMeaning::Warning => 33, // yellow
            TextMeaning::Bad => 31,     // red
            TextMeaning::Faint => 2,    // the terminal's colour with lower intensity
        };
        match self.has_colors {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}
