//! The extended query's messages, which come in series: Parse, Bind, Describe, Execute, Close, and a Sync at the end.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::backend_state::{BackendState, NAME_PREFIX, PreparedStatement, SentParse};
use super::super::frame::{HEADER_BYTES, split_text};
use super::super::message;
use super::reply_queue::{PostgresExpectedReply, ReplyUndo};
use super::{MAX_NAMED_STATEMENTS, MAX_TEXT_BYTES, PostgresSession, SessionOutputs};

/// A name that clients must not use.
struct ReservedName;

impl PostgresSession {
    /// `NoConnection` for a malformed one.
    pub(super) fn handle_series(
        &mut self,
        message: &[u8],
        body: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        match message[0] {
            b'P' => self.handle_parse(message, body, facts, ways),
            b'B' => self.handle_bind(message, body, facts, ways),
            b'D' => self.handle_describe(message, body, facts, ways),
            b'C' => self.handle_close(message, body, facts, ways),
            _ => {
                self.queue.push(PostgresExpectedReply::Execute);
                ways.to_backend.extend_from_slice(message);
                Some(())
            }
        }
    }

    fn handle_parse(
        &mut self,
        message: &[u8],
        body: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (name, rest) = split_text(body)?;
        let untracked = self.is_session_mode || (!name.is_empty() && self.is_at_statement_limit());
        if untracked {
            self.set_pin("many statements");
            self.queue
                .push(PostgresExpectedReply::Parse(ReplyUndo::Nothing));
            ways.to_backend.extend_from_slice(message);
            return Some(());
        }
        let (body, judgement) = (Bytes::copy_from_slice(rest), self.classify(rest));
        let statement = Rc::new(PreparedStatement {
            name: ways.names.name_for(rest),
            body,
            effect: judgement,
        });
        self.apply_effect(&statement.effect, facts);
        self.text_bytes += rest.len();
        let name = Bytes::copy_from_slice(name);
        let renamed = Some((
            name.clone(),
            self.statements.insert(name.clone(), statement.clone()),
        ));
        // Also where the backend knows it: what a text means may have changed, and this client is to hear what it means now.
        let sent = self.write_parse(&name, &statement, facts, ways.to_backend);
        self.queue
            .push(PostgresExpectedReply::Parse(ReplyUndo::Parsed(
                Some(sent),
                renamed,
            )));
        Some(())
    }

    /// Whether the client has as many statements as are kept for one.
    fn is_at_statement_limit(&mut self) -> bool {
        if self.statements.len() >= MAX_NAMED_STATEMENTS {
            return true;
        }
        if self.text_bytes > MAX_TEXT_BYTES {
            self.text_bytes = self
                .statements
                .values()
                .map(|statement| statement.body.len())
                .sum();
        }
        self.text_bytes > MAX_TEXT_BYTES
    }

    /// Writes a Parse, under the name that the statement has at backends, or none.
    fn write_parse(
        &mut self,
        name: &[u8],
        statement: &Rc<PreparedStatement>,
        facts: &mut BackendState,
        to_backend: &mut BytesMut,
    ) -> SentParse {
        let (sent, old) = facts.record_parse(statement.slot(name), statement);
        if let Some(old) = old {
            self.write_hidden_close(old.text.as_bytes(), to_backend);
        }
        message::write_message(to_backend, b'P', |out| {
            message::write_text(
                out,
                if name.is_empty() {
                    b""
                } else {
                    statement.name.text.as_bytes()
                },
            );
            out.extend_from_slice(&statement.body);
        });
        sent
    }

    fn write_hidden_close(&mut self, name: &[u8], to_backend: &mut BytesMut) {
        message::write_message(to_backend, b'C', |out| {
            out.put_u8(b'S');
            message::write_text(out, name);
        });
        self.queue.push(PostgresExpectedReply::HiddenClose);
    }

    /// Sees to it that the backend knows what the client calls `name`, and says what that is: `Ok(None)` where the backend is to find out.
    ///
    /// # Errors
    /// When it is a name that only the node gives.
    fn resolve_statement(
        &mut self,
        name: &[u8],
        facts: &mut BackendState,
        to_backend: &mut BytesMut,
    ) -> Result<Option<Rc<PreparedStatement>>, ReservedName> {
        let Some(statement) = self.statements.get(name).cloned() else {
            if name.is_empty() && !self.is_session_mode {
                // What is there may be another client's.
                self.write_hidden_close(b"", to_backend);
                facts.forget_unnamed();
            }
            return if name.starts_with(NAME_PREFIX.as_bytes()) {
                Err(ReservedName)
            } else {
                Ok(None)
            };
        };
        self.apply_effect(&statement.effect, facts);
        if !facts.has_prepared(statement.slot(name), &statement) {
            let sent = self.write_parse(name, &statement, facts, to_backend);
            self.queue
                .push(PostgresExpectedReply::HiddenParse(ReplyUndo::Parsed(
                    Some(sent),
                    None,
                )));
        }
        Ok(Some(statement))
    }

    /// `message` may be the beginning only.
    pub(super) fn handle_bind(
        &mut self,
        message: &[u8],
        body: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (portal, rest) = split_text(body)?;
        let (name, values) = split_text(rest)?;
        let statement = self.resolve_statement(name, facts, ways.to_backend).ok()?;
        match &statement {
            Some(statement) if !name.is_empty() => {
                let whole =
                    u32::from_be_bytes(message[1..HEADER_BYTES].try_into().expect("four bytes"))
                        as usize;
                let length = u32::try_from(whole - name.len() + statement.name.text.len()).ok()?;
                ways.to_backend.put_u8(b'B');
                ways.to_backend.put_u32(length);
                message::write_text(ways.to_backend, portal);
                message::write_text(ways.to_backend, statement.name.text.as_bytes());
                ways.to_backend.extend_from_slice(values);
            }
            _ => ways.to_backend.extend_from_slice(message),
        }
        self.queue.push(PostgresExpectedReply::Bind(statement));
        Some(())
    }

    fn handle_describe(
        &mut self,
        message: &[u8],
        body: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (&kind, rest) = body.split_first()?;
        let (name, _) = split_text(rest)?;
        let statement = if kind == b'S' {
            self.resolve_statement(name, facts, ways.to_backend).ok()?
        } else {
            None
        };
        match statement.filter(|_| !name.is_empty()) {
            Some(statement) => message::write_message(ways.to_backend, b'D', |out| {
                out.put_u8(b'S');
                message::write_text(out, statement.name.text.as_bytes());
            }),
            None => ways.to_backend.extend_from_slice(message),
        }
        self.queue.push(PostgresExpectedReply::Describe);
        Some(())
    }

    /// A statement stays prepared at the backend: only the client's name is freed.
    fn handle_close(
        &mut self,
        message: &[u8],
        body: &[u8],
        facts: &mut BackendState,
        ways: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (&kind, rest) = body.split_first()?;
        let (name, _) = split_text(rest)?;
        let freed = (kind == b'S')
            .then(|| self.statements.remove_entry(name))
            .flatten();
        let undo = freed.map_or(ReplyUndo::Nothing, |(name, statement)| {
            ReplyUndo::Freed((name, Some(statement)))
        });
        if !name.is_empty() && matches!(undo, ReplyUndo::Freed(_)) {
            self.queue.push(PostgresExpectedReply::Local(
                Bytes::from_static(message::CLOSE_COMPLETE),
                undo,
            ));
            return Some(());
        }
        if kind == b'S' && name.is_empty() {
            facts.forget_unnamed();
        }
        self.queue.push(PostgresExpectedReply::Close(undo));
        ways.to_backend.extend_from_slice(message);
        Some(())
    }
}
