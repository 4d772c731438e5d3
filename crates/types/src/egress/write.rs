//! Egress as text: what is not the default is written. `egress::list` reads it back.

use std::fmt;

use crate::duration;

use super::ahead;
use super::{Egress, Login, Mode, Protocol, Shared, Tls};

impl Egress {
    /// `HOST:PORT`.
    pub fn to(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Whether it is the place that another one is.
    pub fn is_at(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port
    }

    /// The names of the secrets that it needs.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let password = self.login.as_ref().and_then(|login| login.password.as_deref());
        let ca = match &self.tls {
            Tls::Originate { ca } => ca.as_deref(),
            Tls::Pass => None,
        };
        password.into_iter().chain(ca)
    }
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)?;
        if self.protocol != Protocol::known_for(self.port) {
            write!(f, " protocol={}", self.protocol)?;
        }
        let of_protocol = Self::of(self.host.clone(), self.port, self.protocol);
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
        let times =
            [("idle", self.idle, default.idle), ("age", self.age, default.age), ("wait", self.wait, default.wait)];
        for (key, own, _) in times.into_iter().filter(|(_, own, default)| own != default) {
            write!(f, " {key}={}", duration::format(own))?;
        }
        if let Some(login) = &self.login {
            login.write(self.protocol, f)?;
        }
        if let Tls::Originate { ca } = &self.tls {
            f.write_str(" tls=originate")?;
            option(f, "ca=secret:", ca.as_deref())?;
        }
        if self.shared == Shared::Chain {
            f.write_str(" shared=chain")?;
        }
        ahead::write(self, f)
    }
}

impl Login {
    fn write(&self, protocol: Protocol, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let implied = protocol.traits().login.and_then(|rules| rules.default_user) == Some(&self.user);
        if !implied || (self.password.is_none() && self.database.is_none()) {
            write!(f, " user={}", self.user)?;
        }
        option(f, "password=secret:", self.password.as_deref())?;
        option(f, "database=", self.database.as_deref())
    }
}

fn option(f: &mut fmt::Formatter<'_>, key: &str, value: Option<&str>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {key}{value}"))
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
        })
    }
}
