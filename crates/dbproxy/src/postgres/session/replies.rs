//! What a backend says: to whom it goes, and what it answers.

use bytes::BytesMut;

use super::super::backend_state::BackendState;
use super::super::frame::{HEADER_BYTES, MessagePiece, PostgresFramer, split_text};
use super::super::message;
use super::reply_queue::{PostgresExpectedReply, ReplyUndo};
use super::{PostgresProtocolError, PostgresSession};

/// Tags of commands that must have pinned already; a text that was cut otherwise than the server did is seen by them.
const PINNING_TAGS: [&[u8]; 5] = [b"LISTEN", b"PREPARE", b"LOAD", b"DO", b"CALL"];

impl PostgresSession {
    /// Passes on what the backend said, as far as it is whole.
    ///
    /// # Errors
    /// When it answers what was not asked: it must not be used again.
    pub(in super::super) fn handle_backend(
        &mut self,
        inbox: &mut PostgresFramer,
        facts: &mut BackendState,
        to_client: &mut BytesMut,
    ) -> Result<(), PostgresProtocolError> {
        loop {
            let hidden = matches!(self.queue.first(), Some(PostgresExpectedReply::Restored));
            let query = matches!(self.queue.first(), Some(PostgresExpectedReply::Query));
            let plain =
                |tag| matches!(tag, b'D' | b'd' | b't' | b'A' | b'N') || (query && tag == b'T');
            if !hidden && let Some(run) = inbox.take_run(plain)? {
                to_client.extend_from_slice(&run);
            }
            let Some(piece) = inbox.next_piece()? else {
                return Ok(());
            };
            let shown = match &piece {
                MessagePiece::More(_) => !hidden,
                MessagePiece::Whole(message) | MessagePiece::Start(message) => {
                    self.handle_reply(message, facts)?
                }
            };
            let (MessagePiece::Whole(bytes)
            | MessagePiece::Start(bytes)
            | MessagePiece::More(bytes)) = piece;
            if shown {
                to_client.extend_from_slice(&bytes);
            }
            self.queue.flush_local(facts.status, to_client);
        }
    }

    /// Whether the client hears it.
    fn handle_reply(
        &mut self,
        message: &[u8],
        facts: &mut BackendState,
    ) -> Result<bool, PostgresProtocolError> {
        let body = &message[HEADER_BYTES..];
        let hidden = matches!(self.queue.first(), Some(PostgresExpectedReply::Restored));
        match message[0] {
            b'S' => {
                self.handle_parameter(body, hidden, facts).ok_or_else(|| {
                    PostgresProtocolError::Server("a malformed ParameterStatus".into())
                })?;
            }
            b'E' if hidden => {
                return Err(PostgresProtocolError::Server(error_text(
                    "the client's settings were refused",
                    body,
                )));
            }
            b'E' => self.handle_error(body, facts),
            b'Z' => return self.handle_ready(body, facts),
            b'G' | b'W' => {
                self.is_copying = true;
                self.queue.ignore_syncs();
            }
            b'C' => {
                self.handle_complete(body, facts);
                self.complete_if(|expect| matches!(expect, PostgresExpectedReply::Execute));
            }
            b'I' | b's' => {
                self.complete_if(|expect| matches!(expect, PostgresExpectedReply::Execute))
            }
            b'T' | b'n' => {
                self.complete_if(|expect| matches!(expect, PostgresExpectedReply::Describe))
            }
            b'1' => {
                if let Some(
                    PostgresExpectedReply::Parse(undo) | PostgresExpectedReply::HiddenParse(undo),
                ) = self.queue.first()
                    && let ReplyUndo::Parsed(Some(sent), _) = undo
                {
                    facts.confirm_parse(*sent);
                }
                return self.complete_expected(message[0], |it| {
                    matches!(
                        it,
                        PostgresExpectedReply::Parse(_) | PostgresExpectedReply::HiddenParse(_)
                    )
                });
            }
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

    /// A reply that ends its message if that is the first one, and otherwise is part of a simple query's.
    fn complete_if(&mut self, ends: impl Fn(&PostgresExpectedReply) -> bool) {
        if self.queue.first().is_some_and(ends) {
            self.queue.pop();
        }
    }

    /// A reply that there is for one message only. Whether it is the client's.
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
        facts: &mut BackendState,
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
        facts.status = status;
        self.is_copying = false;
        Ok(!matches!(
            self.queue.pop(),
            Some(PostgresExpectedReply::Restored)
        ))
    }

    /// A setting has changed.
    fn handle_parameter(
        &mut self,
        body: &[u8],
        hidden: bool,
        facts: &mut BackendState,
    ) -> Option<()> {
        let (name, rest) = split_text(body)?;
        let (value, _) = split_text(rest)?;
        let (name, value) = (
            String::from_utf8_lossy(name).into_owned(),
            String::from_utf8_lossy(value).into_owned(),
        );
        if !hidden {
            self.parameters.insert(name.clone(), value.clone());
        }
        facts.parameters.insert(name, value);
        Some(())
    }

    /// An ErrorResponse.
    fn handle_error(&mut self, body: &[u8], facts: &mut BackendState) {
        self.is_copying = false;
        let severity = message::find_field(body, b'V').or_else(|| message::find_field(body, b'S'));
        if severity != Some(b"ERROR") {
            facts.status = 0;
        }
        if matches!(
            self.queue.first(),
            Some(PostgresExpectedReply::Query) | None
        ) {
            return;
        }
        // 0A000: a table has changed, and the plan would give other columns. 26000: it is not prepared there.
        let gone = matches!(message::find_field(body, b'C'), Some(b"0A000" | b"26000"));
        if let Some(PostgresExpectedReply::Bind(Some(statement))) = self.queue.first()
            && gone
        {
            facts.doubt_statement(statement);
        }
        let mut skipped = self.queue.skip_to_sync();
        if let Some(PostgresExpectedReply::Parse(ReplyUndo::Parsed(_, Some((name, before))))) =
            skipped.first_mut()
            && name.is_empty()
        {
            // One that fails ends the one before it, too; one that is skipped does not.
            *before = None;
        }
        skipped
            .into_iter()
            .rev()
            .for_each(|skipped| self.undo_skipped(skipped, facts));
    }

    fn undo_skipped(&mut self, skipped: PostgresExpectedReply, facts: &mut BackendState) {
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
                sent.into_iter().for_each(|sent| facts.doubt_parse(sent));
                renamed
            }
        };
        match renamed.filter(|renamed| !self.queue.rebase_name(renamed)) {
            Some((name, Some(before))) => drop(self.statements.insert(name, before)),
            Some((name, None)) => drop(self.statements.remove(&name)),
            None => {}
        }
    }

    /// CommandComplete.
    fn handle_complete(&mut self, body: &[u8], facts: &mut BackendState) {
        let tag = split_text(body).map_or(body, |(tag, _)| tag);
        if PINNING_TAGS.contains(&tag) {
            self.set_pin("unclear text");
        }
        if tag == b"DEALLOCATE ALL" || tag == b"DISCARD ALL" {
            facts.forget_named();
            self.statements.retain(|name, _| name.is_empty());
        }
    }
}

/// What happened, and what the server said to it.
fn error_text(what: &str, body: &[u8]) -> String {
    format!(
        "{what}: {}",
        String::from_utf8_lossy(message::find_field(body, b'M').unwrap_or_default())
    )
}
