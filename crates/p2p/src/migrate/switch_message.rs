//! Messages between the two ends of a stream, on the relay between their bytes.

use serde::{Deserialize, Serialize};

/// Largest message, in bytes: the longest valid one has 37.
const MAX_MESSAGE_BYTES: usize = 64;

/// Message as JSON: `{"moved":{"at":4096}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SwitchMessage {
    /// Later bytes go over the direct connection.
    Moved {
        /// Bytes sent over the relay, from the stream's beginning.
        at: u64,
    },
    /// No more bytes follow.
    Ended {
        /// Bytes sent over the relay, from the stream's beginning.
        at: u64,
    },
}

/// Text is no such message: the peer has another version, or the relay changed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent an invalid message on the relay ({0} bytes)")]
pub struct InvalidSwitchMessage(usize);

impl SwitchMessage {
    /// Encodes the message.
    pub fn encode(self) -> String {
        // Written by hand: the vectors of the contract fix the text to the byte.
        match self {
            Self::Moved { at } => format!(r#"{{"moved":{{"at":{at}}}}}"#),
            Self::Ended { at } => format!(r#"{{"ended":{{"at":{at}}}}}"#),
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// See [`InvalidSwitchMessage`].
    pub fn decode(text: &str) -> Result<Self, InvalidSwitchMessage> {
        let bad = InvalidSwitchMessage(text.len());
        if text.len() > MAX_MESSAGE_BYTES {
            Err(bad)
        } else {
            serde_json::from_str(text).map_err(|_| bad)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_a_round_trip() {
        for message in [
            SwitchMessage::Moved { at: 0 },
            SwitchMessage::Moved { at: u64::MAX },
            SwitchMessage::Ended { at: 7 },
        ] {
            assert_eq!(SwitchMessage::decode(&message.encode()), Ok(message));
            assert_eq!(serde_json::to_string(&message).unwrap(), message.encode());
        }
    }

    #[test]
    fn invalid_messages_are_refused() {
        for text in [
            "",
            "{}",
            r#"{"moved":{"at":-1}}"#,
            r#"{"moved":{"at":1,"by":2}}"#,
            r#"{"left":{"at":1}}"#,
        ] {
            assert!(SwitchMessage::decode(text).is_err(), "{text}");
        }
        let long = format!(
            "{}{}",
            " ".repeat(MAX_MESSAGE_BYTES),
            SwitchMessage::Moved { at: 1 }.encode()
        );
        assert!(SwitchMessage::decode(&long).is_err());
    }
}
