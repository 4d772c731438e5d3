//! Resume points and acknowledgements, the messages about frames on a connection to the relay.

use serde::{Deserialize, Serialize};

use crate::migrate::StreamFrame;

/// Resume point or acknowledgement (`contract/migration.md`). It is a text frame like the stream's
/// messages, but has no frame number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ResumePoint {
    /// Resume point: the first message on a connection. A side repeats it when the peer turns out
    /// to have more frames.
    Resume {
        /// Number of the next frame on this connection.
        from: u64,
        /// Number of frames received from the peer.
        acknowledged: u64,
    },
    /// Acknowledgement without a new position.
    Ack {
        /// Number of frames received, from the stream's beginning.
        acknowledged: u64,
    },
}

/// Largest message, in bytes: a resume point with two 64-bit numbers has 76. Longer texts belong to
/// the stream and are not parsed.
const MAX_TEXT_BYTES: usize = 80;

impl ResumePoint {
    pub(super) fn to_frame(self) -> StreamFrame {
        // Formatted without serde: the contract's vectors fix every byte, so the field order too.
        StreamFrame::Text(match self {
            Self::Resume { from, acknowledged } => {
                format!(r#"{{"resume":{{"from":{from},"acknowledged":{acknowledged}}}}}"#)
            }
            Self::Ack { acknowledged } => format!(r#"{{"ack":{{"acknowledged":{acknowledged}}}}}"#),
        })
    }

    /// Parses a text frame. Returns `None` for a frame of the stream.
    pub(super) fn from_frame(frame: &StreamFrame) -> Option<Self> {
        match frame {
            StreamFrame::Text(text) if text.len() <= MAX_TEXT_BYTES => {
                serde_json::from_str(text).ok()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `contract/vectors/migration.json`.
    #[test]
    fn resume_points_match_the_contract_and_other_texts_are_none() {
        let vectors = include_str!("../../../../../contract/vectors/migration.json");
        let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
        let number = |vector: &serde_json::Value, name: &str| vector[name].as_u64().unwrap();
        let resume_points = vectors["resume_points"].as_array().unwrap();
        assert_eq!(resume_points.len(), 3);
        for vector in resume_points {
            let resume_point = match vector["kind"].as_str().unwrap() {
                "resume" => ResumePoint::Resume {
                    from: number(vector, "from"),
                    acknowledged: number(vector, "acknowledged"),
                },
                _ => ResumePoint::Ack {
                    acknowledged: number(vector, "acknowledged"),
                },
            };
            let frame = StreamFrame::Text(vector["text"].as_str().unwrap().to_owned());
            assert_eq!(
                (resume_point.to_frame(), ResumePoint::from_frame(&frame)),
                (frame, Some(resume_point))
            );
        }
        assert_eq!(vectors["last"], super::super::END_FRAME);
        for text in [
            super::super::END_FRAME,
            r#"{"moved":{"at":0}}"#,
            r#"{"ack":{"acknowledged":-1}}"#,
            r#"{"resume":{"from":1}}"#,
            "",
        ] {
            assert_eq!(
                ResumePoint::from_frame(&StreamFrame::Text(text.into())),
                None,
                "{text}"
            );
        }
        assert_eq!(
            ResumePoint::from_frame(&StreamFrame::Bytes(r#"{"ack":{"acknowledged":7}}"#.into())),
            None
        );
    }
}
