//! What the two sides say to each other on a connection to the relay about the pieces that go over it.

use serde::{Deserialize, Serialize};

use crate::way::Piece;

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

    #[test]
    fn marks_are_read_as_they_were_made_and_words_are_none() {
        for mark in
            [Mark::On { from: 0, has: u64::MAX }, Mark::On { from: u64::MAX, has: u64::MAX }, Mark::Has { pieces: 7 }]
        {
            let Piece::Word(text) = mark.frame() else { panic!("bytes") };
            assert_eq!(Mark::of(&mark.frame()), Some(mark));
            assert_eq!(serde_json::to_string(&mark).unwrap(), text);
        }
        for text in
            [super::super::OVER, r#"{"moved":{"at":0}}"#, r#"{"has":{"pieces":-1}}"#, r#"{"on":{"from":1}}"#, ""]
        {
            assert_eq!(Mark::of(&Piece::Word(text.into())), None, "{text}");
        }
        assert_eq!(Mark::of(&Piece::Bytes(r#"{"has":{"pieces":7}}"#.into())), None);
    }
}
