//! Messages of a backend: their receiver, and the client's message that they answer.

use bytes::BytesMut;

use super::super::backend_state::{BackendState, SERVER_PARAMETERS};
use super::super::frame::{HEADER_BYTES, MessagePiece, PostgresFramer, split_text};
use super::super::message;
use super::reply_queue::{PostgresExpectedReply, ReplyUndo};
use super::{PostgresProtocolError, PostgresSession};

/// Command tags of statements that must have pinned already. They reveal a text that the server
/// read differently from the lexer.
const PINNING_TAGS: [&[u8]; 5] = [b"LISTEN", b"PREPARE", b"LOAD", b"DO", b"CALL"];

impl PostgresSession {
    /// Handles all complete messages of the backend.
    ///
    /// # Errors
    /// Fails when a message answers none that was sent. The backend must not be used again.
    pub(in super::super) fn handle_backend(
        &mut self,
        inbox: &mut PostgresFramer,
        backend_state: &mut BackendState,
        to_client: &mut BytesMut,
    ) -> Result<(), PostgresProtocolError> {
        loop {
            let hidden = matches!(self.queue.first(), Some(PostgresExpectedReply::Restored));
            let query = matches!(self.queue.first(), Some(PostgresExpectedReply::Query));
            // Rows, copy data, parameter descriptions, notifications and notices answer nothing by
            // themselves.
            let plain =
                |tag| matches!(tag, b'D' | b'd' | b't' | b'A' | b'N') || (query && tag == b'T');
            // Hidden replies are taken one by one, because none of their bytes may reach the
            // client.
            if !hidden && let Some(run) = inbox.take_run(plain)? {
                to_client.extend_from_slice(&run);
            }
            let Some(piece) = inbox.next_piece()? else {
                return Ok(());
            };
            let shown = match &piece {
                MessagePiece::More(_) => !hidden,
                MessagePiece::Whole(message) | MessagePiece::Start(message) => {
                    self.handle_reply(message, backend_state)?
                }
            };
            let (MessagePiece::Whole(bytes)
            | MessagePiece::Start(bytes)
            | MessagePiece::More(bytes)) = piece;
            if shown {
                to_client.extend_from_slice(&bytes);
            }
            self.queue.flush_local(backend_state.status, to_client);
        }
    }

    /// Handles a reply. Returns whether the client gets it.
    fn handle_reply(
        &mut self,
        message: &[u8],
        backend_state: &mut BackendState,
    ) -> Result<bool, PostgresProtocolError> {
        let body = &message[HEADER_BYTES..];
        let hidden = matches!(self.queue.first(), Some(PostgresExpectedReply::Restored));
        match message[0] {
            b'S' => {
                self.handle_parameter(body, hidden, backend_state)
                    .ok_or_else(|| {
                        PostgresProtocolError::Server("a malformed ParameterStatus".into())
                    })?;
            }
            // The client would run with other settings than it knows of, so the session cannot go
            // on.
            b'E' if hidden => {
                return Err(PostgresProtocolError::Server(error_text(
                    "an error for the client's restored settings",
                    body,
                )));
            }
            b'E' => self.handle_error(body, backend_state),
            b'Z' => return self.handle_ready(body, backend_state),
            b'G' | b'W' => {
                // Copy mode: the server skips Sync messages until it ends.
                self.is_copying = true;
                self.queue.ignore_syncs();
            }
            b'C' => {
                self.handle_complete(body, backend_state);
                self.complete_if(|expect| matches!(expect, PostgresExpectedReply::Execute));
            }
            b'I' | b's' => {
                self.complete_if(|expect| matches!(expect, PostgresExpectedReply::Execute))
            }
            b'T' | b'n' => {
                self.complete_if(|expect| matches!(expect, PostgresExpectedReply::Describe))
            }
            b'1' => return self.handle_parse_complete(backend_state),
            b'2' => {
                return self.complete_expected(message[0], |it| {
                    matches!(it, PostgresExpectedReply::Bind(_))
                });
            }
            b'3' => {
                return self.complete_expected(message[0], |it| {
                    matches!(
                        it,
                        PostgresExpectedReply::Close(_) | PostgresExpectedReply::HiddenClose
                    )
                });
            }
            b'D' | b'd' | b't' | b'A' | b'N' | b'V' | b'H' | b'c' => {}
            other => {
                return Err(PostgresProtocolError::Server(format!(
                    "a message of type {other:#x}"
                )));
            }
        }
        Ok(!hidden)
    }

    /// Handles a ParseComplete. Returns whether the client gets it.
    fn handle_parse_complete(
        &mut self,
        backend_state: &mut BackendState,
    ) -> Result<bool, PostgresProtocolError> {
        if let Some(PostgresExpectedReply::Parse(undo) | PostgresExpectedReply::HiddenParse(undo)) =
            self.queue.first()
            && let ReplyUndo::Parsed(Some(sent), _) = undo
        {
            backend_state.confirm_parse(*sent);
        }
        self.complete_expected(b'1', |it| {
            matches!(
                it,
                PostgresExpectedReply::Parse(_) | PostgresExpectedReply::HiddenParse(_)
            )
        })
    }

    /// Completes the first expected reply if the predicate holds; otherwise the reply is part of a
    /// simple query's.
    fn complete_if(&mut self, ends: impl Fn(&PostgresExpectedReply) -> bool) {
        if self.queue.first().is_some_and(ends) {
            self.queue.pop();
        }
    }

    /// Completes an expected reply that only one kind of message has. Returns whether the client
    /// gets it.
    fn complete_expected(
        &mut self,
        tag: u8,
        of: impl Fn(&PostgresExpectedReply) -> bool,
    ) -> Result<bool, PostgresProtocolError> {
        if !self.queue.first().is_some_and(of) {
            return Err(PostgresProtocolError::Server(format!(
                "'{}' where it was not expected",
                tag as char
            )));
        }
        Ok(!matches!(
            self.queue.pop(),
            Some(PostgresExpectedReply::HiddenParse(_) | PostgresExpectedReply::HiddenClose)
        ))
    }

    fn handle_ready(
        &mut self,
        body: &[u8],
        backend_state: &mut BackendState,
    ) -> Result<bool, PostgresProtocolError> {
        let (
            Some(&status),
            Some(
                PostgresExpectedReply::Sync
                | PostgresExpectedReply::Query
                | PostgresExpectedReply::Restored,
            ),
        ) = (body.first(), self.queue.first())
        else {
            return Err(PostgresProtocolError::Server(
                "ReadyForQuery where it was not expected".into(),
            ));
        };
        backend_state.status = status;
        self.is_copying = false;
        Ok(!matches!(
            self.queue.pop(),
            Some(PostgresExpectedReply::Restored)
        ))
    }

    /// Handles a ParameterStatus.
    fn handle_parameter(
        &mut self,
        body: &[u8],
        hidden: bool,
        backend_state: &mut BackendState,
    ) -> Option<()> {
        let (name, value) = message::parse_parameter(body)?;
        // A hidden one restores what the client knows already.
        if !hidden {
            self.parameters.insert(name.clone(), value.clone());
        }
        if SERVER_PARAMETERS.contains(&name.as_str()) {
            backend_state.set_initial_parameter(name, value);
        } else {
            backend_state.parameters.insert(name, value);
        }
        Some(())
    }

    /// Handles an ErrorResponse.
    fn handle_error(&mut self, body: &[u8], backend_state: &mut BackendState) {
        self.is_copying = false;
        let severity = message::find_field(body, b'V').or_else(|| message::find_field(body, b'S'));
        // FATAL and PANIC end the session; no ReadyForQuery follows.
        if severity != Some(b"ERROR") {
            backend_state.status = 0;
        }
        // A simple query ends with its own ReadyForQuery, so nothing is skipped.
        if matches!(
            self.queue.first(),
            Some(PostgresExpectedReply::Query) | None
        ) {
            return;
        }
        // SQLSTATE 0A000: a table has changed, and the plan would return other columns. 26000: the
        // statement is not prepared there.
        let gone = matches!(message::find_field(body, b'C'), Some(b"0A000" | b"26000"));
        if let Some(PostgresExpectedReply::Bind(Some(statement))) = self.queue.first()
            && gone
        {
            backend_state.doubt_statement(statement);
        }
        let mut skipped = self.queue.skip_to_sync();
        if let Some(PostgresExpectedReply::Parse(ReplyUndo::Parsed(_, Some((name, before))))) =
            skipped.first_mut()
            && name.is_empty()
        {
            // A failed Parse also ends the previous unnamed statement; a skipped one does not.
            *before = None;
        }
        // In reverse, so that the oldest meaning of a name is restored last.
        skipped
            .into_iter()
            .rev()
            .for_each(|skipped| self.undo_skipped(skipped, backend_state));
    }

    fn undo_skipped(&mut self, skipped: PostgresExpectedReply, backend_state: &mut BackendState) {
        // Skipped messages never ran at the server, so what they changed on this side is undone.
        let (PostgresExpectedReply::Parse(undo)
        | PostgresExpectedReply::HiddenParse(undo)
        | PostgresExpectedReply::Close(undo)
        | PostgresExpectedReply::Local(_, undo)) = skipped
        else {
            return;
        };
        let renamed = match undo {
            ReplyUndo::Nothing => return,
            ReplyUndo::Freed(renamed) => Some(renamed),
            ReplyUndo::Parsed(sent, renamed) => {
                sent.into_iter()
                    .for_each(|sent| backend_state.doubt_parse(sent));
                renamed
            }
        };
        match renamed.filter(|renamed| !self.queue.rebase_name(renamed)) {
            Some((name, Some(before))) => drop(self.statements.insert(name, before)),
            Some((name, None)) => drop(self.statements.remove(&name)),
            None => {}
        }
    }

    /// Handles a CommandComplete.
    fn handle_complete(&mut self, body: &[u8], backend_state: &mut BackendState) {
        let tag = split_text(body).map_or(body, |(tag, _)| tag);
        if PINNING_TAGS.contains(&tag) {
            self.set_pin("unclear text");
        }
        // The server has dropped all named statements, so tracking them would promise what is gone.
        if tag == b"DEALLOCATE ALL" || tag == b"DISCARD ALL" {
            backend_state.forget_named();
            self.statements.retain(|name, _| name.is_empty());
        }
    }
}

/// Returns what happened, with the server's text.
fn error_text(what: &str, body: &[u8]) -> String {
    format!(
        "{what}: {}",
        String::from_utf8_lossy(message::find_field(body, b'M').unwrap_or_default())
    )
}
