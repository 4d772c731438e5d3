//! A line's letter box: what its worker is to be told, until the line's task takes it out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::metrics::Ledger;
use nearpath_p2p::message::{Bye, Told, alone};

/// So many messages may lie in a letter box: all grants of a worker for whom many have waited, and some more. Memory is
/// taken for those that are there.
const BOX: usize = 4096;

/// What a line's task takes out of its box. A box that is closed without an end is one that overflowed.
#[derive(Debug)]
pub(super) enum Letter {
    /// Boxed: a letter box takes the room of 32 letters from its beginning.
    Tell(Box<Told>),
    Carry(Box<Lying>),
    End(Bye),
}

/// See the module.
#[derive(Debug)]
pub(super) struct LetterBox {
    letters: mpsc::Sender<Letter>,
    lying: Arc<AtomicUsize>,
}

/// There is no room for a letter.
pub(super) struct Full;

impl LetterBox {
    pub(super) fn new() -> (Self, mpsc::Receiver<Letter>) {
        let (letters, taken) = mpsc::channel(BOX);
        (Self { letters, lying: Arc::default() }, taken)
    }

    /// A box whose line has gone takes everything.
    pub(super) fn put(&self, letter: Letter) -> Result<(), Full> {
        match self.letters.try_send(letter) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(Full),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    /// A parcel for which there is no room, here or in all boxes together, is dropped: words have half of a box's places for themselves.
    /// `room`: for both, in bytes.
    pub(super) fn carry(&self, frame: Bytes, room: (usize, u64), ledger: &Arc<Ledger>) {
        let (here, all) = (self.lying.load(Ordering::Relaxed), ledger.lying.load(Ordering::Relaxed));
        let lying = || Letter::Carry(Box::new(Lying::new(alone(frame), self.lying.clone(), ledger.clone())));
        let is_crowded = self.letters.capacity() <= BOX / 2;
        if is_crowded || here >= room.0 || all >= room.1 || self.put(lying()).is_err() {
            Ledger::count(&ledger.spilled);
        }
    }
}

/// A parcel that is counted for as long as it lies in a box.
#[derive(Debug)]
pub(super) struct Lying {
    frame: Bytes,
    here: Arc<AtomicUsize>,
    ledger: Arc<Ledger>,
}

impl Lying {
    fn new(frame: Bytes, here: Arc<AtomicUsize>, ledger: Arc<Ledger>) -> Self {
        here.fetch_add(frame.len(), Ordering::Relaxed);
        ledger.lying.fetch_add(frame.len() as u64, Ordering::Relaxed);
        Self { frame, here, ledger }
    }

    pub(super) fn frame(&self) -> &Bytes {
        &self.frame
    }
}

impl Drop for Lying {
    fn drop(&mut self) {
        self.here.fetch_sub(self.frame.len(), Ordering::Relaxed);
        self.ledger.lying.fetch_sub(self.frame.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parcels_leave_room_for_words() {
        let ledger = Arc::<Ledger>::default();
        let (one, _letters) = LetterBox::new();
        (0..2 * BOX).for_each(|_| one.carry(Bytes::from_static(b"x"), (1 << 20, 1 << 20), &ledger));
        assert_eq!(ledger.spilled.load(Ordering::Relaxed), (BOX + BOX / 2) as u64);
        assert!((0..BOX / 2).all(|_| one.put(Letter::End(Bye::Slow)).is_ok()), "words find room");
        assert!(one.put(Letter::End(Bye::Slow)).is_err());
    }

    #[test]
    fn parcels_beyond_the_room_are_dropped_and_taken_ones_make_room() {
        let ledger = Arc::<Ledger>::default();
        let (one, mut letters) = LetterBox::new();
        let frame = Bytes::from_static(&[0; 100]);
        let put = |box_: &LetterBox| box_.carry(frame.clone(), (150, 1000), &ledger);
        (0..3).for_each(|_| put(&one));
        assert_eq!((ledger.lying.load(Ordering::Relaxed), ledger.spilled.load(Ordering::Relaxed)), (200, 1));
        drop(letters.try_recv().unwrap());
        put(&one);
        assert_eq!((ledger.lying.load(Ordering::Relaxed), ledger.spilled.load(Ordering::Relaxed)), (200, 1));
        let (another, _letters) = LetterBox::new();
        another.carry(frame.clone(), (150, 200), &ledger);
        assert_eq!(ledger.spilled.load(Ordering::Relaxed), 2, "there is room here, and none in all");
        drop((one, letters));
        assert_eq!(ledger.lying.load(Ordering::Relaxed), 0);
    }
}
