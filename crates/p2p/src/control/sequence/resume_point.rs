//! What the two sides say to each other on a connection to the relay about the pieces that go over it.

use serde::{Deserialize, Serialize};

use crate::migrate::StreamFrame;

/// A mark has no number; it goes as a text frame, as the words of a way do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ResumePoint {
    /// First of all on a connection.
    On {
        /// The number of the piece that comes next.
        from: u64,
        /// So many pieces of the peer's have come.
        has: u64,
    },
    /// So many pieces of the peer's have come.
    Has {
        /// From the beginning.
        pieces: u64,
    },
}

/// The longest mark, in bytes.
const MAX_TEXT_BYTES: usize = 80;

impl ResumePoint {
    pub(super) fn to_frame(self) -> StreamFrame {
        StreamFrame::Text(match self {
            Self::On { from, has } => format!(r#"{{"on":{{"from":{from},"has":{has}}}}}"#),
            Self::Has { pieces } => format!(r#"{{"has":{{"pieces":{pieces}}}}}"#),
        })
    }

    /// `NoConnection`: it is a piece.
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

    /// `contract/vectors/way.json`.
    #[test]
    fn resume_points_match_the_contract_and_other_texts_are_none() {
        let vectors = include_str!("../../../../../contract/vectors/way.json");
        let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
        let number = |one: &serde_json::Value, name: &str| one[name].as_u64().unwrap();
        let resume_points = vectors["marks"].as_array().unwrap();
        assert_eq!(resume_points.len(), 3);
        for one in resume_points {
            let resume_point = match one["mark"].as_str().unwrap() {
                "on" => ResumePoint::On {
                    from: number(one, "from"),
                    has: number(one, "has"),
                },
                _ => ResumePoint::Has {
                    pieces: number(one, "pieces"),
                },
            };
            let frame = StreamFrame::Text(one["text"].as_str().unwrap().to_owned());
            assert_eq!(
                (resume_point.to_frame(), ResumePoint::from_frame(&frame)),
                (frame, Some(resume_point))
            );
        }
        assert_eq!(vectors["last"], super::super::END_FRAME);
        for text in [
            super::super::END_FRAME,
            r#"{"moved":{"at":0}}"#,
            r#"{"has":{"pieces":-1}}"#,
            r#"{"on":{"from":1}}"#,
            "",
        ] {
            assert_eq!(
                ResumePoint::from_frame(&StreamFrame::Text(text.into())),
                None,
                "{text}"
            );
        }
        assert_eq!(
            ResumePoint::from_frame(&StreamFrame::Bytes(r#"{"has":{"pieces":7}}"#.into())),
            None
        );
    }
}
