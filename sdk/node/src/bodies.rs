//! Bodies that JavaScript reads or writes bit by bit: one part is under way at a time, asked for or answered for by JavaScript.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use futures_util::{Stream, stream};
use nearpath::{BodyStream, Error};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Names a body: of a call that came or of one that was made, and its number.
pub(crate) type BodyKey = (bool, u64);

/// A piece, or why there is no more.
pub(crate) type BodyPiece = Result<Bytes, String>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct BodyTable {
    incoming: RefCell<HashMap<BodyKey, BodyStream>>,
    outgoing: RefCell<HashMap<BodyKey, Sender<BodyPiece>>>,
}

impl BodyTable {
    /// One that is to be read.
    pub(crate) fn insert_incoming(&self, key: BodyKey, body: BodyStream) {
        self.incoming.borrow_mut().insert(key, body);
    }

    /// One that is to be written: as a stream.
    pub(crate) fn open_outgoing(&self, key: BodyKey) -> impl Stream<Item = BodyPiece> + use<> {
        let (sender, pieces) = channel(1);
        self.outgoing.borrow_mut().insert(key, sender);
        stream::unfold(pieces, async |mut pieces: Receiver<BodyPiece>| {
            pieces.recv().await.map(|piece| (piece, pieces))
        })
    }

    /// The next part; nothing at the end, and of a body that is not there.
    pub(crate) async fn next_part(&self, key: BodyKey) -> Option<Result<Bytes, Error>> {
        let mut body = self.incoming.borrow_mut().remove(&key)?;
        let part = body.next_part().await;
        if matches!(part, Some(Ok(_))) {
            self.insert_incoming(key, body);
        }
        part
    }

    /// Writes a piece. Whether more is wanted.
    pub(crate) async fn write_piece(&self, key: BodyKey, piece: BodyPiece) -> bool {
        let sender = self.outgoing.borrow().get(&key).cloned();
        let Some(sender) = sender else { return false };
        let has_room = sender.send(piece).await.is_ok() && sender.reserve().await.is_ok();
        if !has_room {
            self.finish_outgoing(key);
        }
        has_room
    }

    /// It is complete.
    pub(crate) fn finish_outgoing(&self, key: BodyKey) {
        self.outgoing.borrow_mut().remove(&key);
    }

    /// Nobody reads it any more.
    pub(crate) fn drop_incoming(&self, key: BodyKey) {
        self.incoming.borrow_mut().remove(&key);
    }
}
