//! Streamed bodies of JavaScript: one part at a time, requested or acknowledged by JavaScript.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use futures_util::{Stream, stream};
use nearpath::{BodyStream, Error};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Key of a body: true for a received call, false for an outgoing one, and the call's number.
pub(crate) type BodyKey = (bool, u64);

/// A piece, or the reason why the body ended early.
pub(crate) type BodyPiece = Result<Bytes, String>;

/// Bodies that are being read or written.
#[derive(Debug, Default)]
pub(crate) struct BodyTable {
    incoming: RefCell<HashMap<BodyKey, BodyStream>>,
    outgoing: RefCell<HashMap<BodyKey, Sender<BodyPiece>>>,
}

impl BodyTable {
    /// Adds a body to read.
    pub(crate) fn insert_incoming(&self, key: BodyKey, body: BodyStream) {
        self.incoming.borrow_mut().insert(key, body);
    }

    /// Adds a body to write, and returns it as a stream.
    pub(crate) fn open_outgoing(&self, key: BodyKey) -> impl Stream<Item = BodyPiece> + use<> {
        // One piece is buffered: `write_piece` reports to JavaScript when the callee has
        // capacity.
        let (sender, pieces) = channel(1);
        self.outgoing.borrow_mut().insert(key, sender);
        stream::unfold(pieces, async |mut pieces: Receiver<BodyPiece>| {
            pieces.recv().await.map(|piece| (piece, pieces))
        })
    }

    /// Returns the next part; `None` at the end, and for an unknown body.
    pub(crate) async fn next_part(&self, key: BodyKey) -> Option<Result<Bytes, Error>> {
        // Removed while it is awaited: the table must not be borrowed across an await.
        let mut body = self.incoming.borrow_mut().remove(&key)?;
        let part = body.next_part().await;
        // Put back only if more can follow; the end or an error drops it.
        if matches!(part, Some(Ok(_))) {
            self.insert_incoming(key, body);
        }
        part
    }

    /// Writes a piece. Returns true if the receiver wants more.
    pub(crate) async fn write_piece(&self, key: BodyKey, piece: BodyPiece) -> bool {
        // Cloned, so that the borrow ends before the await.
        let sender = self.outgoing.borrow().get(&key).cloned();
        let Some(sender) = sender else { return false };
        // `reserve` waits until the piece is consumed, which is the back-pressure on JavaScript.
        let wants_more = sender.send(piece).await.is_ok() && sender.reserve().await.is_ok();
        if !wants_more {
            self.finish_outgoing(key);
        }
        wants_more
    }

    /// Ends a body.
    pub(crate) fn finish_outgoing(&self, key: BodyKey) {
        self.outgoing.borrow_mut().remove(&key);
    }

    /// Drops a body that is not read any more.
    pub(crate) fn drop_incoming(&self, key: BodyKey) {
        self.incoming.borrow_mut().remove(&key);
    }
}
