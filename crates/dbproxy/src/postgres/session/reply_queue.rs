//! Replies that are expected, in order.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::super::backend_state::{PreparedStatement, SentParse};
use super::super::message;

/// What has to be taken back when the server skips a message, because one before it failed.
#[derive(Debug, Clone)]
pub(super) enum ReplyUndo {
    Nothing,
    /// A Parse that was sent, if it was: the backend did not prepare it, and the client's name, if it was the client's, means what it meant before.
    Parsed(Option<SentParse>, Option<RenamedStatement>),
    /// The client's name was not freed.
    Freed(RenamedStatement),
}

/// A client's name, and what it meant before.
pub(super) type RenamedStatement = (Bytes, Option<Rc<PreparedStatement>>);

/// One reply.
#[derive(Debug)]
pub(super) enum PostgresExpectedReply {
    /// To the client's settings at a new backend; the client hears nothing of it.
    Restored,
    Query,
    Sync,
    Parse(ReplyUndo),
    /// A Parse of our own.
    HiddenParse(ReplyUndo),
    Bind(Option<Rc<PreparedStatement>>),
    Describe,
    Execute,
    Close(ReplyUndo),
    /// A Close of our own.
    HiddenClose,
    /// No reply of the server's: this is said when it is its turn.
    Local(Bytes, ReplyUndo),
    /// ReadyForQuery in the same manner.
    LocalReady,
}

#[derive(Debug, Default)]
pub(super) struct ReplyQueue {
    expected: VecDeque<PostgresExpectedReply>,
}

impl ReplyQueue {
    pub(super) fn push(&mut self, expect: PostgresExpectedReply) {
        self.expected.push_back(expect);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.expected.len()
    }

    pub(super) fn first(&self) -> Option<&PostgresExpectedReply> {
        self.expected.front()
    }

    pub(super) fn pop(&mut self) -> Option<PostgresExpectedReply> {
        self.expected.pop_front()
    }

    /// Says what it is the turn of.
    pub(super) fn flush_local(&mut self, status: u8, to_client: &mut BytesMut) {
        while let Some(PostgresExpectedReply::Local(..) | PostgresExpectedReply::LocalReady) =
            self.first()
        {
            match self.pop() {
                Some(PostgresExpectedReply::Local(words, _)) => to_client.extend_from_slice(&words),
                _ => message::write_ready(to_client, status),
            }
        }
    }

    /// After an error in a series of messages the server skips all up to the next Sync: what it skips, the error's own first.
    pub(super) fn skip_to_sync(&mut self) -> Vec<PostgresExpectedReply> {
        let sync = self
            .expected
            .iter()
            .position(|expect| matches!(expect, PostgresExpectedReply::Sync))
            .unwrap_or(self.expected.len());
        self.expected.drain(..sync).collect()
    }

    /// While rows are copied in, the server ignores a Sync.
    pub(super) fn ignore_syncs(&mut self) {
        self.expected
            .retain(|expect| !matches!(expect, PostgresExpectedReply::Sync));
    }

    /// Takes a renaming back, unless the name was given another meaning since: then that one has come after what was before. Whether it was.
    pub(super) fn rebase_name(&mut self, (name, before): &RenamedStatement) -> bool {
        let later = self.expected.iter_mut().find_map(|expect| match expect {
            PostgresExpectedReply::Parse(
                ReplyUndo::Parsed(_, Some(later)) | ReplyUndo::Freed(later),
            ) if later.0 == name => Some(Some(later)),
            PostgresExpectedReply::Close(ReplyUndo::Freed(later)) if later.0 == name => {
                Some(Some(later))
            }
            PostgresExpectedReply::Local(
                _,
                ReplyUndo::Parsed(_, Some(later)) | ReplyUndo::Freed(later),
            ) if later.0 == name => Some(Some(later)),
            // A simple query ends the statement without a name in any case.
            PostgresExpectedReply::Query | PostgresExpectedReply::LocalReady if name.is_empty() => {
                Some(None)
            }
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
