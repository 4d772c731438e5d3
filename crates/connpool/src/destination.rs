//! Destinations, and the keys by which their connections are shared.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nearpath_types::egress::{Egress, Host, Protocol, Tls, Writes};

/// A destination that a function declared.
#[derive(Debug, Clone)]
pub struct Destination {
    /// As declared.
    pub egress: Egress,
    /// The address by which an instance knows it: its own, or one that stands for its name. Unspecified for names below a name, each of which
    /// gets one when it is asked for.
    pub stands: IpAddr,
    /// Whose connections to it are shared.
    pub key: Key,
    /// The secrets that it names, with their contents.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// Ends the identity of a key whose sockets are of the family `AF_INET6`.
const V6: &str = " AF_INET6";

impl Destination {
    /// Where an instance connects to.
    pub fn place(&self) -> SocketAddr {
        SocketAddr::new(self.stands, self.egress.port)
    }

    /// Whether it is no place yet, but all names below one.
    pub fn is_below(&self) -> bool {
        matches!(self.egress.host, Host::Below(_))
    }

    /// One of the names that it is, at the address that stands for that. Settings and secrets are the same; each name has a ceiling of its own.
    pub fn one_below(&self, name: &str, stands: Ipv4Addr) -> Self {
        let egress = Egress { host: Host::Name(name.to_owned()), ..self.egress.clone() };
        let identity = format!("{} below {}", self.key.identity, self.egress.host);
        let key = Key { to: egress.to(), identity, ..self.key.clone() };
        Self { egress, stands: stands.into(), key, secrets: self.secrets.clone() }
    }

    /// Whether its connections may be given away as they are: nobody speaks for the function there, and some are kept warm.
    pub fn may_be_given(&self) -> bool {
        may_be_given(&self.egress) && !self.is_below()
    }

    /// The same destination, reached through sockets of the family `AF_INET6`, by mapped addresses where it has IPv4 ones.
    pub fn by_v6_sockets(&self) -> Self {
        let key = Key { identity: format!("{}{V6}", self.key.identity), ..self.key.clone() };
        Self { key, ..self.clone() }
    }

    /// Whether it is such a one.
    pub fn is_by_v6_sockets(&self) -> bool {
        self.key.identity.ends_with(V6)
    }

    /// Its name, where that means one server at a time, which another may take over from: a database's.
    pub fn name_of_one(&self) -> Option<&str> {
        let one = matches!(self.egress.protocol, Protocol::Postgres | Protocol::Mysql | Protocol::Redis);
        match &self.egress.host {
            Host::Name(name) if one => Some(name),
            _ => None,
        }
    }
}

/// As [`Destination::may_be_given`].
pub fn may_be_given(to: &Egress) -> bool {
    let sync = to.writes == Writes::Sync; // else the node has to see what is written
    sync && to.protocol == Protocol::Tcp && to.tls == Tls::Pass && to.login.is_none() && to.warm > 0
}

/// Connections with equal keys serve each other's functions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The function, or `NAMESPACE/CHAIN` where a chain shares.
    pub owner: String,
    /// `HOST:PORT`.
    pub to: String,
    /// As whom, and through which TLS: empty where the function speaks for itself.
    pub identity: String,
    /// Grows with every change of the function's policy: what was opened before is not handed out after.
    pub epoch: u64,
}

impl Key {
    /// As whom connections are made, whatever the family of their sockets.
    pub fn as_whom(&self) -> &str {
        self.identity.strip_suffix(V6).unwrap_or(&self.identity)
    }

    /// The namespace whose connections these are.
    pub fn namespace(&self) -> &str {
        namespace(&self.owner)
    }

    /// What counts below one ceiling: all connections of a namespace to one `HOST:PORT`. Tenants do not take each other's room.
    pub fn place(&self) -> String {
        format!("{} {}", self.namespace(), self.to)
    }

    /// Whether connections of both keys count below one ceiling.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.to == other.to && self.namespace() == other.namespace()
    }
}

/// The namespace of a key's owner.
pub fn namespace(owner: &str) -> &str {
    match owner.split_once('/') {
        Some((namespace, _)) => namespace,
        None => owner.rsplit_once('.').map_or("", |(_, namespace)| namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn a_namespace_has_a_ceiling_of_its_own() {
        let key = |owner: &str| Key { owner: owner.into(), to: "db:5432".into(), identity: String::new(), epoch: 1 };
        assert_eq!(key("cart.dev").place(), "dev db:5432");
        assert!(key("cart.dev").is_beside(&key("dev/shop")), "a chain is in the namespace of its functions");
        assert!(!key("cart.dev").is_beside(&key("cart.prod")));
    }
}
