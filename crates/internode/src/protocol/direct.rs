//! Lines of a stream of directly callable instances: `{"direct": {"authority": PEM, "instances": {…}}}`.

use nearpath_types::NodeName;
use nearpath_types::direct::{DirectInstances, DirectNode, split_incarnation, trust_domain_of};
use nearpath_wire::identity::{InvalidPem, Trust, encode_pem, parse_authority};
use serde::{Deserialize, Serialize};

/// Maximum number of instances in one line. Each has a port of its own.
pub const MAX_DIRECT_INSTANCES: usize = 4_096;

/// Fault of a line.
#[derive(Debug, thiserror::Error)]
pub enum DirectFault {
    /// Not JSON, or other fields.
    #[error("it is no line of instances: {0}")]
    Json(#[from] serde_json::Error),
    /// More instances than permitted.
    #[error("it has {0} instances: expected at most {MAX_DIRECT_INSTANCES}")]
    TooMany(usize),
    /// No certificate.
    #[error("its authority: {0}")]
    Authority(#[from] InvalidPem),
    /// A certificate that cannot be an authority's.
    #[error("its authority cannot be used: {0}")]
    UnusableAuthority(String),
    /// An instance of another node.
    #[error("the instance {0:?} is none of this node")]
    ForeignInstance(String),
    /// A port that no socket has.
    #[error("the instance {0:?} has port 0")]
    Port(String),
}

#[derive(Serialize, Deserialize)]
struct DirectLine {
    direct: DirectFields,
}

#[derive(Serialize, Deserialize)]
struct DirectFields {
    authority: String,
    instances: DirectInstances,
}

/// Writes a line with its line feed.
pub fn encode_direct(node: &DirectNode) -> Vec<u8> {
    let line = DirectLine {
        direct: DirectFields {
            authority: encode_pem("CERTIFICATE", &node.authority),
            instances: node.instances.clone(),
        },
    };
    let mut line = serde_json::to_vec(&line).expect("texts and numbers are JSON");
    line.push(b'\n');
    line
}

/// Reads a line of the node `from`. A node speaks for its own instances alone.
///
/// # Errors
/// See [`DirectFault`].
pub fn parse_direct(line: &[u8], from: &NodeName) -> Result<DirectNode, DirectFault> {
    let DirectFields {
        authority,
        instances,
    } = serde_json::from_slice::<DirectLine>(line)?.direct;
    if instances.len() > MAX_DIRECT_INSTANCES {
        return Err(DirectFault::TooMany(instances.len()));
    }
    for (name, instance) in &instances {
        if split_incarnation(name).is_none_or(|(_, node)| node != from.as_str()) {
            return Err(DirectFault::ForeignInstance(
                name.chars().take(80).collect(),
            ));
        }
        if instance.port == 0 {
            return Err(DirectFault::Port(name.clone()));
        }
    }
    let authority = parse_authority(&authority)?;
    // A watchdog that gets an unusable one would lose its identity.
    Trust::new(&trust_domain_of(from), std::slice::from_ref(&authority))
        .map_err(|error| DirectFault::UnusableAuthority(error.to_string()))?;
    Ok(DirectNode {
        authority: authority.as_ref().into(),
        instances,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::direct::DirectInstance;

    fn vectors() -> serde_json::Value {
        let text = include_str!("../../../../contract/vectors/direct.json");
        serde_json::from_str(text).unwrap()
    }

    fn read(line: &serde_json::Value, from: &str) -> Result<DirectNode, DirectFault> {
        parse_direct(line.as_str().unwrap().as_bytes(), &from.parse().unwrap())
    }

    #[test]
    fn the_vector_is_read_and_written() {
        let line = &vectors()["line"];
        let node = read(line, "b").unwrap();
        let instance = DirectInstance {
            function: "cart.shop".parse().unwrap(),
            port: 8501,
            leaving: true,
        };
        assert_eq!(node.instances["i5.b.up.nearpath"], instance);
        let written = encode_direct(&node);
        let again = parse_direct(&written, &"b".parse().unwrap()).unwrap();
        assert_eq!((again, written.last()), (node, Some(&b'\n')));
    }

    #[test]
    fn other_lines_are_refused() {
        let vectors = vectors();
        let of_another = read(&vectors["line"], "c");
        assert!(matches!(of_another, Err(DirectFault::ForeignInstance(_))));
        for refused in vectors["refused"].as_array().unwrap() {
            assert!(read(&refused["line"], "b").is_err(), "{}", refused["about"]);
        }
    }
}
