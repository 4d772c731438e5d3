//! A client's talk with its backends, without socket or clock: what a message of the client's means for the backend ([`Talk::hear`]), what a message of
//! the backend's means for the client ([`Talk::handle_backend`]), and when nothing binds the two ([`Talk::is_free`]).
//!
//! Statements keep the client's names on its side only. A backend that lacks one is told it before it is used, and the reply is kept from the client; a
//! Close frees a name here, and nothing there. So each message that was sent has its place in a queue of expected replies.

mod extended_query;
mod replies;
mod reply_queue;
#[cfg(test)]
mod simulation;

use std::collections::HashMap;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use nearpath_types::egress::PoolingMode;

use super::backend_state::{
    BackendState, PreparedStatement, STATUS_IDLE, SessionParameters, StatementNames,
};
use super::frame::{HEADER_BYTES, MalformedMessage, MessagePiece, split_text};
use super::message;
use super::session_effect::{self, PostgresSessionEffect, RESTORED_SETTINGS};
use reply_queue::{PostgresExpectedReply, ReplyQueue, ReplyUndo};

/// Statements that one client may have prepared under names.
const MAX_NAMED_STATEMENTS: usize = 4_096;
/// Bytes of their texts, or nearly.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Replies that may be expected before more is heard. The server keeps replies back until it has 8 KB of them, which are fewer than this.
const MAX_EXPECTED_REPLIES: usize = 16_384;
/// No text longer than this is looked at only to see whether it is a `DEALLOCATE`.
const MAX_DEALLOCATE_BYTES: usize = 128;
/// Encodings in which a byte of ASCII may be part of another character, so that a text cannot be cut into tokens without knowing them.
const UNSAFE_ENCODINGS: [&str; 7] = [
    "BIG5",
    "GB18030",
    "GBK",
    "JOHAB",
    "SHIFT_JIS_2004",
    "SJIS",
    "UHC",
];

/// Who does not keep to the protocol, and how.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostgresProtocolError {
    #[error("the client sent {0}")]
    Client(String),
    #[error("the server sent {0}")]
    Server(String),
    #[error("{0}")]
    Malformed(#[from] MalformedMessage),
}

/// One client's side.
#[derive(Debug)]
pub(super) struct PostgresSession {
    /// Prepared statements by the client's names; the one without a name is among them.
    statements: HashMap<Bytes, Rc<PreparedStatement>>,
    /// Bytes of their texts at most.
    text_bytes: usize,
    /// The settings that the client knows of.
    pub(super) parameters: SessionParameters,
    queue: ReplyQueue,
    /// Why the client keeps its backend.
    pin: Option<&'static str>,
    /// Statements are the session's, not tracked.
    is_session_mode: bool,
    /// Messages have been sent that a Sync has yet to end.
    in_series: bool,
    is_copying: bool,
}

/// Where the words of both sides go.
pub(super) struct SessionOutputs<'a> {
    pub(super) to_backend: &'a mut BytesMut,
    pub(super) to_client: &'a mut BytesMut,
    pub(super) names: &'a StatementNames,
}

impl PostgresSession {
    pub(super) fn new(mode: PoolingMode, parameters: SessionParameters) -> Self {
        let is_session_mode = mode == PoolingMode::Session;
        Self {
            statements: HashMap::new(),
            text_bytes: 0,
            parameters,
            queue: ReplyQueue::default(),
            pin: is_session_mode.then_some("session mode"),
            is_session_mode,
            in_series: false,
            is_copying: false,
        }
    }

    /// Why the client keeps its backend until it leaves.
    pub(super) fn pin(&self) -> Option<&'static str> {
        self.pin
    }

    /// Keeps the backend from now on.
    pub(super) fn set_pin(&mut self, why: &'static str) {
        self.pin.get_or_insert(why);
    }

    /// Nothing is under way, and no transaction is open: the backend can serve somebody else.
    pub(super) fn is_free(&self, facts: &BackendState) -> bool {
        self.is_quiet() && facts.status == STATUS_IDLE
    }

    /// All that was sent has been answered.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && !self.in_series && !self.is_copying
    }

    /// So much is under way that replies have to come first.
    pub(super) fn is_backlogged(&self) -> bool {
        self.queue.len() >= MAX_EXPECTED_REPLIES
    }

    /// Whether the server waits for more of the client's before it ends what is under way.
    pub(super) fn awaits_client(&self) -> bool {
        self.in_series || self.is_copying
    }

    /// Whether a message needs a backend, for a client that has none.
    pub(super) fn needs_backend(&self, piece: &MessagePiece) -> bool {
        let MessagePiece::Whole(message) = piece else {
            return true;
        };
        match (message[0], &message[HEADER_BYTES..]) {
            // Stray ends of a COPY: the server ignores them, too.
            (b'S' | b'H' | b'd' | b'c' | b'f', _) => false,
            (b'C', [b'S', name @ ..]) => {
                !split_text(name).is_some_and(|(name, _)| self.statements.contains_key(name))
            }
            (b'Q', body) if body.len() <= MAX_DEALLOCATE_BYTES && !self.statements.is_empty() => {
                self.freed_name(&self.classify(body)).is_none()
            }
            _ => true,
        }
    }

    /// Answers a message that needs no backend.
    pub(super) fn answer_locally(&mut self, piece: MessagePiece, to_client: &mut BytesMut) {
        let (MessagePiece::Whole(message)
        | MessagePiece::Start(message)
        | MessagePiece::More(message)) = piece;
        match (message[0], &message[HEADER_BYTES..]) {
            (b'S', _) => message::write_ready(to_client, STATUS_IDLE),
            (b'C', [_, name @ ..]) => {
                split_text(name)
                    .into_iter()
                    .for_each(|(name, _)| drop(self.statements.remove(name)));
                to_client.extend_from_slice(message::CLOSE_COMPLETE);
            }
            (b'Q', body) => {
                self.freed_name(&self.classify(body))
                    .into_iter()
                    .for_each(|name| drop(self.statements.remove(&name)));
                self.statements.remove(&b""[..]);
                message::write_command_tag(to_client, "DEALLOCATE");
                message::write_ready(to_client, STATUS_IDLE);
            }
            _ => {}
        }
    }

    /// Restores the client's settings at a backend that it has just got, where `first` is the first that it has to say. As any simple query that ends the
    /// statement without a name there, which another client may have prepared with the same text.
    ///
    /// Who begins by asking for the last number of a sequence drew none in this transaction: what the server would say is another client's. Now it is an
    /// error.
    pub(super) fn restore_settings(
        &mut self,
        first: Option<&MessagePiece>,
        facts: &mut BackendState,
        to_backend: &mut BytesMut,
    ) {
        let differs = |name: &&str| matches!((self.parameters.get(*name), facts.parameters.get(*name)), (Some(a), Some(b)) if a != b);
        let calls: Vec<String> = RESTORED_SETTINGS
            .into_iter()
            .filter(differs)
            .map(|name| {
                format!(
                    "pg_catalog.set_config('{name}', {}, false)",
                    quote_literal(&self.parameters[name])
                )
            })
            .collect();
        let restores = (!calls.is_empty()).then(|| format!("SELECT {}", calls.join(", ")));
        let forgets = first
            .is_some_and(|first| self.reads_sequence(first))
            .then(|| "DISCARD SEQUENCES".to_owned());
        for order in restores.into_iter().chain(forgets) {
            facts.forget_unnamed();
            message::write_message(to_backend, b'Q', |out| {
                message::write_text(out, order.as_bytes())
            });
            self.queue.push(PostgresExpectedReply::Restored);
        }
    }

    fn reads_sequence(&self, piece: &MessagePiece) -> bool {
        let (MessagePiece::Whole(message) | MessagePiece::Start(message)) = piece else {
            return false;
        };
        match (message[0], &message[HEADER_BYTES..]) {
            (b'Q' | b'P', body) => session_effect::names_sequence_value(body),
            (b'B', body) => {
                let name = split_text(body)
                    .and_then(|(_, rest)| split_text(rest))
                    .map(|(name, _)| name);
                let statement = name.and_then(|name| self.statements.get(name));
                statement
                    .is_some_and(|statement| session_effect::names_sequence_value(&statement.body))
            }
            _ => false,
        }
    }

    /// Passes on what the client says. `facts` are the backend's that it has.
    ///
    /// # Errors
    /// When it is no message of a client's.
    pub(super) fn handle_client(
        &mut self,
        piece: MessagePiece,
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Result<(), PostgresProtocolError> {
        match piece {
            MessagePiece::More(more) => ways.to_backend.extend_from_slice(&more),
            MessagePiece::Start(start) => self.handle_start(&start, facts, ways)?,
            MessagePiece::Whole(message) => self.handle_message(&message, facts, ways)?,
        }
        self.queue.flush_local(facts.status, ways.to_client);
        Ok(())
    }

    fn handle_message(
        &mut self,
        message: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Result<(), PostgresProtocolError> {
        let body = &message[HEADER_BYTES..];
        match message[0] {
            b'Q' => self.handle_query(message, facts, ways),
            b'P' | b'B' | b'D' | b'C' | b'E' => {
                self.in_series = true;
                let malformed = || {
                    PostgresProtocolError::Client(format!(
                        "a malformed message '{}'",
                        message[0] as char
                    ))
                };
                self.handle_series(message, body, facts, ways)
                    .ok_or_else(malformed)?;
            }
            b'S' => {
                self.in_series = false;
                facts.end_series();
                if !self.is_copying {
                    self.queue.push(PostgresExpectedReply::Sync);
                }
                ways.to_backend.extend_from_slice(message);
            }
            b'F' => {
                facts.needs_cleaning = true;
                facts.end_series();
                self.queue.push(PostgresExpectedReply::Query);
                ways.to_backend.extend_from_slice(message);
            }
            b'c' | b'f' => {
                self.is_copying = false;
                ways.to_backend.extend_from_slice(message);
            }
            b'H' | b'd' => ways.to_backend.extend_from_slice(message),
            other => {
                return Err(PostgresProtocolError::Client(format!(
                    "a message of type {other:#x}"
                )));
            }
        }
        Ok(())
    }

    /// A simple query. It ends the statement without a name.
    fn handle_query(
        &mut self,
        message: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) {
        let judgement = self.classify(&message[HEADER_BYTES..]);
        if let Some(name) = self.freed_name(&judgement).filter(|_| facts.status != b'E') {
            let statement = self.statements.remove(&name);
            self.statements.remove(&b""[..]); // that of the backend may be another client's
            let undo = ReplyUndo::Freed((name, statement));
            let mut tag = BytesMut::new();
            message::write_command_tag(&mut tag, "DEALLOCATE");
            self.queue
                .push(PostgresExpectedReply::Local(tag.freeze(), undo));
            return self.queue.push(PostgresExpectedReply::LocalReady);
        }
        self.drop_unnamed(facts);
        self.apply_effect(&judgement, facts);
        facts.end_series();
        self.queue.push(PostgresExpectedReply::Query);
        ways.to_backend.extend_from_slice(message);
    }

    fn drop_unnamed(&mut self, facts: &mut BackendState) {
        self.statements.remove(&b""[..]);
        facts.forget_unnamed();
    }

    /// The beginning of a message that is too long to be read.
    fn handle_start(
        &mut self,
        start: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Result<(), PostgresProtocolError> {
        match start[0] {
            b'd' => {}
            b'Q' | b'F' => {
                self.set_pin("long statement");
                self.drop_unnamed(facts);
                facts.end_series();
                self.queue.push(PostgresExpectedReply::Query);
            }
            b'P' => {
                self.set_pin("long statement");
                self.in_series = true;
                let (name, _) = split_text(&start[HEADER_BYTES..])
                    .ok_or_else(|| PostgresProtocolError::Client("a name without end".into()))?;
                if name.is_empty() {
                    self.drop_unnamed(facts);
                }
                self.queue
                    .push(PostgresExpectedReply::Parse(ReplyUndo::Nothing));
            }
            b'B' => {
                self.in_series = true;
                let bound = self.handle_bind(start, &start[HEADER_BYTES..], facts, ways);
                return bound
                    .ok_or_else(|| PostgresProtocolError::Client("a name without end".into()));
            }
            other => {
                return Err(PostgresProtocolError::Client(format!(
                    "a message of type {other:#x}, longer than any"
                )));
            }
        }
        ways.to_backend.extend_from_slice(start);
        Ok(())
    }

    /// The name that a single `DEALLOCATE` frees, if it is one that is kept here.
    fn freed_name(&self, judgement: &PostgresSessionEffect) -> Option<Bytes> {
        let name = judgement.deallocates.as_deref()?;
        self.statements
            .get_key_value(name)
            .map(|(name, _)| name.clone())
    }

    /// Judges a text; `body` may go on after its 0.
    fn classify(&self, body: &[u8]) -> PostgresSessionEffect {
        if self.pin.is_some() && self.statements.is_empty() {
            return PostgresSessionEffect::default();
        }
        let value = |name| self.parameters.get(name).map(String::as_str);
        let unclear = value("standard_conforming_strings") == Some("off")
            || value("client_encoding")
                .is_some_and(|encoding| UNSAFE_ENCODINGS.contains(&encoding));
        if unclear {
            return PostgresSessionEffect {
                pin: Some("unclear text"),
                ..PostgresSessionEffect::default()
            };
        }
        let text = split_text(body).map_or(body, |(text, _)| text);
        session_effect::classify_text(text, |name| self.parameters.contains_key(name))
    }

    fn apply_effect(&mut self, judgement: &PostgresSessionEffect, facts: &mut BackendState) {
        facts.needs_cleaning |= judgement.needs_cleaning;
        judgement.pin.into_iter().for_each(|why| self.set_pin(why));
    }
}

/// A text as SQL has it, whatever `standard_conforming_strings` is.
fn quote_literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}
