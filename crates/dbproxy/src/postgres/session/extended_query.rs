//! The extended query's messages, which come in series: Parse, Bind, Describe, Execute, Close, and a Sync at the end.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::backend_state::{Facts, PREFIX, Sent, Statement};
use super::super::frame::{HEAD, text};
use super::super::message;
use super::reply_queue::{Expect, Undo};
use super::{MOST_NAMES, MOST_TEXT, Talk, Ways};

/// A name that clients must not use.
struct NotYours;

impl Talk {
    /// `None` for a malformed one.
    pub(super) fn hear_series(
        &mut self,
        message: &[u8],
        body: &[u8],
        facts: &mut Facts,
        ways: &mut Ways<'_>,
    ) -> Option<()> {
        match message[0] {
            b'P' => self.parse(message, body, facts, ways),
            b'B' => self.bind(message, body, facts, ways),
            b'D' => self.describe(message, body, facts, ways),
            b'C' => self.close(message, body, facts, ways),
            _ => {
                self.queue.push(Expect::Execute);
                ways.to_backend.extend_from_slice(message);
                Some(())
            }
        }
    }

    fn parse(&mut self, message: &[u8], body: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) -> Option<()> {
        let (name, rest) = text(body)?;
        let untracked = self.whole_session || (!name.is_empty() && self.is_full_of_names());
        if untracked {
            self.stay("many statements");
            self.queue.push(Expect::Parse(Undo::Nothing));
            ways.to_backend.extend_from_slice(message);
            return Some(());
        }
        let (body, judgement) = (Bytes::copy_from_slice(rest), self.judge(rest));
        let statement = Rc::new(Statement { name: ways.names.of(rest), body, judgement });
        self.apply(&statement.judgement, facts);
        self.text_kept += rest.len();
        let name = Bytes::copy_from_slice(name);
        let renamed = Some((name.clone(), self.names.insert(name.clone(), statement.clone())));
        // Also where the backend knows it: what a text means may have changed, and this client is to hear what it means now.
        let sent = self.prepare(&name, &statement, facts, ways.to_backend);
        self.queue.push(Expect::Parse(Undo::Parsed(Some(sent), renamed)));
        Some(())
    }

    /// Whether the client has as many statements as are kept for one.
    fn is_full_of_names(&mut self) -> bool {
        if self.names.len() >= MOST_NAMES {
            return true;
        }
        if self.text_kept > MOST_TEXT {
            self.text_kept = self.names.values().map(|statement| statement.body.len()).sum();
        }
        self.text_kept > MOST_TEXT
    }

    /// Writes a Parse, under the name that the statement has at backends, or none.
    fn prepare(
        &mut self,
        name: &[u8],
        statement: &Rc<Statement>,
        facts: &mut Facts,
        to_backend: &mut BytesMut,
    ) -> Sent {
        let (sent, old) = facts.learns(statement.slot(name), statement);
        if let Some(old) = old {
            self.close_hidden(old.text.as_bytes(), to_backend);
        }
        message::message(to_backend, b'P', |out| {
            message::text(out, if name.is_empty() { b"" } else { statement.name.text.as_bytes() });
            out.extend_from_slice(&statement.body);
        });
        sent
    }

    fn close_hidden(&mut self, name: &[u8], to_backend: &mut BytesMut) {
        message::message(to_backend, b'C', |out| {
            out.put_u8(b'S');
            message::text(out, name);
        });
        self.queue.push(Expect::HiddenClose);
    }

    /// Sees to it that the backend knows what the client calls `name`, and says what that is: `Ok(None)` where the backend is to find out.
    ///
    /// # Errors
    /// When it is a name that only the node gives.
    fn known(
        &mut self,
        name: &[u8],
        facts: &mut Facts,
        to_backend: &mut BytesMut,
    ) -> Result<Option<Rc<Statement>>, NotYours> {
        let Some(statement) = self.names.get(name).cloned() else {
            if name.is_empty() && !self.whole_session {
                // What is there may be another client's.
                self.close_hidden(b"", to_backend);
                facts.forgets_unnamed();
            }
            return if name.starts_with(PREFIX.as_bytes()) { Err(NotYours) } else { Ok(None) };
        };
        self.apply(&statement.judgement, facts);
        if !facts.knows(statement.slot(name), &statement) {
            let sent = self.prepare(name, &statement, facts, to_backend);
            self.queue.push(Expect::HiddenParse(Undo::Parsed(Some(sent), None)));
        }
        Ok(Some(statement))
    }

    /// `message` may be the beginning only.
    pub(super) fn bind(&mut self, message: &[u8], body: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) -> Option<()> {
        let (portal, rest) = text(body)?;
        let (name, values) = text(rest)?;
        let statement = self.known(name, facts, ways.to_backend).ok()?;
        match &statement {
            Some(statement) if !name.is_empty() => {
                let whole = u32::from_be_bytes(message[1..HEAD].try_into().expect("four bytes")) as usize;
                let length = u32::try_from(whole - name.len() + statement.name.text.len()).ok()?;
                ways.to_backend.put_u8(b'B');
                ways.to_backend.put_u32(length);
                message::text(ways.to_backend, portal);
                message::text(ways.to_backend, statement.name.text.as_bytes());
                ways.to_backend.extend_from_slice(values);
            }
            _ => ways.to_backend.extend_from_slice(message),
        }
        self.queue.push(Expect::Bind(statement));
        Some(())
    }

    fn describe(&mut self, message: &[u8], body: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) -> Option<()> {
        let (&kind, rest) = body.split_first()?;
        let (name, _) = text(rest)?;
        let statement = if kind == b'S' { self.known(name, facts, ways.to_backend).ok()? } else { None };
        match statement.filter(|_| !name.is_empty()) {
            Some(statement) => message::message(ways.to_backend, b'D', |out| {
                out.put_u8(b'S');
                message::text(out, statement.name.text.as_bytes());
            }),
            None => ways.to_backend.extend_from_slice(message),
        }
        self.queue.push(Expect::Describe);
        Some(())
    }

    /// A statement stays prepared at the backend: only the client's name is freed.
    fn close(&mut self, message: &[u8], body: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) -> Option<()> {
        let (&kind, rest) = body.split_first()?;
        let (name, _) = text(rest)?;
        let freed = (kind == b'S').then(|| self.names.remove_entry(name)).flatten();
        let undo = freed.map_or(Undo::Nothing, |(name, statement)| Undo::Freed((name, Some(statement))));
        if !name.is_empty() && matches!(undo, Undo::Freed(_)) {
            self.queue.push(Expect::Say(Bytes::from_static(message::CLOSED), undo));
            return Some(());
        }
        if kind == b'S' && name.is_empty() {
            facts.forgets_unnamed();
        }
        self.queue.push(Expect::Close(undo));
        ways.to_backend.extend_from_slice(message);
        Some(())
    }
}
