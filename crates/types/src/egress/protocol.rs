//! The protocols that destinations speak, one row each: everything outside an adapter that depends
//! on the protocol is read from [`PROTOCOL_TRAITS`].

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::PoolingMode;

/// The protocol of a destination. The port decides the default: some ports are known for one, all
/// others are [`EgressProtocol::Tcp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EgressProtocol {
    /// Unknown: a connection serves one client, and is new when that client gets it.
    Tcp,
    /// HTTP/1.1.
    Http,
    /// PostgreSQL's protocol 3.
    Postgres,
    /// MySQL's and MariaDB's protocol.
    Mysql,
    /// Redis's RESP.
    Redis,
}

/// Properties of one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolTraits {
    /// The protocol of this row.
    pub protocol: EgressProtocol,
    /// Its name in settings, metrics and JSON.
    pub name: &'static str,
    /// The port that it is known for.
    pub port: Option<u16>,
    /// The port at which its servers expect TLS.
    pub tls_port: Option<u16>,
    /// The ALPN name that the node offers when it speaks TLS.
    pub alpn: Option<&'static [u8]>,
    /// The default of `mode`; `None`: it has no such setting.
    pub mode: Option<PoolingMode>,
    /// The default of `max`.
    pub max: u32,
    /// How clients log in; `None`: no adapter knows.
    pub login: Option<LoginRules>,
    /// The unit of `cache`; `None`: it has no such setting.
    pub cache: Option<CacheUnit>,
    /// The form of reads in `prefetch`; `None`: it has no such setting.
    pub prefetch: Option<ReadForm>,
    /// `writes=async` is permitted.
    pub async_writes: bool,
    /// Time for which a connection may wait for its first client.
    pub unused: UnusedConnections,
    /// A destination's name belongs to one server at a time, and another may take over.
    pub single_server: bool,
    /// The adapter answers clients that need TLS.
    pub client_tls: bool,
}

/// Parts of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRules {
    /// The user where only a password is given.
    pub default_user: Option<&'static str>,
    /// Databases have numbers instead of names.
    pub numbered_databases: bool,
}

/// The unit in which a cache is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheUnit {
    /// Bytes of content.
    Bytes,
    /// Time since a value was read.
    Time,
}

/// The form of a read that is issued ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadForm {
    /// An absolute path with an optional query.
    Path,
    /// A key.
    Key,
}

/// Time for which a connection without a first client may stay open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnusedConnections {
    /// As long as the setting `idle` allows.
    Idle,
    /// As long as `idle` allows, but no longer than this.
    AtMost(Duration),
    /// Not at all: the server speaks first, so bytes would wait in it.
    Never,
}

const NAMED_DATABASES: LoginRules = LoginRules {
    default_user: None,
    numbered_databases: false,
};

const TCP_TRAITS: ProtocolTraits = ProtocolTraits {
    protocol: EgressProtocol::Tcp,
    name: "tcp",
    port: None,
    tls_port: None,
    alpn: None,
    mode: None,
    max: 100,
    login: None,
    cache: None,
    prefetch: None,
    async_writes: true,
    unused: UnusedConnections::Idle,
    single_server: false,
    client_tls: false,
};

/// All protocols, in the order of [`EgressProtocol`].
pub const PROTOCOL_TRAITS: [ProtocolTraits; 5] = [
    TCP_TRAITS,
    ProtocolTraits {
        protocol: EgressProtocol::Http,
        name: "http",
        tls_port: Some(443), // RFC 9110, section 4.2.2
        // Without ALPN a server may choose HTTP/2.
        alpn: Some(b"http/1.1"),
        cache: Some(CacheUnit::Bytes),
        prefetch: Some(ReadForm::Path),
        async_writes: false,
        ..TCP_TRAITS
    },
    ProtocolTraits {
        protocol: EgressProtocol::Postgres,
        name: "postgres",
        port: Some(5432),
        mode: Some(PoolingMode::Transaction),
        max: 20,
        login: Some(NAMED_DATABASES),
        async_writes: false,
        // PostgreSQL closes a connection without a startup message after a minute
        // (`authentication_timeout`); the rest is margin.
        unused: UnusedConnections::AtMost(Duration::from_secs(40)),
        single_server: true,
        client_tls: true,
        ..TCP_TRAITS
    },
    ProtocolTraits {
        protocol: EgressProtocol::Mysql,
        name: "mysql",
        port: Some(3306),
        mode: Some(PoolingMode::Session),
        max: 20,
        login: Some(NAMED_DATABASES),
        async_writes: false,
        unused: UnusedConnections::Never,
        single_server: true,
        ..TCP_TRAITS
    },
    ProtocolTraits {
        protocol: EgressProtocol::Redis,
        name: "redis",
        port: Some(6379),
        max: 20,
        // The user of a password without one (Redis's documentation of AUTH).
        login: Some(LoginRules {
            default_user: Some("default"),
            numbered_databases: true,
        }),
        cache: Some(CacheUnit::Time),
        prefetch: Some(ReadForm::Key),
        single_server: true,
        ..TCP_TRAITS
    },
];

const NAMES: [&str; PROTOCOL_TRAITS.len()] = {
    let (mut names, mut row) = ([""; PROTOCOL_TRAITS.len()], 0);
    // A loop, because iterators do not run in constants.
    while row < PROTOCOL_TRAITS.len() {
        names[row] = PROTOCOL_TRAITS[row].name;
        row += 1;
    }
    names
};

impl EgressProtocol {
    /// The names of all protocols, in the order of [`PROTOCOL_TRAITS`].
    pub const NAMES: &'static [&'static str] = &NAMES;

    /// Returns the row of the protocol.
    pub const fn traits(self) -> &'static ProtocolTraits {
        &PROTOCOL_TRAITS[self as usize]
    }

    /// Returns the protocol that a port is known for.
    pub fn known_for(port: u16) -> Self {
        // Unknown ports carry any protocol, which bytes pass unchanged.
        PROTOCOL_TRAITS
            .iter()
            .find(|row| row.port == Some(port))
            .map_or(Self::Tcp, |row| row.protocol)
    }

    /// Returns whether the protocol is unknown, so that bytes pass unchanged.
    pub fn is_opaque(self) -> bool {
        self == Self::Tcp
    }

    /// Returns whether it is the protocol of an SQL database.
    pub fn is_sql(self) -> bool {
        self.traits().mode.is_some()
    }

    /// Returns whether an adapter knows how clients log in.
    pub fn has_login(self) -> bool {
        self.traits().login.is_some()
    }

    /// Returns the names of the protocols with a property, for a message: `a, b and c`.
    pub(super) fn names_with(has: impl Fn(&ProtocolTraits) -> bool) -> String {
        let names: Vec<_> = PROTOCOL_TRAITS
            .iter()
            .filter(|row| has(row))
            .map(|row| row.name)
            .collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

impl fmt::Display for EgressProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.traits().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_protocols_and_named_as_in_json() {
        for (index, row) in PROTOCOL_TRAITS.iter().enumerate() {
            assert_eq!((row.protocol as usize, row.protocol.traits()), (index, row));
            assert_eq!(
                serde_json::to_string(&row.protocol).unwrap(),
                format!("\"{}\"", row.name)
            );
        }
    }

    #[test]
    fn names_in_messages_are_joined() {
        assert_eq!(
            EgressProtocol::names_with(|row| row.mode.is_some()),
            "postgres and mysql"
        );
        assert_eq!(
            EgressProtocol::names_with(|row| row.login.is_some()),
            "postgres, mysql and redis"
        );
        assert_eq!(
            EgressProtocol::names_with(|row| row.tls_port.is_some()),
            "http"
        );
    }
}
