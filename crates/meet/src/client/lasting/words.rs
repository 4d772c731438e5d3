//! Pieces as they are said on the line.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::client::pieces::Saying;
use crate::message::{Base64, Word};
use crate::way::Piece;

/// The way to a session's other side over the line.
pub(in crate::client) struct Words {
    pub(in crate::client) tell: Box<dyn Fn(Saying) + Send>,
    /// The first piece, if it was said before there was a session: with the call.
    pub(in crate::client) said: Option<Bytes>,
    pub(in crate::client) told: mpsc::UnboundedReceiver<Saying>,
}

impl From<Saying> for Word {
    fn from(saying: Saying) -> Self {
        match saying {
            Saying::Piece { number: piece, has, piece: Piece::Bytes(bytes) } => {
                Self::Bytes { piece, has, bytes: Base64(bytes) }
            }
            Saying::Piece { number: piece, has, piece: Piece::Word(text) } => Self::Text { piece, has, text },
            Saying::Has(pieces) => Self::Has { pieces },
        }
    }
}

impl TryFrom<Word> for Saying {
    /// What is no piece.
    type Error = Word;

    fn try_from(word: Word) -> Result<Self, Word> {
        match word {
            Word::Bytes { piece: number, has, bytes } => Ok(Self::Piece { number, has, piece: Piece::Bytes(bytes.0) }),
            Word::Text { piece: number, has, text } => Ok(Self::Piece { number, has, piece: Piece::Word(text) }),
            Word::Has { pieces } => Ok(Self::Has(pieces)),
            other => Err(other),
        }
    }
}
