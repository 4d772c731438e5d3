//! Replies that are expected, in order.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::super::backend_state::{Sent, Statement};
use super::super::message;

/// What has to be taken back when the server skips a message, because one before it failed.
#[derive(Debug, Clone)]
pub(super) enum Undo {
    Nothing,
    /// A Parse that was sent, if it was: the backend did not prepare it, and the client's name, if it was the client's, means what it meant before.
    Parsed(Option<Sent>, Option<Renamed>),
    /// The client's name was not freed.
    Freed(Renamed),
}

/// A client's name, and what it meant before.
pub(super) type Renamed = (Bytes, Option<Rc<Statement>>);

/// One reply.
#[derive(Debug)]
pub(super) enum Expect {
    /// To the client's settings at a new backend; the client hears nothing of it.
    Restored,
    Query,
    Sync,
    Parse(Undo),
    /// A Parse of our own.
    HiddenParse(Undo),
    Bind(Option<Rc<Statement>>),
    Describe,
    Execute,
    Close(Undo),
    /// A Close of our own.
    HiddenClose,
    /// No reply of the server's: this is said when it is its turn.
    Say(Bytes, Undo),
    /// ReadyForQuery in the same manner.
    SayReady,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    expected: VecDeque<Expect>,
}

impl Queue {
    pub(super) fn push(&mut self, expect: Expect) {
        self.expected.push_back(expect);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.expected.len()
    }

    pub(super) fn first(&self) -> Option<&Expect> {
        self.expected.front()
    }

    pub(super) fn pop(&mut self) -> Option<Expect> {
        self.expected.pop_front()
    }

    /// Says what it is the turn of.
    pub(super) fn settle(&mut self, status: u8, to_client: &mut BytesMut) {
        while let Some(Expect::Say(..) | Expect::SayReady) = self.first() {
            match self.pop() {
                Some(Expect::Say(words, _)) => to_client.extend_from_slice(&words),
                _ => message::ready(to_client, status),
            }
        }
    }

    /// After an error in a series of messages the server skips all up to the next Sync: what it skips, the error's own first.
    pub(super) fn skip(&mut self) -> Vec<Expect> {
        let sync =
            self.expected.iter().position(|expect| matches!(expect, Expect::Sync)).unwrap_or(self.expected.len());
        self.expected.drain(..sync).collect()
    }

    /// While rows are copied in, the server ignores a Sync.
    pub(super) fn ignore_syncs(&mut self) {
        self.expected.retain(|expect| !matches!(expect, Expect::Sync));
    }

    /// Takes a renaming back, unless the name was given another meaning since: then that one has come after what was before. Whether it was.
    pub(super) fn rebase(&mut self, (name, before): &Renamed) -> bool {
        let later = self.expected.iter_mut().find_map(|expect| match expect {
            Expect::Parse(Undo::Parsed(_, Some(later)) | Undo::Freed(later)) if later.0 == name => Some(Some(later)),
            Expect::Close(Undo::Freed(later)) if later.0 == name => Some(Some(later)),
            Expect::Say(_, Undo::Parsed(_, Some(later)) | Undo::Freed(later)) if later.0 == name => Some(Some(later)),
            // A simple query ends the statement without a name in any case.
            Expect::Query | Expect::SayReady if name.is_empty() => Some(None),
            _ => None,
        });
        match later {
            Some(Some(later)) => {
                later.1.clone_from(before);
                true
            }
            Some(None) => true,
            None => false,
        }
    }
}
