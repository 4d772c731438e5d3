//! Number of one run of a node.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const HEX_DIGITS: usize = 16;

/// Random number of one run of a node's process. A restarted node has another one.
///
/// Written as 16 lower-case hexadecimal digits: numbers of JSON are exact only up to 2^53 (RFC 8259
/// section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeIncarnation(pub u64);

/// Error of a text that is no incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid incarnation: expected 16 lower-case hexadecimal digits")]
pub struct InvalidIncarnation;

impl fmt::Display for NodeIncarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for NodeIncarnation {
    type Err = InvalidIncarnation;

    fn from_str(text: &str) -> Result<Self, InvalidIncarnation> {
        // Checked here, because `from_str_radix` also reads signs and capitals.
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != HEX_DIGITS || !text.bytes().all(is_digit) {
            return Err(InvalidIncarnation);
        }
        u64::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| InvalidIncarnation)
    }
}

impl TryFrom<String> for NodeIncarnation {
    type Error = InvalidIncarnation;

    fn try_from(text: String) -> Result<Self, InvalidIncarnation> {
        text.parse()
    }
}

impl From<NodeIncarnation> for String {
    fn from(incarnation: NodeIncarnation) -> String {
        incarnation.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_has_one_spelling() {
        let incarnation = NodeIncarnation(0x1f);
        assert_eq!(incarnation.to_string(), "000000000000001f");
        assert_eq!("000000000000001f".parse(), Ok(incarnation));
        for bad in [
            "",
            "1f",
            "000000000000001F",
            "+00000000000001f",
            "00000000000000001f",
        ] {
            assert_eq!(
                bad.parse::<NodeIncarnation>(),
                Err(InvalidIncarnation),
                "{bad}"
            );
        }
    }
}
