//! Text form of a destination: settings that differ from their defaults. `egress::parse_list` reads
//! it back.

use std::fmt;

use crate::duration;

use super::cache_and_prefetch;
use super::{EgressLogin, EgressProtocol, EgressSpec, EgressTls, PoolingMode, SharingScope};

impl EgressSpec {
    /// Returns `HOST:PORT`.
    pub fn host_port(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns whether both have the same host and port.
    pub fn is_same_address(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port
    }

    /// Returns the names of the secrets that it needs.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        let password = self
            .login
            .as_ref()
            .and_then(|login| login.password.as_deref());
        let ca = match &self.tls {
            EgressTls::Originate { ca } => ca.as_deref(),
            EgressTls::Pass => None,
        };
        password.into_iter().chain(ca)
    }
}

impl fmt::Display for EgressSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)?;
        if self.protocol != EgressProtocol::known_for(self.port) {
            write!(f, " protocol={}", self.protocol)?;
        }
        // Two steps, because some defaults depend on the protocol and others on the limit.
        let of_protocol = Self::with_defaults(self.host.clone(), self.port, self.protocol);
        if self.max != of_protocol.max {
            write!(f, " max={}", self.max)?;
        }
        let default = of_protocol.with_max(self.max);
        if self.mode != default.mode {
            write!(f, " mode={}", self.mode)?;
        }
        if self.warm != default.warm {
            write!(f, " warm={}", self.warm)?;
        }
        let times = [
            ("idle", self.idle, default.idle),
            ("age", self.age, default.age),
            ("wait", self.wait, default.wait),
        ];
        for (key, own, _) in times.into_iter().filter(|(_, own, default)| own != default) {
            write!(f, " {key}={}", duration::format_duration(own))?;
        }
        if let Some(login) = &self.login {
            login.write_login(self.protocol, f)?;
        }
        if let EgressTls::Originate { ca } = &self.tls {
            f.write_str(" tls=originate")?;
            write_option(f, "ca=secret:", ca.as_deref())?;
        }
        if self.shared == SharingScope::Chain {
            f.write_str(" shared=chain")?;
        }
        cache_and_prefetch::write_settings(self, f)
    }
}

impl EgressLogin {
    fn write_login(&self, protocol: EgressProtocol, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let implied =
            protocol.traits().login.and_then(|rules| rules.default_user) == Some(&self.user);
        // A password or database alone implies the protocol's default user.
        if !implied || (self.password.is_none() && self.database.is_none()) {
            write!(f, " user={}", self.user)?;
        }
        write_option(f, "password=secret:", self.password.as_deref())?;
        write_option(f, "database=", self.database.as_deref())
    }
}

fn write_option(f: &mut fmt::Formatter<'_>, key: &str, value: Option<&str>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {key}{value}"))
}

impl fmt::Display for PoolingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
        })
    }
}
