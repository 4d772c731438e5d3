//! Colours: only on a terminal, unless `NO_COLOR` is set (<https://no-color.org>) or the terminal is `dumb`.

use std::io::IsTerminal;

/// Meaning of a coloured text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextColor {
    Good,
    Warning,
    Bad,
    Faint,
}

/// Colours or plain text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextStyle {
    colours: bool,
}

impl TextStyle {
    /// The style for a stream of this process.
    pub(crate) fn for_stream(stream: &impl IsTerminal) -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colours: stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb,
        }
    }

    /// Returns the text in that colour, or plain.
    pub(crate) fn paint(self, color: TextColor, text: &str) -> String {
        // SGR codes of ECMA-48, which every terminal knows.
        let code = match color {
            TextColor::Good => 32,
            TextColor::Warning => 33,
            TextColor::Bad => 31,
            TextColor::Faint => 2,
        };
        match self.colours {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}
