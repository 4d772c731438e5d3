//! Messages of the extended query protocol: series of Parse, Bind, Describe, Execute and Close that
//! a Sync ends.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::backend_state::{
    BackendState, NAME_PREFIX, PreparedStatement, SentParse, StatementNames,
};
use super::super::frame::{HEADER_BYTES, split_text};
use super::super::message;
use super::reply_queue::{PostgresExpectedReply, ReplyUndo};
use super::{MAX_NAMED_STATEMENTS, MAX_TEXT_BYTES, PostgresSession, SessionOutputs};

/// A statement name that is reserved for the node.
struct ReservedName;

impl PostgresSession {
    /// Handles a message of a series. `None`: it is malformed.
    pub(super) fn handle_series(
        &mut self,
        message: &[u8],
        body: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        match message[0] {
            b'P' => self.handle_parse(message, body, backend_state, outputs),
            b'B' => self.handle_bind(message, body, backend_state, outputs),
            b'D' => self.handle_describe(message, body, backend_state, outputs),
            b'C' => self.handle_close(message, body, backend_state, outputs),
            _ => {
                self.queue.push(PostgresExpectedReply::Execute);
                outputs.to_backend.extend_from_slice(message);
                Some(())
            }
        }
    }

    fn handle_parse(
        &mut self,
        message: &[u8],
        body: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (name, rest) = split_text(body)?;
        // Beyond the limit statements stay at the backend under the client's own names, so the
        // client has to stay, too.
        let untracked = self.is_session_mode || (!name.is_empty() && self.is_at_statement_limit());
        if untracked {
            self.set_pin("many statements");
            self.queue
                .push(PostgresExpectedReply::Parse(ReplyUndo::Nothing));
            outputs.to_backend.extend_from_slice(message);
            return Some(());
        }
        let statement = self
            .repeated_statement(name, rest)
            .unwrap_or_else(|| self.create_statement(rest, outputs.names));
        self.apply_effect(&statement.effect, backend_state);
        let name = Bytes::copy_from_slice(name);
        let renamed = Some((
            name.clone(),
            self.statements.insert(name.clone(), statement.clone()),
        ));
        // Sent even if the backend has the statement: a text may mean something else now, and the
        // client expects the current meaning.
        let sent = self.write_parse(&name, &statement, backend_state, outputs.to_backend);
        self.queue
            .push(PostgresExpectedReply::Parse(ReplyUndo::Parsed(
                Some(sent),
                renamed,
            )));
        Some(())
    }

    /// Returns the client's statement `name` if a Parse repeats it: most drivers prepare the same
    /// text for each execution.
    fn repeated_statement(&self, name: &[u8], body: &[u8]) -> Option<Rc<PreparedStatement>> {
        let known = self.statements.get(name)?;
        // The same bytes may mean something else since the settings became unclear.
        (known.body == body && !self.has_unclear_texts()).then(|| Rc::clone(known))
    }

    fn create_statement(&mut self, body: &[u8], names: &StatementNames) -> Rc<PreparedStatement> {
        self.text_bytes += body.len();
        Rc::new(PreparedStatement {
            name: names.name_for(body),
            body: Bytes::copy_from_slice(body),
            effect: self.classify(body),
        })
    }

    /// Returns whether the client has reached the limit of tracked statements.
    fn is_at_statement_limit(&mut self) -> bool {
        if self.statements.len() >= MAX_NAMED_STATEMENTS {
            return true;
        }
        // The counter only grows, so the exact sum is computed when it reaches the limit.
        if self.text_bytes > MAX_TEXT_BYTES {
            self.text_bytes = self
                .statements
                .values()
                .map(|statement| statement.body.len())
                .sum();
        }
        self.text_bytes > MAX_TEXT_BYTES
    }

    /// Writes a Parse, with the statement's name at backends, or unnamed.
    fn write_parse(
        &mut self,
        name: &[u8],
        statement: &Rc<PreparedStatement>,
        backend_state: &mut BackendState,
        to_backend: &mut BytesMut,
    ) -> SentParse {
        // The Close comes first: preparing an existing name is an error.
        let (sent, old) = backend_state.record_parse(statement.slot(name), statement);
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

    /// Makes sure that the backend has the client's statement `name`, and returns it. `Ok(None)`:
    /// the backend decides.
    ///
    /// # Errors
    /// Fails for a name with the node's prefix.
    fn resolve_statement(
        &mut self,
        name: &[u8],
        backend_state: &mut BackendState,
        to_backend: &mut BytesMut,
    ) -> Result<Option<Rc<PreparedStatement>>, ReservedName> {
        let Some(statement) = self.statements.get(name).cloned() else {
            if name.is_empty() && !self.is_session_mode {
                // The backend's unnamed statement may be another client's.
                self.write_hidden_close(b"", to_backend);
                backend_state.forget_unnamed();
            }
            // Otherwise a client could run another client's statement by guessing its name.
            return if name.starts_with(NAME_PREFIX.as_bytes()) {
                Err(ReservedName)
            } else {
                Ok(None)
            };
        };
        self.apply_effect(&statement.effect, backend_state);
        if !backend_state.has_prepared(statement.slot(name), &statement) {
            let sent = self.write_parse(name, &statement, backend_state, to_backend);
            self.queue
                .push(PostgresExpectedReply::HiddenParse(ReplyUndo::Parsed(
                    Some(sent),
                    None,
                )));
        }
        Ok(Some(statement))
    }

    /// Handles a Bind; `message` may be its beginning only.
    pub(super) fn handle_bind(
        &mut self,
        message: &[u8],
        body: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (portal, rest) = split_text(body)?;
        let (name, values) = split_text(rest)?;
        let statement = self
            .resolve_statement(name, backend_state, outputs.to_backend)
            .ok()?;
        match &statement {
            Some(statement) if !name.is_empty() => {
                // The length is that of the whole message, of which only the beginning may be here.
                let whole =
                    u32::from_be_bytes(message[1..HEADER_BYTES].try_into().expect("four bytes"))
                        as usize;
                let length = u32::try_from(whole - name.len() + statement.name.text.len()).ok()?;
                outputs.to_backend.put_u8(b'B');
                outputs.to_backend.put_u32(length);
                message::write_text(outputs.to_backend, portal);
                message::write_text(outputs.to_backend, statement.name.text.as_bytes());
                outputs.to_backend.extend_from_slice(values);
            }
            _ => outputs.to_backend.extend_from_slice(message),
        }
        self.queue.push(PostgresExpectedReply::Bind(statement));
        Some(())
    }

    fn handle_describe(
        &mut self,
        message: &[u8],
        body: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (&kind, rest) = body.split_first()?;
        let (name, _) = split_text(rest)?;
        // A portal ('P') belongs to the transaction, so its name passes unchanged.
        let statement = if kind == b'S' {
            self.resolve_statement(name, backend_state, outputs.to_backend)
                .ok()?
        } else {
            None
        };
        match statement.filter(|_| !name.is_empty()) {
            Some(statement) => message::write_message(outputs.to_backend, b'D', |out| {
                out.put_u8(b'S');
                message::write_text(out, statement.name.text.as_bytes());
            }),
            None => outputs.to_backend.extend_from_slice(message),
        }
        self.queue.push(PostgresExpectedReply::Describe);
        Some(())
    }

    /// Handles a Close. A statement stays prepared at the backend; only the client's name is freed.
    fn handle_close(
        &mut self,
        message: &[u8],
        body: &[u8],
        backend_state: &mut BackendState,
        outputs: &mut SessionOutputs<'_>,
    ) -> Option<()> {
        let (&kind, rest) = body.split_first()?;
        let (name, _) = split_text(rest)?;
        let freed = (kind == b'S')
            .then(|| self.statements.remove_entry(name))
            .flatten();
        let undo = freed.map_or(ReplyUndo::Nothing, |(name, statement)| {
            ReplyUndo::Freed((name, Some(statement)))
        });
        // Answered in turn, when the replies before it have passed.
        if !name.is_empty() && matches!(undo, ReplyUndo::Freed(_)) {
            self.queue.push(PostgresExpectedReply::Local(
                Bytes::from_static(message::CLOSE_COMPLETE),
                undo,
            ));
            return Some(());
        }
        if kind == b'S' && name.is_empty() {
            backend_state.forget_unnamed();
        }
        self.queue.push(PostgresExpectedReply::Close(undo));
        outputs.to_backend.extend_from_slice(message);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use nearpath_types::egress::PoolingMode;

    use super::*;

    const PARSE: &[u8] = b"P\0\0\0\x10\0SELECT 1\0\0\0";

    struct PreparingClient {
        session: PostgresSession,
        backend_state: BackendState,
        names: StatementNames,
    }

    impl PreparingClient {
        fn new() -> Self {
            let encoding = ("client_encoding".to_owned(), "UTF8".to_owned());
            Self {
                session: PostgresSession::new(PoolingMode::Transaction, [encoding].into()),
                backend_state: BackendState::default(),
                names: StatementNames::default(),
            }
        }

        /// Prepares the unnamed statement, and returns it with what the backend gets.
        fn prepare(&mut self) -> (Rc<PreparedStatement>, BytesMut) {
            let (mut to_backend, mut to_client) = (BytesMut::new(), BytesMut::new());
            let mut outputs = SessionOutputs {
                to_backend: &mut to_backend,
                to_client: &mut to_client,
                names: &self.names,
            };
            let body = &PARSE[HEADER_BYTES..];
            self.session
                .handle_series(PARSE, body, &mut self.backend_state, &mut outputs)
                .unwrap();
            (Rc::clone(&self.session.statements[&b""[..]]), to_backend)
        }
    }

    #[test]
    fn a_repeated_statement_is_not_classified_again_and_still_sent() {
        let mut client = PreparingClient::new();
        let ((first, sent), (second, again)) = (client.prepare(), client.prepare());
        assert!(Rc::ptr_eq(&first, &second));
        assert_eq!((&sent[..], &again[..]), (PARSE, PARSE));
    }

    #[test]
    fn the_same_bytes_in_an_unclear_encoding_pin() {
        let mut client = PreparingClient::new();
        client.prepare();
        assert_eq!(client.session.pin(), None);
        let unclear = ("client_encoding".to_owned(), "SJIS".to_owned());
        client.session.parameters.extend([unclear]);
        client.prepare();
        assert_eq!(client.session.pin(), Some("unclear text"));
    }
}
