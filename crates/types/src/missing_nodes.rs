//! Nodes that are missing in a reply about all nodes, as the header field that names them.

use serde::{Deserialize, Serialize};

/// Header field of a reply about all nodes that lacks some: `NODE=CAUSE`, separated by commas.
/// Causes are percent-encoded.
pub const MISSING_NODES_HEADER: &str = "x-nearpath-missing-nodes";

/// Maximum bytes of the field's value. Clients limit the head of a response; further nodes have no
/// cause.
const MAX_VALUE_BYTES: usize = 4096;
/// Maximum characters of a cause.
const MAX_CAUSE_CHARS: usize = 160;

/// Node that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingNode {
    /// Name of the node.
    pub node: String,
    /// Cause, for people.
    pub cause: String,
}

impl MissingNode {
    /// Creates an entry.
    pub fn new(node: impl Into<String>, cause: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            cause: cause.into(),
        }
    }
}

/// Writes the value of the header field.
pub fn format_missing_nodes(missing: &[MissingNode]) -> String {
    let mut value = String::new();
    for one in missing {
        if !value.is_empty() {
            value.push(',');
        }
        value += &one.node;
        value.push('=');
        let cause: String = one.cause.chars().take(MAX_CAUSE_CHARS).collect();
        let cause = percent_encode(&cause);
        if value.len() + cause.len() <= MAX_VALUE_BYTES {
            value += &cause;
        }
    }
    value
}

/// Reads the value of the header field. Entries without a name are skipped.
pub fn parse_missing_nodes(value: &str) -> Vec<MissingNode> {
    let entries = value.split(',').filter_map(|entry| entry.split_once('='));
    let named = entries.filter(|(node, _)| !node.trim().is_empty());
    named
        .map(|(node, cause)| MissingNode::new(node.trim(), percent_decode(cause.trim())))
        .collect()
}

/// Encodes all but RFC 3986's unreserved characters.
fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let decoded = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, decoded) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn many_nodes_fit_into_a_head() {
        let missing: Vec<_> = (0..100)
            .map(|number| MissingNode::new(format!("n{number}"), "ä".repeat(500)))
            .collect();
        let value = format_missing_nodes(&missing);
        assert!(value.len() < 2 * MAX_VALUE_BYTES, "{}", value.len());
        let parsed = parse_missing_nodes(&value);
        assert_eq!(parsed.len(), 100);
        assert_eq!(parsed[0].cause, "ä".repeat(MAX_CAUSE_CHARS));
        assert_eq!((&*parsed[99].node, &*parsed[99].cause), ("n99", ""));
    }

    proptest! {
        #[test]
        fn entries_survive_a_round_trip(
            entries in prop::collection::vec(("[a-z][a-z0-9.-]{0,20}", ".{0,60}"), 0..5),
        ) {
            let missing: Vec<_> = entries
                .into_iter()
                .map(|(node, cause)| MissingNode::new(node, cause))
                .collect();
            let value = format_missing_nodes(&missing);
            prop_assert!(value.bytes().all(|byte| byte.is_ascii_graphic()), "{}", value);
            prop_assert_eq!(parse_missing_nodes(&value), missing);
        }

        #[test]
        fn any_value_is_read(value in ".{0,80}") {
            let _ = parse_missing_nodes(&value);
        }
    }
}
