//! Egress from text: `HOST:PORT`, and settings `KEY=VALUE` after blanks; several with commas between.

use std::str::FromStr;

use super::flaw::{Flaw, InvalidEgress, brief};
use super::settings::Settings;
use super::{Egress, host};

/// Most destinations of one function.
pub const MOST: usize = 64;

/// Reads the list of an annotation. Destinations that are written twice with the same settings count once.
///
/// # Errors
/// With the first item that is not understood.
pub fn list(text: &str) -> Result<Vec<Egress>, InvalidEgress> {
    let mut read: Vec<Egress> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let one: Egress = item.parse()?;
        match read.iter().find(|other| other.is_at(&one)) {
            Some(other) if *other == one => {}
            Some(_) => return Err(Flaw::Contradiction.of(item)),
            None if read.len() == MOST => return Err(Flaw::TooMany(MOST).of(item)),
            None => read.push(one),
        }
    }
    Ok(read)
}

impl FromStr for Egress {
    type Err = InvalidEgress;

    fn from_str(text: &str) -> Result<Self, InvalidEgress> {
        one(text).map_err(|flaw| flaw.of(text))
    }
}

fn one(text: &str) -> Result<Egress, Flaw> {
    let mut words = text.split_ascii_whitespace();
    let mut declared = Declared::to(words.next().unwrap_or_default())?;
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| Flaw::NotASetting(brief(word)))?;
        declared.set(key, value)?;
    }
    declared.finish()
}

/// A destination whose settings are still being read, for formats that have them one by one.
#[derive(Debug, Clone)]
pub struct Declared {
    host: host::Host,
    port: u16,
    settings: Settings,
}

impl Declared {
    /// Begins with `HOST:PORT`.
    ///
    /// # Errors
    /// When it is not one.
    pub fn to(place: &str) -> Result<Self, Flaw> {
        let (host, port) = host::read(place)?;
        Ok(Self { host, port, settings: Settings::default() })
    }

    /// One setting, as it stands in the text form.
    ///
    /// # Errors
    /// When there is none of this name, when it was set before, and when its value is not understood.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Flaw> {
        self.settings.set(key, value)
    }

    /// The destination, with a default for what was not set.
    ///
    /// # Errors
    /// When settings contradict each other.
    pub fn finish(self) -> Result<Egress, Flaw> {
        self.settings.settle(self.host, self.port)
    }
}
