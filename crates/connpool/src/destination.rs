//! Declared destinations, and the keys by which their connections are shared.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nearpath_types::egress::{EgressHost, EgressSpec, EgressTls, WriteMode, limit_group};

/// A destination that a function declared.
#[derive(Debug, Clone)]
pub struct EgressDestination {
    /// The declaration.
    pub egress: EgressSpec,
    /// The address that an instance connects to: the destination's own, or one assigned to its
    /// name. Unspecified for wildcard names, which get an address when they are resolved.
    pub visible_ip: IpAddr,
    /// The key by which connections to it are shared.
    pub key: PoolKey,
    /// Contents of the secrets that the declaration names.
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// The declared wildcard that this name is below.
    pub wildcard: Option<EgressHost>,
}

/// Suffix of the identity of keys whose sockets are of the family `AF_INET6`.
const V6: &str = " AF_INET6";

impl EgressDestination {
    /// Returns the address and port that an instance connects to.
    pub fn visible_addr(&self) -> SocketAddr {
        SocketAddr::new(self.visible_ip, self.egress.port)
    }

    /// Returns true for a wildcard name, which has no address of its own.
    pub fn is_wildcard(&self) -> bool {
        matches!(self.egress.host, EgressHost::Below(_))
    }

    /// Returns the destination of one name below this wildcard, at the address assigned to that
    /// name. Settings and secrets are the same; each name has its own limit.
    pub fn for_wildcard_name(&self, name: &str, address: Ipv4Addr) -> Self {
        let egress = EgressSpec {
            host: EgressHost::Name(name.to_owned()),
            ..self.egress.clone()
        };
        // The wildcard is part of the identity, so a declaration of the name itself keeps its own
        // key.
        let identity = format!("{} below {}", self.key.identity, self.egress.host);
        let key = PoolKey {
            host_port: egress.host_port(),
            identity,
            ..self.key.clone()
        };
        Self {
            egress,
            visible_ip: address.into(),
            key,
            secrets: self.secrets.clone(),
            wildcard: Some(self.egress.host.clone()),
        }
    }

    /// Returns the limit group of the declaration, by which nodes share a limit. Names below a wildcard
    /// have limits of their own, and the nodes of their wildcard.
    pub fn declared_group(&self) -> String {
        let host = self.wildcard.as_ref().unwrap_or(&self.egress.host);
        limit_group(
            self.key.namespace(),
            &format!("{host}:{}", self.egress.port),
        )
    }

    /// Returns true if its sockets may replace a function's own: no adapter and no TLS in between,
    /// and some are kept warm.
    pub fn can_be_handed_over(&self) -> bool {
        can_be_handed_over(&self.egress) && !self.is_wildcard()
    }

    /// Returns the same destination through `AF_INET6` sockets, with mapped addresses where it has
    /// IPv4 ones.
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

    /// Returns true for the result of [`via_v6_sockets`](Self::via_v6_sockets).
    pub fn uses_v6_sockets(&self) -> bool {
        self.key.identity.ends_with(V6)
    }

    /// Returns the name if it stands for a single server, which another may replace: a database.
    pub fn single_server_name(&self) -> Option<&str> {
        // Names of HTTP and raw TCP servers may have several addresses, all of them valid.
        let is_single_server = self.egress.protocol.traits().single_server;
        match &self.egress.host {
            EgressHost::Name(name) if is_single_server => Some(name),
            _ => None,
        }
    }
}

/// Returns true if sockets to this declaration may replace a function's own; see
/// [`EgressDestination::can_be_handed_over`].
pub fn can_be_handed_over(to: &EgressSpec) -> bool {
    let sync = to.writes == WriteMode::Sync; // otherwise the node has to see what is written
    // Adapters, TLS and logins need the node in the path of every byte.
    sync && to.protocol.is_opaque()
        && to.tls == EgressTls::Pass
        && to.login.is_none()
        && to.warm > 0
}

/// Functions whose destinations have equal keys share connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// The function, or `NAMESPACE/CHAIN` where a chain shares.
    pub owner: String,
    /// `HOST:PORT`.
    pub host_port: String,
    /// User, database and TLS settings of the login; empty where the function logs in itself.
    pub identity: String,
    /// Grows with every change of the function's policy. Connections of an earlier epoch are not
    /// handed out.
    pub epoch: u64,
}

impl PoolKey {
    /// Returns the identity without the socket family.
    pub fn base_identity(&self) -> &str {
        self.identity.strip_suffix(V6).unwrap_or(&self.identity)
    }

    /// Returns the namespace that owns the connections.
    pub fn namespace(&self) -> &str {
        namespace_of(&self.owner)
    }

    /// Returns the name of the limit group: all connections of a namespace to one `HOST:PORT`.
    /// Tenants do not share limits.
    pub fn limit_group(&self) -> String {
        limit_group(self.namespace(), &self.host_port)
    }

    /// Returns true if connections of both keys count towards the same limit.
    pub fn shares_limit_with(&self, other: &Self) -> bool {
        self.host_port == other.host_port && self.namespace() == other.namespace()
    }
}

/// Returns the namespace of a key's owner.
pub fn namespace_of(owner: &str) -> &str {
    // A chain is `NAMESPACE/CHAIN`, a function is `NAME.NAMESPACE`.
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
    fn a_namespace_has_a_limit_of_its_own() {
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
