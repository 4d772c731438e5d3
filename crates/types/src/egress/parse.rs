//! Parser of destinations: `HOST:PORT`, and settings `KEY=VALUE` after blanks; several with commas
//! between.

use std::str::FromStr;

use super::fault::{EgressFault, InvalidEgress, shorten};
use super::settings::EgressSettings;
use super::{EgressSpec, host};

/// Maximum number of destinations of one function.
pub const MAX_DESTINATIONS: usize = 64;

/// Parses the list of an annotation. Destinations that are written twice with the same settings
/// count once.
///
/// # Errors
/// With the first invalid item.
pub fn parse_list(text: &str) -> Result<Vec<EgressSpec>, InvalidEgress> {
    let mut destinations: Vec<EgressSpec> = Vec::new();
    for item in text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let destination: EgressSpec = item.parse()?;
        match destinations
            .iter()
            .find(|other| other.is_same_address(&destination))
        {
            // A list that was joined from parts may repeat a destination.
            Some(other) if *other == destination => {}
            Some(_) => return Err(EgressFault::ConflictingSettings.at_item(item)),
            None if destinations.len() == MAX_DESTINATIONS => {
                return Err(EgressFault::TooMany(MAX_DESTINATIONS).at_item(item));
            }
            None => destinations.push(destination),
        }
    }
    Ok(destinations)
}

impl FromStr for EgressSpec {
    type Err = InvalidEgress;

    fn from_str(text: &str) -> Result<Self, InvalidEgress> {
        parse_destination(text).map_err(|flaw| flaw.at_item(text))
    }
}

fn parse_destination(text: &str) -> Result<EgressSpec, EgressFault> {
    let mut parts = text.split_ascii_whitespace();
    let mut declared = EgressBuilder::for_address(parts.next().unwrap_or_default())?;
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| EgressFault::NotASetting(shorten(part)))?;
        declared.set(key, value)?;
    }
    declared.build()
}

/// Builder of a destination, for formats that have its settings one by one.
#[derive(Debug, Clone)]
pub struct EgressBuilder {
    host: host::EgressHost,
    port: u16,
    settings: EgressSettings,
}

impl EgressBuilder {
    /// Starts with `HOST:PORT`.
    ///
    /// # Errors
    /// When the address is invalid.
    pub fn for_address(address: &str) -> Result<Self, EgressFault> {
        let (host, port) = host::parse_host_port(address)?;
        Ok(Self {
            host,
            port,
            settings: EgressSettings::default(),
        })
    }

    /// Sets one setting, as in the text form.
    ///
    /// # Errors
    /// When the setting is unknown, was set before, or has an invalid value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), EgressFault> {
        self.settings.set(key, value)
    }

    /// Builds the destination, with a default for what was not set.
    ///
    /// # Errors
    /// When settings contradict each other.
    pub fn build(self) -> Result<EgressSpec, EgressFault> {
        self.settings.build_destination(self.host, self.port)
    }
}
