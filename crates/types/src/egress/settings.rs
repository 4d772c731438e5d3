//! `KEY=VALUE`: the settings of one destination, each by itself, then all together.

use std::time::Duration;

use crate::duration;

use super::ahead;
use super::flaw::{Flaw, brief};
use super::protocol::ROWS;
use super::{Egress, Host, Login, Mode, Protocol, Shared, Tls};

/// The settings that there are.
pub const SETTINGS: &[&str] = &[
    "protocol", "mode", "max", "warm", "idle", "age", "wait", "user", "password", "database", "tls", "ca", "shared",
    "cache", "writes", "flush", "prefetch",
];
/// The highest ceiling: more connections to one place are beyond what one address has ports for, with room for everything else.
const MOST_OPEN: u32 = 10_000;
/// Longest user, database or name of a secret, in bytes.
const LONGEST: usize = 253;

/// Settings as written; `None` where nothing was.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    protocol: Option<Protocol>,
    mode: Option<Mode>,
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
    shared: Option<Shared>,
    cache: Option<String>,
    detached: Option<bool>,
    flush: Option<Duration>,
    prefetch: Option<String>,
}

impl Settings {
    /// Reads one setting.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), Flaw> {
        let Some(key) = SETTINGS.iter().copied().find(|known| *known == key) else {
            return Err(Flaw::UnknownKey { key: brief(key), known: SETTINGS });
        };
        match key {
            "protocol" => once(&mut self.protocol, key, protocol(value)?),
            "mode" => once(&mut self.mode, key, word(key, value, MODES)?),
            "max" => once(&mut self.max, key, number(key, value, 1)?),
            "warm" => once(&mut self.warm, key, number(key, value, 0)?),
            "idle" => once(&mut self.idle, key, lasting(key, value)?),
            "age" => once(&mut self.age, key, lasting(key, value)?),
            "wait" => once(&mut self.wait, key, length(key, value)?),
            "user" => once(&mut self.user, key, plain(key, value)?),
            "password" => once(&mut self.password, key, secret(key, value)?),
            "database" => once(&mut self.database, key, plain(key, value)?),
            "tls" => once(&mut self.originate, key, word(key, value, TLS)?),
            "ca" => once(&mut self.ca, key, secret(key, value)?),
            "cache" => once(&mut self.cache, key, value.to_owned()),
            "writes" => once(&mut self.detached, key, word(key, value, WRITES)?),
            "flush" => once(&mut self.flush, key, length(key, value)?),
            "prefetch" => once(&mut self.prefetch, key, value.to_owned()),
            _ => once(&mut self.shared, key, word(key, value, SHARED)?),
        }
    }

    /// The destination that they describe.
    pub(super) fn settle(self, host: Host, port: u16) -> Result<Egress, Flaw> {
        let protocol = self.protocol.unwrap_or(Protocol::known_for(port));
        let default = Egress::of(host, port, protocol);
        let max = self.max.unwrap_or(default.max);
        let default = default.with_max(max);
        if self.warm.is_some_and(|warm| warm > max) {
            return Err(Flaw::value("warm", format!("more than `max`, {max}, cannot be open")));
        }
        if self.mode.is_some() && !protocol.is_sql() {
            let those = Protocol::names_with(|row| row.mode.is_some());
            return Err(Flaw::value("mode", format!("only protocols {those} have one")));
        }
        if self.prefetch.is_some() && matches!(default.host, Host::Below(_)) {
            return Err(Flaw::value(
                "prefetch",
                "it is for one place; declare the name that is read beside those below",
            ));
        }
        let tls = spoken(protocol, port, tls(self.originate.unwrap_or(false), self.ca)?)?;
        Ok(Egress {
            mode: self.mode.unwrap_or(default.mode),
            warm: self.warm.unwrap_or(default.warm),
            idle: self.idle.unwrap_or(default.idle),
            age: self.age.unwrap_or(default.age),
            wait: self.wait.unwrap_or(default.wait),
            login: login(protocol, self.user, self.password, self.database)?,
            shared: self.shared.unwrap_or(default.shared),
            cache: self.cache.map(|text| ahead::cache(protocol, &text)).transpose()?,
            writes: ahead::writes(protocol, self.detached.unwrap_or(false), self.flush)?,
            prefetch: self.prefetch.map_or(Ok(Vec::new()), |text| ahead::prefetch(protocol, &text))?,
            tls,
            ..default
        })
    }
}

fn login(
    protocol: Protocol,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
) -> Result<Option<Login>, Flaw> {
    let given = [("user", user.is_some()), ("password", password.is_some()), ("database", database.is_some())];
    let Some((key, _)) = given.into_iter().find(|(_, given)| *given) else { return Ok(None) };
    let Some(rules) = protocol.traits().login else {
        let those = Protocol::names_with(|row| row.login.is_some());
        return Err(Flaw::value(key, format!("only protocols {those} have one")));
    };
    if rules.numbered_databases && database.as_ref().is_some_and(|text| text.parse::<u16>().is_err()) {
        return Err(Flaw::value("database", format!("protocol {protocol} has numbers for databases")));
    }
    let user = user.or_else(|| rules.default_user.map(str::to_owned));
    let user = user.ok_or_else(|| Flaw::value(key, "it needs `user` beside it"))?;
    Ok(Some(Login { user, password, database }))
}

fn tls(originate: bool, ca: Option<String>) -> Result<Tls, Flaw> {
    match (originate, ca) {
        (true, ca) => Ok(Tls::Originate { ca }),
        (false, None) => Ok(Tls::Pass),
        (false, Some(_)) => Err(Flaw::value("ca", "it needs `tls=originate` beside it")),
    }
}

/// Where servers expect TLS, an adapter that reads plain text would break every handshake that passes it.
fn spoken(protocol: Protocol, port: u16, tls: Tls) -> Result<Tls, Flaw> {
    if protocol.traits().tls_port != Some(port) || tls != Tls::Pass {
        return Ok(tls);
    }
    Err(Flaw::value(
        "protocol",
        format!(
            "{protocol} at port {port} needs `tls=originate` beside it, and no TLS from the function; \
             where that speaks TLS itself, write `protocol=tcp`"
        ),
    ))
}

fn once<T>(slot: &mut Option<T>, key: &'static str, value: T) -> Result<(), Flaw> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Flaw::Twice(key)),
    }
}

/// Words and what they stand for; names apart, for messages.
type Vocabulary<T> = (&'static [&'static str], &'static [T]);

const MODES: Vocabulary<Mode> = (&["session", "transaction"], &[Mode::Session, Mode::Transaction]);
const TLS: Vocabulary<bool> = (&["pass", "originate"], &[false, true]);
const WRITES: Vocabulary<bool> = (&["sync", "async"], &[false, true]);
const SHARED: Vocabulary<Shared> = (&["function", "chain"], &[Shared::Function, Shared::Chain]);

fn protocol(value: &str) -> Result<Protocol, Flaw> {
    let row = ROWS.iter().find(|row| row.name == value);
    let unknown = || Flaw::UnknownWord { key: "protocol", word: brief(value), known: Protocol::NAMES };
    row.map(|row| row.protocol).ok_or_else(unknown)
}

fn word<T: Copy>(key: &'static str, value: &str, (known, meant): Vocabulary<T>) -> Result<T, Flaw> {
    let at = known.iter().position(|word| *word == value);
    at.map(|at| meant[at]).ok_or_else(|| Flaw::UnknownWord { key, word: brief(value), known })
}

fn number(key: &'static str, value: &str, least: u32) -> Result<u32, Flaw> {
    let number = value.parse().ok().filter(|number| (least..=MOST_OPEN).contains(number));
    number.ok_or_else(|| Flaw::value(key, format!("`{}` is no number from {least} to {MOST_OPEN}", brief(value))))
}

pub(super) fn length(key: &'static str, value: &str) -> Result<Duration, Flaw> {
    duration::parse(value).map_err(|error| Flaw::value(key, error.to_string()))
}

/// A duration that is not 0, which some take for `never` and others for `at once`.
fn lasting(key: &'static str, value: &str) -> Result<Duration, Flaw> {
    match length(key, value)? {
        Duration::ZERO => {
            Err(Flaw::value(key, "0 is no time to keep a connection; `warm=0` keeps none open for nobody"))
        }
        length => Ok(length),
    }
}

/// A text that stands in a list between blanks and commas.
fn plain(key: &'static str, value: &str) -> Result<String, Flaw> {
    let fits = |char: char| !char.is_whitespace() && !char.is_control() && char != ',';
    match value.len() {
        0 => Err(Flaw::value(key, "it is empty")),
        1..=LONGEST if value.chars().all(fits) => Ok(value.to_owned()),
        1..=LONGEST => Err(Flaw::value(key, "it holds a blank, a comma or a control character")),
        _ => Err(Flaw::value(key, format!("it is longer than {LONGEST} bytes"))),
    }
}

/// `secret:NAME`. What stands there is no secret itself: specs are shown to whoever may list functions.
fn secret(key: &'static str, value: &str) -> Result<String, Flaw> {
    let name = value.strip_prefix("secret:").ok_or_else(|| {
        Flaw::value(key, "write secret:NAME, with the name of a secret of the function's namespace, never its content")
    })?;
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = bytes.first().is_some_and(alphanumeric) && bytes.last().is_some_and(alphanumeric);
        ends && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
    };
    match name.len() <= LONGEST && name.split('.').all(label) {
        true => Ok(name.to_owned()),
        false => Err(Flaw::value(key, format!("`{}` is not the name of a secret", brief(name)))),
    }
}
