//! Colours: only on a terminal, and not when `NO_COLOR` is set (<https://no-color.org>) or the terminal is `dumb`.

use std::io::IsTerminal;

/// What a text means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Good,
    Doubtful,
    Bad,
    Faint,
}

/// Whether to colour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    colours: bool,
}

impl Style {
    /// For a stream of this process.
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { colours: stream.is_terminal() && !set("NO_COLOR") && !dumb }
    }

    /// The text, coloured or plain.
    pub(crate) fn paint(self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Good => 32,
            Paint::Doubtful => 33,
            Paint::Bad => 31,
            Paint::Faint => 2,
        };
        match self.colours {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}
