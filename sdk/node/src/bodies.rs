//! Bodies that JavaScript reads or writes bit by bit: one part is under way at a time, asked for or answered for by JavaScript.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use futures_util::{Stream, stream};
use nearpath::{BodyStream, Error};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Names a body: of a call that came or of one that was made, and its number.
pub(crate) type Key = (bool, u64);

/// A piece, or why there is no more.
pub(crate) type Piece = Result<Bytes, String>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    read: RefCell<HashMap<Key, BodyStream>>,
    written: RefCell<HashMap<Key, Sender<Piece>>>,
}

impl Bodies {
    /// One that is to be read.
    pub(crate) fn came(&self, key: Key, body: BodyStream) {
        self.read.borrow_mut().insert(key, body);
    }

    /// One that is to be written: as a stream.
    pub(crate) fn goes(&self, key: Key) -> impl Stream<Item = Piece> + use<> {
        let (sender, pieces) = channel(1);
        self.written.borrow_mut().insert(key, sender);
        stream::unfold(pieces, async |mut pieces: Receiver<Piece>| pieces.recv().await.map(|piece| (piece, pieces)))
    }

    /// The next part; nothing at the end, and of a body that is not there.
    pub(crate) async fn next(&self, key: Key) -> Option<Result<Bytes, Error>> {
        let mut body = self.read.borrow_mut().remove(&key)?;
        let part = body.next_part().await;
        if matches!(part, Some(Ok(_))) {
            self.came(key, body);
        }
        part
    }

    /// Writes a piece. Whether more is wanted.
    pub(crate) async fn write(&self, key: Key, piece: Piece) -> bool {
        let sender = self.written.borrow().get(&key).cloned();
        let Some(sender) = sender else { return false };
        let room = sender.send(piece).await.is_ok() && sender.reserve().await.is_ok();
        if !room {
            self.finish(key);
        }
        room
    }

    /// It is complete.
    pub(crate) fn finish(&self, key: Key) {
        self.written.borrow_mut().remove(&key);
    }

    /// Nobody reads it any more.
    pub(crate) fn leave(&self, key: Key) {
        self.read.borrow_mut().remove(&key);
    }
}
