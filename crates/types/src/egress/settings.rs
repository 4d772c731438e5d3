//! `KEY=VALUE`: the settings of one destination, each by itself, then all together.

use std::time::Duration;

use crate::duration;

use super::cache_and_prefetch;
use super::fault::{EgressFault, shorten};
use super::protocol::PROTOCOL_TRAITS;
use super::{
    EgressHost, EgressLogin, EgressProtocol, EgressSpec, EgressTls, PoolingMode, SharingScope,
};

/// The settings that there are.
pub const SETTING_NAMES: &[&str] = &[
    "protocol", "mode", "max", "warm", "idle", "age", "wait", "user", "password", "database",
    "tls", "ca", "shared", "cache", "writes", "flush", "prefetch",
];
/// The highest ceiling: more connections to one place are beyond what one address has ports for, with room for everything else.
const MAX_CONNECTIONS: u32 = 10_000;
/// Longest user, database or name of a secret, in bytes.
const MAX_TEXT_BYTES: usize = 253;

/// Settings as written; `NoConnection` where nothing was.
#[derive(Debug, Clone, Default)]
pub(super) struct EgressSettings {
    protocol: Option<EgressProtocol>,
    mode: Option<PoolingMode>,
    max: Option<u32>,
    warm: Option<u32>,
    idle: Option<Duration>,
    age: Option<Duration>,
    wait: Option<Duration>,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
    originate: Option<bool>,
    ca: Option<String>,
    shared: Option<SharingScope>,
    cache: Option<String>,
    async_writes: Option<bool>,
    flush: Option<Duration>,
    prefetch: Option<String>,
}

impl EgressSettings {
    /// Reads one setting.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), EgressFault> {
        let Some(key) = SETTING_NAMES.iter().copied().find(|known| *known == key) else {
            return Err(EgressFault::UnknownKey {
                key: shorten(key),
                known: SETTING_NAMES,
            });
        };
        match key {
            "protocol" => set_once(&mut self.protocol, key, parse_protocol(value)?),
            "mode" => set_once(&mut self.mode, key, parse_word(key, value, POOLING_MODES)?),
            "max" => set_once(&mut self.max, key, parse_number(key, value, 1)?),
            "warm" => set_once(&mut self.warm, key, parse_number(key, value, 0)?),
            "idle" => set_once(&mut self.idle, key, parse_nonzero_duration(key, value)?),
            "age" => set_once(&mut self.age, key, parse_nonzero_duration(key, value)?),
            "wait" => set_once(&mut self.wait, key, parse_duration(key, value)?),
            "user" => set_once(&mut self.user, key, parse_text(key, value)?),
            "password" => set_once(&mut self.password, key, parse_secret_name(key, value)?),
            "database" => set_once(&mut self.database, key, parse_text(key, value)?),
            "tls" => set_once(&mut self.originate, key, parse_word(key, value, TLS_MODES)?),
            "ca" => set_once(&mut self.ca, key, parse_secret_name(key, value)?),
            "cache" => set_once(&mut self.cache, key, value.to_owned()),
            "writes" => set_once(
                &mut self.async_writes,
                key,
                parse_word(key, value, WRITE_MODES)?,
            ),
            "flush" => set_once(&mut self.flush, key, parse_duration(key, value)?),
            "prefetch" => set_once(&mut self.prefetch, key, value.to_owned()),
            _ => set_once(
                &mut self.shared,
                key,
                parse_word(key, value, SHARING_SCOPES)?,
            ),
        }
    }

    /// The destination that they describe.
    pub(super) fn build_destination(
        self,
        host: EgressHost,
        port: u16,
    ) -> Result<EgressSpec, EgressFault> {
        let protocol = self.protocol.unwrap_or(EgressProtocol::known_for(port));
        let default = EgressSpec::with_defaults(host, port, protocol);
        let max = self.max.unwrap_or(default.max);
        let default = default.with_max(max);
        if self.warm.is_some_and(|warm| warm > max) {
            return Err(EgressFault::invalid_value(
                "warm",
                format!("more than `max`, {max}, cannot be open"),
            ));
        }
        if self.mode.is_some() && !protocol.is_sql() {
            let those = EgressProtocol::names_with(|row| row.mode.is_some());
            return Err(EgressFault::invalid_value(
                "mode",
                format!("only protocols {those} have one"),
            ));
        }
        if self.prefetch.is_some() && matches!(default.host, EgressHost::Below(_)) {
            return Err(EgressFault::invalid_value(
                "prefetch",
                "it is for one place; declare the name that is read beside those below",
            ));
        }
        let tls = check_tls_port(
            protocol,
            port,
            build_tls(self.originate.unwrap_or(false), self.ca)?,
        )?;
        Ok(EgressSpec {
            mode: self.mode.unwrap_or(default.mode),
            warm: self.warm.unwrap_or(default.warm),
            idle: self.idle.unwrap_or(default.idle),
            age: self.age.unwrap_or(default.age),
            wait: self.wait.unwrap_or(default.wait),
            login: build_login(protocol, self.user, self.password, self.database)?,
            shared: self.shared.unwrap_or(default.shared),
            cache: self
                .cache
                .map(|text| cache_and_prefetch::parse_cache(protocol, &text))
                .transpose()?,
            writes: cache_and_prefetch::write_mode(
                protocol,
                self.async_writes.unwrap_or(false),
                self.flush,
            )?,
            prefetch: self.prefetch.map_or(Ok(Vec::new()), |text| {
                cache_and_prefetch::parse_prefetch(protocol, &text)
            })?,
            tls,
            ..default
        })
    }
}

fn build_login(
    protocol: EgressProtocol,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
) -> Result<Option<EgressLogin>, EgressFault> {
    let present = [
        ("user", user.is_some()),
        ("password", password.is_some()),
        ("database", database.is_some()),
    ];
    let Some((key, _)) = present.into_iter().find(|(_, given)| *given) else {
        return Ok(None);
    };
    let Some(rules) = protocol.traits().login else {
        let those = EgressProtocol::names_with(|row| row.login.is_some());
        return Err(EgressFault::invalid_value(
            key,
            format!("only protocols {those} have one"),
        ));
    };
    if rules.numbered_databases
        && database
            .as_ref()
            .is_some_and(|text| text.parse::<u16>().is_err())
    {
        return Err(EgressFault::invalid_value(
            "database",
            format!("protocol {protocol} has numbers for databases"),
        ));
    }
    let user = user.or_else(|| rules.default_user.map(str::to_owned));
    let user = user.ok_or_else(|| EgressFault::invalid_value(key, "it needs `user` beside it"))?;
    Ok(Some(EgressLogin {
        user,
        password,
        database,
    }))
}

fn build_tls(originate: bool, ca: Option<String>) -> Result<EgressTls, EgressFault> {
    match (originate, ca) {
        (true, ca) => Ok(EgressTls::Originate { ca }),
        (false, None) => Ok(EgressTls::Pass),
        (false, Some(_)) => Err(EgressFault::invalid_value(
            "ca",
            "it needs `tls=originate` beside it",
        )),
    }
}

/// Where servers expect TLS, an adapter that reads plain text would break every handshake that passes it.
fn check_tls_port(
    protocol: EgressProtocol,
    port: u16,
    tls: EgressTls,
) -> Result<EgressTls, EgressFault> {
    if protocol.traits().tls_port != Some(port) || tls != EgressTls::Pass {
        return Ok(tls);
    }
    Err(EgressFault::invalid_value(
        "protocol",
        format!(
            "{protocol} at port {port} needs `tls=originate` beside it, and no TLS from the function; \
             where that speaks TLS itself, write `protocol=tcp`"
        ),
    ))
}

fn set_once<T>(slot: &mut Option<T>, key: &'static str, value: T) -> Result<(), EgressFault> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(EgressFault::DuplicateSetting(key)),
    }
}

/// Words and what they stand for; names apart, for messages.
type NamedValues<T> = (&'static [&'static str], &'static [T]);

const POOLING_MODES: NamedValues<PoolingMode> = (
    &["session", "transaction"],
    &[PoolingMode::Session, PoolingMode::Transaction],
);
const TLS_MODES: NamedValues<bool> = (&["pass", "originate"], &[false, true]);
const WRITE_MODES: NamedValues<bool> = (&["sync", "async"], &[false, true]);
const SHARING_SCOPES: NamedValues<SharingScope> = (
    &["function", "chain"],
    &[SharingScope::Function, SharingScope::Chain],
);

fn parse_protocol(value: &str) -> Result<EgressProtocol, EgressFault> {
    let row = PROTOCOL_TRAITS.iter().find(|row| row.name == value);
    let unknown = || EgressFault::UnknownValue {
        key: "protocol",
        word: shorten(value),
        known: EgressProtocol::NAMES,
    };
    row.map(|row| row.protocol).ok_or_else(unknown)
}

fn parse_word<T: Copy>(
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

fn parse_number(key: &'static str, value: &str, min: u32) -> Result<u32, EgressFault> {
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

/// A duration that is not 0, which some take for `never` and others for `at once`.
fn parse_nonzero_duration(key: &'static str, value: &str) -> Result<Duration, EgressFault> {
    match parse_duration(key, value)? {
        Duration::ZERO => Err(EgressFault::invalid_value(
            key,
            "0 is no time to keep a connection; `warm=0` keeps none open for nobody",
        )),
        length => Ok(length),
    }
}

/// A text that stands in a list between blanks and commas.
fn parse_text(key: &'static str, value: &str) -> Result<String, EgressFault> {
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

/// `secret:NAME`. What stands there is no secret itself: specs are shown to whoever may list functions.
fn parse_secret_name(key: &'static str, value: &str) -> Result<String, EgressFault> {
    let name = value.strip_prefix("secret:").ok_or_else(|| {
        EgressFault::invalid_value(key, "write secret:NAME, with the name of a secret of the function's namespace, never its content")
    })?;
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
