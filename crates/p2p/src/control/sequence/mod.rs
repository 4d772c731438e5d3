//! The pieces of a way, numbered by their order, over carriers that come and go. No I/O, no clock.
//!
//! A piece is kept until the peer has it. Carriers are the line, which takes the first few bytes, and connections to the relay, one
//! after the other: on each of these both sides first say from which piece they go on and how many they have, and then go on; nobody
//! waits for the other's word. What comes a second time is dropped. So it does not matter when which carrier breaks.

mod incoming;
mod outgoing;
mod resume_point;

use incoming::In;
use outgoing::Out;
use resume_point::Mark;

use bytes::Bytes;

use crate::message::MOST_OF_A_PARCEL;
use crate::migrate::Piece;

/// The peer does not keep to the contract, or a carrier has changed what it said: nothing of it can be relied upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    /// Pieces are missing between what came and what comes next.
    #[error("the peer goes on from piece {from}, and {has} have come")]
    Gap { from: u64, has: u64 },
    /// It has more than there are.
    #[error("the peer says to have {has} pieces of {sent}")]
    Unsent { has: u64, sent: u64 },
    /// It begins a connection with something else than where it goes on.
    #[error("the peer did not say from which piece it goes on")]
    Unmarked,
}

/// At most so many bytes are kept for the peer in one direction, each piece with what keeping it costs; beyond that, a writer waits.
/// It is what may be on its way at a time: 400 Mbit/s at 80 ms between the peers.
const MOST: usize = 4 << 20;
/// What a piece costs beside its bytes.
const EACH: usize = 256;
/// The peer is told what has come each time that so much has; on the line, so much.
const OFTEN: usize = MOST / 16;
const OFTEN_ON_THE_LINE: usize = ON_ITS_WAY / 2;
/// So much may be on its way on the line: what lies at the rendezvous for a worker that a thousand peers write to is bounded.
const ON_ITS_WAY: usize = 64 << 10;
/// A piece has so many bytes at least there, if there are as many: otherwise each acknowledgement makes room for a small one.
const WORTH_A_PIECE: usize = 4 << 10;

/// The last piece of a side: it says nothing more.
const OVER: &str = r#"{"over":{}}"#;

/// What the line takes of a side's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    bytes: usize,
    pieces: u64,
}

impl Share {
    /// Enough to shake hands, and to move to a direct way that comes soon.
    pub(super) const BEGINNING: Self = Self { bytes: 16 << 10, pieces: 64 };
    /// Enough for a link that carries little.
    pub(super) const ALL_OF_LITTLE: Self = Self { bytes: 256 << 10, pieces: 512 };
}

/// What is said on the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Saying {
    /// A piece, its number, and how many the sender has of the other side's.
    Piece { number: u64, has: u64, piece: Piece },
    /// How many the sender has.
    Has(u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pieces {
    out: Out,
    inward: In,
    line: Line,
    relay: Option<Relay>,
    /// The peer is to be told what has come.
    due: bool,
    /// The last piece was given for sending.
    over: bool,
}

/// How far the line is.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// The next piece to be said.
    next: u64,
    /// It takes so many bytes more.
    left: usize,
    share: Share,
}

/// How far a connection to the relay is.
#[derive(Debug, Default)]
struct Relay {
    /// The next piece to be sent, once it was said which that is.
    out: Option<u64>,
    /// The next piece to come, likewise.
    inward: Option<u64>,
}

fn cost(piece: &Piece) -> usize {
    EACH + match piece {
        Piece::Bytes(bytes) => bytes.len(),
        Piece::Word(text) => text.len(),
    }
}

/// For the user: what is to be sent, and what has come.
impl Pieces {
    /// Nothing was sent, nothing came.
    pub(super) fn new(share: Share) -> Self {
        let line = Line { next: 0, left: share.bytes, share };
        let (out, inward) = Default::default();
        Self { out, inward, line, relay: None, due: false, over: false }
    }

    /// The first piece was said before there was a session. It is kept like any other, and is not said on the line again.
    pub(super) fn greeted(hello: Bytes, share: Share) -> Self {
        let mut pieces = Self::new(share);
        pieces.line.next = 1;
        pieces.line.left = pieces.line.left.saturating_sub(hello.len());
        pieces.out.push(Piece::Bytes(hello));
        pieces
    }

    /// Whether a piece more may be kept.
    pub(super) fn has_room(&self) -> bool {
        self.out.cost() < MOST
    }

    /// How many bytes the next piece may have to go over the line.
    pub(super) fn room_on_the_line(&self) -> usize {
        let is_next = self.line.next == self.out.end() && self.line.next < self.line.share.pieces;
        let room = ON_ITS_WAY.saturating_sub(self.out.cost());
        if is_next && room >= WORTH_A_PIECE { self.line.left.min(room).min(MOST_OF_A_PARCEL) } else { 0 }
    }

    /// Whether what the line takes is half used up.
    pub(super) fn is_half_said(&self) -> bool {
        let Line { next, left, share } = self.line;
        left <= share.bytes / 2 || next >= share.pieces / 2
    }

    /// The next piece; none after [`Self::end`].
    pub(super) fn send(&mut self, piece: Piece) {
        debug_assert!(!self.over, "what is over says nothing more");
        self.out.push(piece);
    }

    /// There are no more. To be said twice is as good as once.
    pub(super) fn end(&mut self) {
        if !self.over {
            self.send(Piece::Word(OVER.to_owned()));
            self.over = true;
        }
    }

    /// The next piece of the peer's, once.
    pub(super) fn take(&mut self) -> Option<Piece> {
        let piece = self.inward.give()?;
        // A word decides something, and there may be nothing after it that would tell that it came.
        let often = if self.relay.is_some() { OFTEN } else { OFTEN_ON_THE_LINE };
        self.due |= matches!(piece, Piece::Word(_)) || self.inward.untold() >= often;
        if self.inward.is_over() { None } else { Some(piece) }
    }

    /// Whether the peer says nothing more, and all of it was taken.
    pub(super) fn peer_is_over(&self) -> bool {
        self.inward.is_over()
    }

    /// Whether pieces wait to be taken, as many as a peer may send.
    pub(super) fn is_full(&self) -> bool {
        self.inward.cost() >= 2 * MOST
    }

    /// Whether the peer has all that was sent; and all but the word that nothing more comes.
    pub(super) fn is_acknowledged(&self) -> (bool, bool) {
        let left = self.out.end() - self.out.first();
        (left == 0, left <= u64::from(self.over))
    }

    /// The first piece that the peer is not known to have.
    pub(super) fn acknowledged(&self) -> u64 {
        self.out.first()
    }

    /// Whether pieces were taken of which the peer has not heard.
    pub(super) fn is_untold(&self) -> bool {
        self.inward.untold() > 0
    }

    /// Whether the peer is to hear what was taken now.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The peer shall hear what was taken.
    pub(super) fn tell(&mut self) {
        self.due |= self.is_untold();
    }
}

/// For the line.
impl Pieces {
    /// What is to be said next.
    pub(super) fn say(&mut self) -> Option<Saying> {
        self.line.next = self.line.next.max(self.out.first());
        let (number, left) = (self.line.next, self.line.left);
        let bytes = |piece: &Piece| if let Piece::Bytes(bytes) = piece { bytes.len() } else { 0 };
        let pieces = self.line.share.pieces;
        let fits = |piece: &&Piece| number < pieces && bytes(piece) <= left.min(MOST_OF_A_PARCEL);
        if let Some(piece) = self.out.get(number).filter(fits).cloned() {
            self.line.next += 1;
            self.line.left -= bytes(&piece);
            return Some(Saying::Piece { number, has: self.has(), piece });
        }
        self.due.then(|| Saying::Has(self.has()))
    }

    /// Whether everything was said there.
    pub(super) fn is_said(&self) -> bool {
        self.line.next >= self.out.end()
    }

    /// Whether the peer has not acknowledged what was said there.
    pub(super) fn is_unheard(&self) -> bool {
        self.line.next > self.out.first()
    }

    /// What the peer says there. Whether it would leave a gap: then it is no use, and comes again.
    pub(super) fn heard(&mut self, saying: Saying) -> Result<bool, Wrong> {
        let (Saying::Piece { has, .. } | Saying::Has(has)) = saying;
        self.out.acknowledge(has)?;
        let Saying::Piece { number, piece, .. } = saying else { return Ok(false) };
        if number == self.inward.end() {
            self.inward.come(piece);
            return Ok(false);
        }
        Ok(number > self.inward.end())
    }

    fn has(&mut self) -> u64 {
        self.due = false;
        self.inward.tell()
    }
}

/// For a connection to the relay.
impl Pieces {
    /// There is a new one.
    pub(super) fn begin(&mut self) {
        self.relay = Some(Relay::default());
    }

    /// It is gone.
    pub(super) fn cut(&mut self) {
        self.relay = None;
    }

    /// Whether [`Self::frame`] has one.
    pub(super) fn has_frame(&self) -> bool {
        let of = |relay: &Relay| relay.out.is_none_or(|next| self.due || next < self.out.end());
        self.relay.as_ref().is_some_and(of)
    }

    /// What is to be sent next.
    pub(super) fn frame(&mut self) -> Option<Piece> {
        let (first, due) = (self.out.first(), self.due);
        let relay = self.relay.as_mut()?;
        let Some(next) = relay.out.filter(|next| *next >= first) else {
            // At first, and when the peer turned out to have what comes next.
            relay.out = Some(first);
            return Some(Mark::On { from: first, has: self.has() }.frame());
        };
        if due {
            return Some(Mark::Has { pieces: self.has() }.frame());
        }
        let piece = self.out.get(next)?.clone();
        relay.out = Some(next + 1);
        Some(piece)
    }

    /// What came. Whether the peer goes on.
    pub(super) fn came(&mut self, frame: Piece) -> Result<bool, Wrong> {
        let mark = Mark::of(&frame);
        let has = self.inward.end();
        let relay = self.relay.as_mut().ok_or(Wrong::Unmarked)?;
        match (relay.inward, mark) {
            (_, Some(Mark::On { from, .. })) if from > has => return Err(Wrong::Gap { from, has }),
            (_, Some(Mark::On { from, .. })) => relay.inward = Some(from),
            (Some(_), Some(Mark::Has { .. })) => (),
            (Some(number), None) => {
                relay.inward = Some(number + 1);
                if number == has {
                    self.inward.come(frame);
                }
            }
            (None, _) => return Err(Wrong::Unmarked),
        }
        if let Some(Mark::On { has, .. } | Mark::Has { pieces: has }) = mark {
            self.out.acknowledge(has)?;
        }
        Ok(matches!(mark, Some(Mark::On { .. })))
    }
}

#[cfg(test)]
mod tests;
