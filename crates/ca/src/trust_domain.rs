//! Trust domain of the instances of one process.
//!
//! Each process has an authority of its own, and a trust domain is what one authority signs
//! (SPIFFE-ID specification, section 2.1). Ids of instances are unique within a node alone. So the
//! domain names the node, and identities and TLS names of instances are unique over all nodes.

use nearpath_types::direct::trust_domain_of;

use crate::types::IssuerSettings;

/// Trust domain of the only node.
const ONLY_NODE_DOMAIN: &str = "up.nearpath";
/// A name of DNS has at most 253 bytes (RFC 1035 section 2.3.4), with the id of the instance (18
/// bytes with its dot) before the domain.
const MAX_DOMAIN_BYTES: usize = 253 - 18;

/// Returns the trust domain: `NODE.up.nearpath`, or `up.nearpath` for the only node.
pub(crate) fn trust_domain(settings: &IssuerSettings) -> String {
    let Some(name) = &settings.member_name else {
        return ONLY_NODE_DOMAIN.to_owned();
    };
    let domain = trust_domain_of(name);
    if domain.len() <= MAX_DOMAIN_BYTES {
        return domain;
    }
    // The id is unique, too, and short.
    format!("{}.{ONLY_NODE_DOMAIN}", settings.node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn domain_of(member: Option<&str>) -> String {
        trust_domain(&IssuerSettings {
            node: "0f9a".to_owned(),
            member_name: member.map(|name| name.parse().unwrap()),
            gateway_ip: [127, 0, 0, 1].into(),
            lifetime: Duration::from_secs(60),
        })
    }

    #[test]
    fn nodes_have_domains_of_their_own() {
        assert_eq!(domain_of(None), "up.nearpath");
        assert_eq!(domain_of(Some("b.example")), "b.example.up.nearpath");
        let long = [
            "x".repeat(63),
            "y".repeat(63),
            "z".repeat(63),
            "w".repeat(61),
        ]
        .join(".");
        assert_eq!(domain_of(Some(&long)), "0f9a.up.nearpath");
    }
}
