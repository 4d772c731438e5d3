//! State machine between a client and its backends, without socket or clock.
//!
//! The session decides what a client's message means for the backend
//! ([`PostgresSession::handle_client`]),
//! and what a backend's message means for the client ([`PostgresSession::handle_backend`]). It also
//! decides when nothing binds the two ([`PostgresSession::is_free`]).
//!
//! Statements keep the client's names on the client's side only. A backend that lacks a statement
//! gets it before its use, and that reply is hidden from the client. A Close frees a name here, and
//! nothing at the backend. So each message that was sent has its place in a queue of expected
//! replies.

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
    BackendState, PreparedStatement, SERVER_PARAMETERS, STATUS_IDLE, SessionParameters,
    StatementNames,
};
use super::frame::{HEADER_BYTES, MalformedMessage, MessagePiece, split_text};
use super::message;
use super::session_effect::{self, PostgresSessionEffect, RESTORED_SETTINGS};
use reply_queue::{PostgresExpectedReply, ReplyQueue, ReplyUndo};

/// Named statements that one client may have prepared.
const MAX_NAMED_STATEMENTS: usize = 4_096;
/// Bytes of their texts, approximately.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Replies that may be outstanding before more input is processed. The server holds back 8 KB of
/// replies, which are fewer than this.
const MAX_EXPECTED_REPLIES: usize = 16_384;
/// The longest text that is checked for being a `DEALLOCATE`.
const MAX_DEALLOCATE_BYTES: usize = 128;
/// Encodings in which an ASCII byte may be part of another character. A text in them cannot be
/// split into tokens without decoding it.
const UNSAFE_ENCODINGS: [&str; 7] = [
    "BIG5",
    "GB18030",
    "GBK",
    "JOHAB",
    "SHIFT_JIS_2004",
    "SJIS",
    "UHC",
];

/// A violation of the protocol, by its origin.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostgresProtocolError {
    #[error("the client sent {0}")]
    Client(String),
    #[error("the server sent {0}")]
    Server(String),
    #[error("{0}")]
    Malformed(#[from] MalformedMessage),
}

/// Session of one client.
#[derive(Debug)]
pub(super) struct PostgresSession {
    /// Prepared statements by the client's names, including the unnamed one.
    statements: HashMap<Bytes, Rc<PreparedStatement>>,
    /// Upper bound of the bytes of their texts.
    text_bytes: usize,
    /// The parameters that the client has seen.
    pub(super) parameters: SessionParameters,
    queue: ReplyQueue,
    /// Reason why the client keeps its backend.
    pin: Option<&'static str>,
    /// Statements belong to the whole session and are not tracked.
    is_session_mode: bool,
    /// Messages were sent that a Sync has yet to end.
    in_series: bool,
    is_copying: bool,
}

/// Destinations of a session's output, and the statement names.
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

    /// Returns the reason why the client keeps its backend until it leaves.
    pub(super) fn pin(&self) -> Option<&'static str> {
        self.pin
    }

    /// Pins the backend to the client; the first reason counts.
    pub(super) fn set_pin(&mut self, reason: &'static str) {
        self.pin.get_or_insert(reason);
    }

    /// Returns whether nothing is outstanding and no transaction is open: the backend can serve
    /// another client.
    pub(super) fn is_free(&self, backend_state: &BackendState) -> bool {
        self.is_quiet() && backend_state.status == STATUS_IDLE
    }

    /// Returns whether every message has been answered.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && !self.in_series && !self.is_copying
    }

    /// Returns whether so much is outstanding that replies have to come first.
    pub(super) fn is_backlogged(&self) -> bool {
        self.queue.len() >= MAX_EXPECTED_REPLIES
    }

    /// Returns whether the server waits for more input before it ends what is outstanding.
    pub(super) fn awaits_client(&self) -> bool {
        self.in_series || self.is_copying
    }

    /// Returns whether a message needs a backend, for a client that has none.
    pub(super) fn needs_backend(&self, piece: &MessagePiece) -> bool {
        let MessagePiece::Whole(message) = piece else {
            return true;
        };
        match (message[0], &message[HEADER_BYTES..]) {
            // Late ends of a COPY, which the server ignores, too.
            (b'S' | b'H' | b'd' | b'c' | b'f', _) => false,
            // A Close of a known name is answered here: the statement itself stays at the backends.
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

    /// Reports to the client what has changed at the server, as one lasting session would.
    pub(super) fn report_server_parameters(
        &mut self,
        backend_state: &BackendState,
        to_client: &mut BytesMut,
    ) {
        let current = backend_state.initial_parameters.borrow();
        for name in SERVER_PARAMETERS {
            if let (Some(old), Some(new)) = (self.parameters.get_mut(name), current.get(name))
                && old != new
            {
                old.clone_from(new);
                message::write_parameter(to_client, name, new);
            }
        }
    }

    /// Restores the client's parameters at a new backend. `first` is the client's first message for
    /// it. As any simple query, this ends the backend's unnamed statement: another client may have
    /// prepared it with the same text.
    ///
    /// A client that begins with `lastval` or `currval` has drawn no number in this transaction.
    /// The backend's number belongs to another client, so it is discarded, and the server reports
    /// an error.
    pub(super) fn restore_settings(
        &mut self,
        first: Option<&MessagePiece>,
        backend_state: &mut BackendState,
        to_backend: &mut BytesMut,
    ) {
        // Only parameters that both sides report are compared: an unknown one has not been changed.
        let differs = |name: &&str| {
            let values = (
                self.parameters.get(*name),
                backend_state.parameters.get(*name),
            );
            matches!(values, (Some(client), Some(backend)) if client != backend)
        };
        let calls: Vec<String> = RESTORED_SETTINGS
            .into_iter()
            .filter(differs)
            // Qualified, because the client's `search_path` may contain a function of the same
            // name.
            .map(|name| {
                format!(
                    "pg_catalog.set_config('{name}', {}, false)",
                    quote_literal(&self.parameters[name])
                )
            })
            .collect();
        // All parameters in one statement: one reply is hidden instead of seven.
        let restores = (!calls.is_empty()).then(|| format!("SELECT {}", calls.join(", ")));
        let forgets = first
            .is_some_and(|first| self.reads_sequence(first))
            .then(|| "DISCARD SEQUENCES".to_owned());
        for command in restores.into_iter().chain(forgets) {
            backend_state.forget_unnamed();
            message::write_message(to_backend, b'Q', |out| {
                message::write_text(out, command.as_bytes())
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

    /// Handles a message of the client. `backend_state` is its current backend's.
    ///
    /// # Errors
    /// Fails when the message violates the protocol.
    pub(super) fn handle_client(
        &mut self,
        piece: MessagePiece,
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Result<(), PostgresProtocolError> {
        match piece {
            MessagePiece::More(more) => outputs.to_backend.extend_from_slice(&more),
            MessagePiece::Start(start) => self.handle_start(&start, backend_state, outputs)?,
            MessagePiece::Whole(message) => {
                self.handle_message(&message, backend_state, outputs)?
            }
        }
        self.queue
            .flush_local(backend_state.status, outputs.to_client);
        Ok(())
    }

    fn handle_message(
        &mut self,
        message: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Result<(), PostgresProtocolError> {
        let body = &message[HEADER_BYTES..];
        match message[0] {
            b'Q' => self.handle_query(message, backend_state, outputs),
            b'P' | b'B' | b'D' | b'C' | b'E' => {
                self.in_series = true;
                let malformed = || {
                    PostgresProtocolError::Client(format!(
                        "a malformed message '{}'",
                        message[0] as char
                    ))
                };
                self.handle_series(message, body, backend_state, outputs)
                    .ok_or_else(malformed)?;
            }
            b'S' => {
                self.in_series = false;
                backend_state.end_series();
                // While rows are copied in, the server ignores a Sync, so no reply is expected.
                if !self.is_copying {
                    self.queue.push(PostgresExpectedReply::Sync);
                }
                outputs.to_backend.extend_from_slice(message);
            }
            b'F' => {
                // A function call by oid names no function, so its effect is unknown.
                backend_state.needs_cleaning = true;
                backend_state.end_series();
                self.queue.push(PostgresExpectedReply::Query);
                outputs.to_backend.extend_from_slice(message);
            }
            b'c' | b'f' => {
                self.is_copying = false;
                outputs.to_backend.extend_from_slice(message);
            }
            b'H' | b'd' => outputs.to_backend.extend_from_slice(message),
            other => {
                return Err(PostgresProtocolError::Client(format!(
                    "a message of type {other:#x}"
                )));
            }
        }
        Ok(())
    }

    /// Handles a simple query, which ends the unnamed statement.
    fn handle_query(
        &mut self,
        message: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) {
        let effect = self.classify(&message[HEADER_BYTES..]);
        // Answered here only outside a failed transaction: within one the server refuses
        // `DEALLOCATE`.
        if let Some(name) = self
            .freed_name(&effect)
            .filter(|_| backend_state.status != b'E')
        {
            let statement = self.statements.remove(&name);
            self.statements.remove(&b""[..]); // the backend's unnamed statement may be another client's
            let undo = ReplyUndo::Freed((name, statement));
            let mut tag = BytesMut::new();
            message::write_command_tag(&mut tag, "DEALLOCATE");
            self.queue
                .push(PostgresExpectedReply::Local(tag.freeze(), undo));
            return self.queue.push(PostgresExpectedReply::LocalReady);
        }
        self.drop_unnamed(backend_state);
        self.apply_effect(&effect, backend_state);
        backend_state.end_series();
        self.queue.push(PostgresExpectedReply::Query);
        outputs.to_backend.extend_from_slice(message);
    }

    fn drop_unnamed(&mut self, backend_state: &mut BackendState) {
        self.statements.remove(&b""[..]);
        backend_state.forget_unnamed();
    }

    /// Handles the beginning of a message that is too long to be read as a whole.
    fn handle_start(
        &mut self,
        start: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Result<(), PostgresProtocolError> {
        match start[0] {
            b'd' => {}
            b'Q' | b'F' => {
                // An unread text may do anything, so it pins.
                self.set_pin("long statement");
                self.drop_unnamed(backend_state);
                backend_state.end_series();
                self.queue.push(PostgresExpectedReply::Query);
            }
            b'P' => {
                self.set_pin("long statement");
                self.in_series = true;
                let (name, _) = split_text(&start[HEADER_BYTES..])
                    .ok_or_else(|| PostgresProtocolError::Client("a name without end".into()))?;
                if name.is_empty() {
                    self.drop_unnamed(backend_state);
                }
                self.queue
                    .push(PostgresExpectedReply::Parse(ReplyUndo::Nothing));
            }
            b'B' => {
                self.in_series = true;
                let bound = self.handle_bind(start, &start[HEADER_BYTES..], backend_state, outputs);
                return bound
                    .ok_or_else(|| PostgresProtocolError::Client("a name without end".into()));
            }
            other => {
                return Err(PostgresProtocolError::Client(format!(
                    "a long message of type {other:#x}"
                )));
            }
        }
        outputs.to_backend.extend_from_slice(start);
        Ok(())
    }

    /// Returns the name that a single `DEALLOCATE` frees, if this side keeps it.
    fn freed_name(&self, effect: &PostgresSessionEffect) -> Option<Bytes> {
        let name = effect.deallocates.as_deref()?;
        self.statements
            .get_key_value(name)
            .map(|(name, _)| name.clone())
    }

    /// Returns whether the client's settings keep its texts from being split into words.
    fn has_unclear_texts(&self) -> bool {
        let value = |name| self.parameters.get(name).map(String::as_str);
        // With `standard_conforming_strings` off, a backslash escapes quotes, which the lexer does
        // not follow.
        value("standard_conforming_strings") == Some("off")
            || value("client_encoding").is_some_and(|encoding| UNSAFE_ENCODINGS.contains(&encoding))
    }

    /// Classifies a text; `body` may continue after its terminating zero.
    fn classify(&self, body: &[u8]) -> PostgresSessionEffect {
        // A pinned client without statements stays as it is, whatever the text does.
        if self.pin.is_some() && self.statements.is_empty() {
            return PostgresSessionEffect::default();
        }
        if self.has_unclear_texts() {
            return PostgresSessionEffect {
                pin: Some("unclear text"),
                ..PostgresSessionEffect::default()
            };
        }
        let text = split_text(body).map_or(body, |(text, _)| text);
        session_effect::classify_text(text, |name| self.parameters.contains_key(name))
    }

    fn apply_effect(&mut self, effect: &PostgresSessionEffect, backend_state: &mut BackendState) {
        backend_state.needs_cleaning |= effect.needs_cleaning;
        effect
            .pin
            .into_iter()
            .for_each(|reason| self.set_pin(reason));
    }
}

/// Quotes a text for SQL, independent of `standard_conforming_strings`.
fn quote_literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}
