//! Settings of a destination, `KEY=VALUE`: each parsed by itself, then all checked together.

use std::time::Duration;

use super::cache_and_prefetch;
use super::fault::{EgressFault, shorten};
use super::values::{
    POOLING_MODES, SHARING_SCOPES, TLS_MODES, WRITE_MODES, parse_duration, parse_nonzero_duration,
    parse_number, parse_protocol, parse_secret_name, parse_text, parse_word,
};
use super::{
    EgressHost, EgressLogin, EgressProtocol, EgressSpec, EgressTls, PoolingMode, SharingScope,
};

/// Known settings.
pub const SETTING_NAMES: &[&str] = &[
    "protocol", "mode", "max", "warm", "idle", "age", "wait", "user", "password", "database",
    "tls", "ca", "shared", "cache", "writes", "flush", "prefetch",
];

/// Settings as written; `None` where nothing was.
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
    /// Sets one setting.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), EgressFault> {
        // The `'static` key of the list, because errors keep it.
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
            // `shared`, the only one left.
            _ => set_once(
                &mut self.shared,
                key,
                parse_word(key, value, SHARING_SCOPES)?,
            ),
        }
    }

    /// Builds the destination that they describe.
    pub(super) fn build_destination(
        self,
        host: EgressHost,
        port: u16,
    ) -> Result<EgressSpec, EgressFault> {
        // Without `protocol` the port decides.
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
        // Names below a wildcard are not known before they are used.
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
    // Any of the three asks for a login, and the first one names the error.
    let Some((key, _)) = present.into_iter().find(|(_, is_present)| *is_present) else {
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

/// Refuses plain HTTP at a port where servers expect TLS: an adapter that reads plain text would
/// break every handshake.
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
    // The first value would be lost without a report.
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(EgressFault::DuplicateSetting(key)),
    }
}
