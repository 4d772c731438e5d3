//! Destinations, and the keys by which their connections are shared.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nearpath_types::egress::{EgressHost, EgressProtocol, EgressSpec, EgressTls, WriteMode};

/// A destination that a function declared.
#[derive(Debug, Clone)]
pub struct EgressDestination {
    /// As declared.
    pub egress: EgressSpec,
    /// The address by which an instance knows it: its own, or one that stands for its name. Unspecified for names below a name, each of which
    /// gets one when it is asked for.
    pub visible_ip: IpAddr,
    /// Whose connections to it are shared.
    pub key: PoolKey,
    /// The secrets that it names, with their contents.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// Ends the identity of a key whose sockets are of the family `AF_INET6`.
const V6: &str = " AF_INET6";

impl EgressDestination {
    /// Where an instance connects to.
    pub fn visible_addr(&self) -> SocketAddr {
        SocketAddr::new(self.visible_ip, self.egress.port)
    }

    /// Whether it is no place yet, but all names below one.
    pub fn is_wildcard(&self) -> bool {
        matches!(self.egress.host, EgressHost::Below(_))
    }

    /// One of the names that it is, at the address that stands for that. Settings and secrets are the same; each name has a ceiling of its own.
    pub fn for_wildcard_name(&self, name: &str, stands: Ipv4Addr) -> Self {
        let egress = EgressSpec {
            host: EgressHost::Name(name.to_owned()),
            ..self.egress.clone()
        };
        let identity = format!("{} below {}", self.key.identity, self.egress.host);
        let key = PoolKey {
            host_port: egress.host_port(),
            identity,
            ..self.key.clone()
        };
        Self {
            egress,
            visible_ip: stands.into(),
            key,
            secrets: self.secrets.clone(),
        }
    }

    /// Whether its connections may be given away as they are: nobody speaks for the function there, and some are kept warm.
    pub fn can_be_handed_over(&self) -> bool {
        can_be_handed_over(&self.egress) && !self.is_wildcard()
    }

    /// The same destination, reached through sockets of the family `AF_INET6`, by mapped addresses where it has IPv4 ones.
    pub fn via_v6_sockets(&self) -> Self {
        let key = PoolKey {
            identity: format!("{}{V6}", self.key.identity),
            ..self.key.clone()
        };
        Self {
            key,
            ..self.clone()
        }
    }

    /// Whether it is such a one.
    pub fn uses_v6_sockets(&self) -> bool {
        self.key.identity.ends_with(V6)
    }

    /// Its name, where that means one server at a time, which another may take over from: a database's.
    pub fn single_server_name(&self) -> Option<&str> {
        let one = matches!(
            self.egress.protocol,
            EgressProtocol::Postgres | EgressProtocol::Mysql | EgressProtocol::Redis
        );
        match &self.egress.host {
            EgressHost::Name(name) if one => Some(name),
            _ => None,
        }
    }
}

/// As [`EgressDestination::can_be_handed_over`].
pub fn can_be_handed_over(to: &EgressSpec) -> bool {
    let sync = to.writes == WriteMode::Sync; // else the node has to see what is written
    sync && to.protocol == EgressProtocol::Tcp
        && to.tls == EgressTls::Pass
        && to.login.is_none()
        && to.warm > 0
}

/// Connections with equal keys serve each other's functions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// The function, or `NAMESPACE/CHAIN` where a chain shares.
    pub owner: String,
    /// `HOST:PORT`.
    pub host_port: String,
    /// As whom, and through which TLS: empty where the function speaks for itself.
    pub identity: String,
    /// Grows with every change of the function's policy: what was opened before is not handed out after.
    pub epoch: u64,
}

impl PoolKey {
    /// As whom connections are made, whatever the family of their sockets.
    pub fn base_identity(&self) -> &str {
        self.identity.strip_suffix(V6).unwrap_or(&self.identity)
    }

    /// The namespace whose connections these are.
    pub fn namespace(&self) -> &str {
        namespace_of(&self.owner)
    }

    /// What counts below one ceiling: all connections of a namespace to one `HOST:PORT`. Tenants do not take each other's room.
    pub fn limit_group(&self) -> String {
        format!("{} {}", self.namespace(), self.host_port)
    }

    /// Whether connections of both keys count below one ceiling.
    pub fn shares_limit_with(&self, other: &Self) -> bool {
        self.host_port == other.host_port && self.namespace() == other.namespace()
    }
}

/// The namespace of a key's owner.
pub fn namespace_of(owner: &str) -> &str {
    match owner.split_once('/') {
        Some((namespace, _)) => namespace,
        None => owner
            .rsplit_once('.')
            .map_or("", |(_, namespace)| namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::PoolKey;

    #[test]
    fn a_namespace_has_a_ceiling_of_its_own() {
        let key = |owner: &str| PoolKey {
            owner: owner.into(),
            host_port: "db:5432".into(),
            identity: String::new(),
            epoch: 1,
        };
        assert_eq!(key("cart.dev").limit_group(), "dev db:5432");
        assert!(
            key("cart.dev").shares_limit_with(&key("dev/shop")),
            "a chain is in the namespace of its functions"
        );
        assert!(!key("cart.dev").shares_limit_with(&key("cart.prod")));
    }
}
