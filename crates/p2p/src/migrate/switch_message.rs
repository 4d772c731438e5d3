//! What the two ends of a way say to each other on the relay, between their bytes.

use serde::{Deserialize, Serialize};

/// The longest word, in bytes.
const MAX_MESSAGE_BYTES: usize = 64;

/// A word, in JSON: `{"moved":{"at":4096}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SwitchMessage {
    /// So many bytes went over the relay; the next ones go over the direct connection.
    Moved {
        /// Bytes, from the way's beginning.
        at: u64,
    },
    /// So many bytes went over the relay, and there are no more.
    Ended {
        /// Bytes, from the way's beginning.
        at: u64,
    },
}

/// What came is no word: the peer speaks another version, or the relay changed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the peer said something on the relay that is no word of a way ({0} bytes)")]
pub struct InvalidSwitchMessage(usize);

impl SwitchMessage {
    /// As it goes over the relay.
    pub fn encode(self) -> String {
        match self {
            Self::Moved { at } => format!(r#"{{"moved":{{"at":{at}}}}}"#),
            Self::Ended { at } => format!(r#"{{"ended":{{"at":{at}}}}}"#),
        }
    }

    /// Reads what came over the relay.
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
