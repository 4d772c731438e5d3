//! Expected replies in order.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::super::backend_state::{PreparedStatement, SentParse};
use super::super::message;

/// Changes to undo when the server skips a message because an earlier one failed.
#[derive(Debug, Clone)]
pub(super) enum ReplyUndo {
    Nothing,
    /// A Parse, if it was sent: the backend did not prepare it. The client's name, if any, keeps
    /// its earlier meaning.
    Parsed(Option<SentParse>, Option<RenamedStatement>),
    /// The client's name was not freed.
    Freed(RenamedStatement),
}

/// A client's name, and its earlier meaning.
pub(super) type RenamedStatement = (Bytes, Option<Rc<PreparedStatement>>);

/// An expected reply.
#[derive(Debug)]
pub(super) enum PostgresExpectedReply {
    /// The reply to the client's restored parameters; hidden from the client.
    Restored,
    Query,
    Sync,
    Parse(ReplyUndo),
    /// The reply to a Parse of the node.
    HiddenParse(ReplyUndo),
    Bind(Option<Rc<PreparedStatement>>),
    Describe,
    Execute,
    Close(ReplyUndo),
    /// The reply to a Close of the node.
    HiddenClose,
    /// A reply that the node writes itself, in its turn.
    Local(Bytes, ReplyUndo),
    /// A ReadyForQuery that the node writes itself, in its turn.
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

    /// Writes the node's own replies whose turn it is.
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

    /// Takes the messages that the server skips after an error: all up to the next Sync, the failed
    /// one first.
    pub(super) fn skip_to_sync(&mut self) -> Vec<PostgresExpectedReply> {
        let sync = self
            .expected
            .iter()
            .position(|expect| matches!(expect, PostgresExpectedReply::Sync))
            .unwrap_or(self.expected.len());
        self.expected.drain(..sync).collect()
    }

    /// Drops expected Sync replies: the server ignores a Sync while rows are copied in.
    pub(super) fn ignore_syncs(&mut self) {
        self.expected
            .retain(|expect| !matches!(expect, PostgresExpectedReply::Sync));
    }

    /// Undoes a renaming, unless a later message gave the name another meaning; that one then
    /// follows the earlier meaning. Returns whether it did.
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
            // A simple query ends the unnamed statement in any case.
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
