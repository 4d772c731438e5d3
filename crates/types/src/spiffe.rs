//! Identity of an endpoint on the wire: a SPIFFE ID, the URI in its certificate.
//!
//! `spiffe://TRUST-DOMAIN/ns/NAMESPACE/fn/FUNCTION/instance/ID` for an instance,
//! `spiffe://TRUST-DOMAIN/node/NODE/gateway` for a gateway (SPIFFE-ID specification, section 2).
//! Endpoints of different trust domains do not talk to each other.

use std::fmt;
use std::str::FromStr;

use crate::name::{FunctionId, FunctionName, InstanceId, Namespace};

/// Maximum bytes of a trust domain or of a node name; a SPIFFE ID has at most 2048 (section 2.3).
const MAX_PART_BYTES: usize = 255;

/// Role of an identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SpiffeRole {
    /// Instance of a function.
    Instance(FunctionId, InstanceId),
    /// Gateway of a node.
    Gateway(String),
}

/// Identity that is unique in the whole installation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpiffeId {
    /// Trust domain whose authority issued the certificate.
    pub trust_domain: String,
    /// Role within the trust domain.
    pub role: SpiffeRole,
}

/// Error of an invalid identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpiffeId {
    /// Another scheme, a query, a port or an empty part.
    #[error("it is not spiffe://TRUST-DOMAIN/PATH")]
    Form,
    /// Empty, too long, or with other characters than `a-z 0-9 . - _`.
    #[error(
        "its trust domain is empty, longer than 255 bytes or has other characters than a-z, 0-9, '.', '-' and '_'"
    )]
    TrustDomain,
    /// A path that names neither an instance nor a gateway.
    #[error("its path is neither /ns/NAMESPACE/fn/FUNCTION/instance/ID nor /node/NODE/gateway")]
    Path,
}

impl SpiffeId {
    /// Creates the identity of an instance.
    pub fn for_instance(trust_domain: &str, function: FunctionId, instance: InstanceId) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            role: SpiffeRole::Instance(function, instance),
        }
    }

    /// Creates the identity of a node's gateway.
    pub fn for_gateway(trust_domain: &str, node: &str) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            role: SpiffeRole::Gateway(node.to_owned()),
        }
    }
}

impl FromStr for SpiffeId {
    type Err = InvalidSpiffeId;

    fn from_str(text: &str) -> Result<Self, InvalidSpiffeId> {
        // In this spelling alone, because identities are compared as text.
        let rest = text
            .strip_prefix("spiffe://")
            .ok_or(InvalidSpiffeId::Form)?;
        let (trust_domain, path) = rest.split_once('/').ok_or(InvalidSpiffeId::Form)?;
        if !is_part(trust_domain) {
            return Err(InvalidSpiffeId::TrustDomain);
        }
        let role = parse_role(path).ok_or(InvalidSpiffeId::Path)?;
        Ok(Self {
            trust_domain: trust_domain.to_owned(),
            role,
        })
    }
}

fn parse_role(path: &str) -> Option<SpiffeRole> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["ns", namespace, "fn", function, "instance", id] => {
            let name: FunctionName = function.parse().ok()?;
            let namespace: Namespace = namespace.parse().ok()?;
            let number = id
                .parse()
                .ok()
                .filter(|number: &u64| number.to_string() == id)?; // one spelling only
            Some(SpiffeRole::Instance(
                FunctionId { name, namespace },
                InstanceId(number),
            ))
        }
        ["node", node, "gateway"] => is_part(node).then(|| SpiffeRole::Gateway(node.to_owned())),
        _ => None,
    }
}

fn is_part(text: &str) -> bool {
    // Lower case alone: trust domains are compared byte by byte (section 2.1).
    let good = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_')
    };
    !text.is_empty() && text.len() <= MAX_PART_BYTES && text.bytes().all(good)
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domain = &self.trust_domain;
        match &self.role {
            SpiffeRole::Instance(function, InstanceId(id)) => {
                write!(
                    f,
                    "spiffe://{domain}/ns/{}/fn/{}/instance/{id}",
                    function.namespace, function.name
                )
            }
            SpiffeRole::Gateway(node) => write!(f, "spiffe://{domain}/node/{node}/gateway"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(domain in "[a-z0-9._-]{1,60}", name in "[a-z][a-z0-9]{0,20}", namespace in "[a-z][a-z0-9]{0,20}", id: u64) {
            let function = FunctionId { name: name.parse().unwrap(), namespace: namespace.parse().unwrap() };
            for id in [SpiffeId::for_instance(&domain, function, InstanceId(id)), SpiffeId::for_gateway(&domain, &name)] {
                prop_assert_eq!(id.to_string().parse::<SpiffeId>(), Ok(id));
            }
        }

        #[test]
        fn any_text_is_read_without_harm(text: String) {
            if let Ok(id) = text.parse::<SpiffeId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn invalid_ids_are_refused() {
        for (text, why) in [
            ("https://here/node/a/gateway", InvalidSpiffeId::Form),
            ("spiffe://here", InvalidSpiffeId::Form),
            ("spiffe:///node/a/gateway", InvalidSpiffeId::TrustDomain),
            (
                "spiffe://here:80/node/a/gateway",
                InvalidSpiffeId::TrustDomain,
            ),
            ("spiffe://Here/node/a/gateway", InvalidSpiffeId::TrustDomain),
            ("spiffe://here/", InvalidSpiffeId::Path),
            ("spiffe://here/node/a/gateway/", InvalidSpiffeId::Path),
            ("spiffe://here/ns/a/fn/b/instance/01", InvalidSpiffeId::Path),
            ("spiffe://here/ns/a/fn/b/instance/-1", InvalidSpiffeId::Path),
            ("spiffe://here/ns//fn/b/instance/1", InvalidSpiffeId::Path),
            ("spiffe://here/ns/a/fn/../instance/1", InvalidSpiffeId::Path),
        ] {
            assert_eq!(text.parse::<SpiffeId>(), Err(why), "{text}");
        }
    }
}
