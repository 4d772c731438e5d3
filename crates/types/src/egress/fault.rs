//! What is wrong with a destination as it was written.

use std::fmt;

/// The first destination of a text that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid egress `{item}`: {flaw}")]
pub struct InvalidEgress {
    /// Its place as written, shortened. Not the rest: what should name a secret may be one.
    pub item: String,
    /// What is wrong with it.
    pub flaw: EgressFault,
}

/// What is wrong with one destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressFault {
    /// The place is no `HOST:PORT`.
    #[error("{0}")]
    InvalidAddress(&'static str),
    /// What follows the place is no `KEY=VALUE`.
    #[error(
        "`{0}` is not a setting: write KEY=VALUE, with blanks between settings and none around `=`"
    )]
    NotASetting(String),
    /// There is no such setting.
    #[error("unknown setting `{key}`: there are {}", Words(known))]
    UnknownKey {
        /// As written.
        key: String,
        /// Those that there are.
        known: &'static [&'static str],
    },
    /// The value is none of those that there are.
    #[error("{key}: `{word}` is none of {}", Words(known))]
    UnknownValue {
        /// The setting.
        key: &'static str,
        /// Its value as written.
        word: String,
        /// Those that there are.
        known: &'static [&'static str],
    },
    /// The value is not understood.
    #[error("{key}: {why}")]
    InvalidValue {
        /// The setting.
        key: &'static str,
        /// What is wrong with its value.
        why: String,
    },
    /// A setting stands twice.
    #[error("`{0}` is written twice")]
    DuplicateSetting(&'static str),
    /// The place stands twice, with other settings.
    #[error("it is declared twice, with different settings")]
    ConflictingSettings,
    /// A function declares too many.
    #[error("a function has at most {0} destinations")]
    TooMany(usize),
}

impl EgressFault {
    /// The word that was probably mistyped, and those that it may have meant.
    pub fn mistyped_word(&self) -> Option<(&str, &'static [&'static str])> {
        match self {
            Self::UnknownKey { key, known } => Some((key, known)),
            Self::UnknownValue { word, known, .. } => Some((word, known)),
            _ => None,
        }
    }

    /// Of `item`, as it was written.
    pub(super) fn at_item(self, item: &str) -> InvalidEgress {
        let place = item.split_ascii_whitespace().next().unwrap_or_default();
        InvalidEgress {
            item: shorten(place),
            flaw: self,
        }
    }

    pub(super) fn invalid_value(key: &'static str, why: impl Into<String>) -> Self {
        Self::InvalidValue {
            key,
            why: why.into(),
        }
    }
}

/// A text short enough for a message.
pub(super) fn shorten(text: &str) -> String {
    match text.chars().count() {
        0..=60 => text.to_owned(),
        _ => text.chars().take(57).chain("...".chars()).collect(),
    }
}

/// Words with commas between.
struct Words(&'static [&'static str]);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}
