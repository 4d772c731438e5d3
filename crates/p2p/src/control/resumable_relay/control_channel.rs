//! Pieces as they are said on the line.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::control::sequence::Saying;
use crate::message::{Parcel, SessionText, Word};
use crate::migrate::Piece;

/// The way to a session's other side over the line.
pub(in crate::control) struct Words {
    pub(in crate::control) tell: Box<dyn Fn(Saying) + Send>,
    /// The first piece, if it was said before there was a session: with the call.
    pub(in crate::control) said: Option<Bytes>,
    pub(in crate::control) told: mpsc::UnboundedReceiver<Saying>,
}

/// What is said of a session on a line.
#[derive(Debug)]
pub(in crate::control) enum Spoken {
    Word(Word),
    Parcel(Parcel),
}

impl Spoken {
    /// What it takes to keep it.
    pub(in crate::control) fn cost(&self) -> usize {
        const EACH: usize = 256;
        EACH + match self {
            Self::Word(_) => 0, // the rendezvous bounds them
            Self::Parcel(parcel) => parcel.bytes.len(),
        }
    }

    pub(in crate::control) fn of(saying: Saying, session: SessionText) -> Self {
        match saying {
            Saying::Piece { number: piece, has, piece: Piece::Bytes(bytes) } => {
                Self::Parcel(Parcel { session, piece, has, bytes })
            }
            Saying::Piece { number: piece, has, piece: Piece::Word(text) } => {
                Self::Word(Word::Text { piece, has, text })
            }
            Saying::Has(pieces) => Self::Word(Word::Has { pieces }),
        }
    }
}

impl TryFrom<Spoken> for Saying {
    /// What is no piece.
    type Error = Word;

    fn try_from(spoken: Spoken) -> Result<Self, Word> {
        match spoken {
            Spoken::Parcel(Parcel { piece: number, has, bytes, .. }) => {
                Ok(Self::Piece { number, has, piece: Piece::Bytes(bytes) })
            }
            Spoken::Word(Word::Text { piece: number, has, text }) => {
                Ok(Self::Piece { number, has, piece: Piece::Word(text) })
            }
            Spoken::Word(Word::Has { pieces }) => Ok(Self::Has(pieces)),
            Spoken::Word(other) => Err(other),
        }
    }
}
