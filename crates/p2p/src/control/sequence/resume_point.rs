//! What the two sides say to each other on a connection to the relay about the pieces that go over it.

use serde::{Deserialize, Serialize};

use crate::migrate::Piece;

/// A mark has no number; it goes as a text frame, as the words of a way do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Mark {
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
const LONGEST: usize = 80;

impl Mark {
    pub(super) fn frame(self) -> Piece {
        Piece::Word(match self {
            Self::On { from, has } => format!(r#"{{"on":{{"from":{from},"has":{has}}}}}"#),
            Self::Has { pieces } => format!(r#"{{"has":{{"pieces":{pieces}}}}}"#),
        })
    }

    /// `None`: it is a piece.
    pub(super) fn of(frame: &Piece) -> Option<Self> {
        match frame {
            Piece::Word(text) if text.len() <= LONGEST => serde_json::from_str(text).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `contract/vectors/way.json`.
    #[test]
    fn marks_are_what_the_contract_says_and_words_are_none() {
        let vectors = include_str!("../../../../../contract/vectors/way.json");
        let vectors: serde_json::Value = serde_json::from_str(vectors).unwrap();
        let number = |one: &serde_json::Value, name: &str| one[name].as_u64().unwrap();
        let marks = vectors["marks"].as_array().unwrap();
        assert_eq!(marks.len(), 3);
        for one in marks {
            let mark = match one["mark"].as_str().unwrap() {
                "on" => Mark::On { from: number(one, "from"), has: number(one, "has") },
                _ => Mark::Has { pieces: number(one, "pieces") },
            };
            let frame = Piece::Word(one["text"].as_str().unwrap().to_owned());
            assert_eq!((mark.frame(), Mark::of(&frame)), (frame, Some(mark)));
        }
        assert_eq!(vectors["last"], super::super::OVER);
        for text in
            [super::super::OVER, r#"{"moved":{"at":0}}"#, r#"{"has":{"pieces":-1}}"#, r#"{"on":{"from":1}}"#, ""]
        {
            assert_eq!(Mark::of(&Piece::Word(text.into())), None, "{text}");
        }
        assert_eq!(Mark::of(&Piece::Bytes(r#"{"has":{"pieces":7}}"#.into())), None);
    }
}
