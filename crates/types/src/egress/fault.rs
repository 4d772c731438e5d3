//! Errors of a destination's text form.

use std::fmt;

/// Error of the first invalid destination of a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid egress `{item}`: {flaw}")]
pub struct InvalidEgress {
    /// Address as written, shortened. The rest is left out: a secret may stand where its name
    /// should.
    pub item: String,
    /// Fault of the destination.
    pub flaw: EgressFault,
}

/// Fault of one destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressFault {
    /// The address is no `HOST:PORT`.
    #[error("{0}")]
    InvalidAddress(&'static str),
    /// The text after the address is no `KEY=VALUE`.
    #[error(
        "`{0}` is not a setting: write KEY=VALUE, with blanks between settings and none around `=`"
    )]
    NotASetting(String),
    /// Unknown setting.
    #[error("unknown setting `{key}`: expected one of {}", NameList(known))]
    UnknownKey {
        /// As written.
        key: String,
        /// Known settings.
        known: &'static [&'static str],
    },
    /// The value is none of the known ones.
    #[error("{key}: invalid value `{word}`: expected one of {}", NameList(known))]
    UnknownValue {
        /// The setting.
        key: &'static str,
        /// Its value as written.
        word: String,
        /// Known values.
        known: &'static [&'static str],
    },
    /// The value is invalid.
    #[error("{key}: {why}")]
    InvalidValue {
        /// The setting.
        key: &'static str,
        /// Fault of the value.
        why: String,
    },
    /// A setting is written twice.
    #[error("`{0}` is written twice")]
    DuplicateSetting(&'static str),
    /// An address is declared twice, with different settings.
    #[error("it is declared twice, with different settings")]
    ConflictingSettings,
    /// A function declares too many.
    #[error("a function has at most {0} destinations")]
    TooMany(usize),
}

impl EgressFault {
    /// Returns the word that was probably mistyped, and those that it may have meant.
    pub fn mistyped_word(&self) -> Option<(&str, &'static [&'static str])> {
        match self {
            Self::UnknownKey { key, known } => Some((key, known)),
            Self::UnknownValue { word, known, .. } => Some((word, known)),
            _ => None,
        }
    }

    /// Attaches the text of the destination.
    pub(super) fn at_item(self, item: &str) -> InvalidEgress {
        // The address alone, see the field.
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

/// Shortens a text for a message.
pub(super) fn shorten(text: &str) -> String {
    match text.chars().count() {
        0..=60 => text.to_owned(),
        _ => text.chars().take(57).chain("...".chars()).collect(),
    }
}

/// Names with commas between.
struct NameList(&'static [&'static str]);

impl fmt::Display for NameList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}
