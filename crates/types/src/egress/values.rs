//! Parsers of single values of settings.

use std::time::Duration;

use crate::duration;

use super::fault::{EgressFault, shorten};
use super::protocol::PROTOCOL_TRAITS;
use super::{EgressProtocol, PoolingMode, SharingScope};

/// Highest connection limit: one address has no ports for more, beside everything else.
const MAX_CONNECTIONS: u32 = 10_000;
/// Maximum bytes of a user, a database or a secret's name.
const MAX_TEXT_BYTES: usize = 253;

/// Words and their values; names apart, for messages.
pub(super) type NamedValues<T> = (&'static [&'static str], &'static [T]);

pub(super) const POOLING_MODES: NamedValues<PoolingMode> = (
    &["session", "transaction"],
    &[PoolingMode::Session, PoolingMode::Transaction],
);
pub(super) const TLS_MODES: NamedValues<bool> = (&["pass", "originate"], &[false, true]);
pub(super) const WRITE_MODES: NamedValues<bool> = (&["sync", "async"], &[false, true]);
pub(super) const SHARING_SCOPES: NamedValues<SharingScope> = (
    &["function", "chain"],
    &[SharingScope::Function, SharingScope::Chain],
);

pub(super) fn parse_protocol(value: &str) -> Result<EgressProtocol, EgressFault> {
    let row = PROTOCOL_TRAITS.iter().find(|row| row.name == value);
    let unknown = || EgressFault::UnknownValue {
        key: "protocol",
        word: shorten(value),
        known: EgressProtocol::NAMES,
    };
    row.map(|row| row.protocol).ok_or_else(unknown)
}

pub(super) fn parse_word<T: Copy>(
    key: &'static str,
    value: &str,
    (known, values): NamedValues<T>,
) -> Result<T, EgressFault> {
    let at = known.iter().position(|word| *word == value);
    at.map(|at| values[at])
        .ok_or_else(|| EgressFault::UnknownValue {
            key,
            word: shorten(value),
            known,
        })
}

pub(super) fn parse_number(key: &'static str, value: &str, min: u32) -> Result<u32, EgressFault> {
    let number = value
        .parse()
        .ok()
        .filter(|number| (min..=MAX_CONNECTIONS).contains(number));
    number.ok_or_else(|| {
        EgressFault::invalid_value(
            key,
            format!(
                "`{}` is no number from {min} to {MAX_CONNECTIONS}",
                shorten(value)
            ),
        )
    })
}

pub(super) fn parse_duration(key: &'static str, value: &str) -> Result<Duration, EgressFault> {
    duration::parse_duration(value)
        .map_err(|error| EgressFault::invalid_value(key, error.to_string()))
}

/// Parses a duration above 0, which some take for `never` and others for `at once`.
pub(super) fn parse_nonzero_duration(
    key: &'static str,
    value: &str,
) -> Result<Duration, EgressFault> {
    match parse_duration(key, value)? {
        Duration::ZERO => Err(EgressFault::invalid_value(
            key,
            "0 is no time to keep a connection; `warm=0` keeps none open in advance",
        )),
        length => Ok(length),
    }
}

/// Parses a text that stands in a list between blanks and commas.
pub(super) fn parse_text(key: &'static str, value: &str) -> Result<String, EgressFault> {
    let fits = |char: char| !char.is_whitespace() && !char.is_control() && char != ',';
    match value.len() {
        0 => Err(EgressFault::invalid_value(key, "it is empty")),
        1..=MAX_TEXT_BYTES if value.chars().all(fits) => Ok(value.to_owned()),
        1..=MAX_TEXT_BYTES => Err(EgressFault::invalid_value(
            key,
            "it holds a blank, a comma or a control character",
        )),
        _ => Err(EgressFault::invalid_value(
            key,
            format!("it is longer than {MAX_TEXT_BYTES} bytes"),
        )),
    }
}

/// Parses `secret:NAME`. A secret itself is refused: everyone who may list functions sees their
/// specs.
pub(super) fn parse_secret_name(key: &'static str, value: &str) -> Result<String, EgressFault> {
    let name = value.strip_prefix("secret:").ok_or_else(|| {
        EgressFault::invalid_value(key, "write secret:NAME, with the name of a secret of the function's namespace, never its content")
    })?;
    // The form of Kubernetes' secrets: labels with dots between (RFC 1123).
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends =
            bytes.first().is_some_and(alphanumeric) && bytes.last().is_some_and(alphanumeric);
        ends && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
    };
    match name.len() <= MAX_TEXT_BYTES && name.split('.').all(label) {
        true => Ok(name.to_owned()),
        false => Err(EgressFault::invalid_value(
            key,
            format!("`{}` is not the name of a secret", shorten(name)),
        )),
    }
}
