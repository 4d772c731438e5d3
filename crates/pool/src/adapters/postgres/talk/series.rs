//! The extended query's messages, which come in series: Parse, Bind, Describe, Execute, Close, and a Sync at the end.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::facts::{Facts, Statement};
use super::super::frame::{HEAD, text};
use super::super::words;
use super::queue::{Expect, Undo};
use super::{MOST_NAMES, Talk, Ways};

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
        let untracked = self.whole_session || (self.names.len() >= MOST_NAMES && !name.is_empty());
        if untracked {
            self.stay("many statements");
            self.queue.push(Expect::Parse(Undo::Nothing));
            ways.to_backend.extend_from_slice(message);
            return Some(());
        }
        let statement = ways.statements.of(rest, || self.judge(rest));
        self.apply(&statement.judgement, facts);
        if name.is_empty() {
            (self.unnamed, facts.unnamed) = (Some(statement.clone()), Some(statement));
            self.queue.push(Expect::Parse(Undo::Unnamed));
            ways.to_backend.extend_from_slice(message);
            return Some(());
        }
        let name = Bytes::copy_from_slice(name);
        self.names.insert(name.clone(), statement.clone());
        let undo = Undo::Parsed(Some(name), statement.clone());
        if facts.knows(&statement) {
            self.queue.push(Expect::Say(Bytes::from_static(words::PARSED), undo));
        } else {
            self.prepare(&statement, facts, ways.to_backend);
            self.queue.push(Expect::Parse(undo));
        }
        Some(())
    }

    /// Writes a Parse under the backend's name.
    fn prepare(&mut self, statement: &Rc<Statement>, facts: &mut Facts, to_backend: &mut BytesMut) {
        if let Some(old) = facts.learns(statement) {
            words::message(to_backend, b'C', |out| {
                out.put_u8(b'S');
                words::text(out, old.name.as_bytes());
            });
            self.queue.push(Expect::HiddenClose);
        }
        write_parse(to_backend, &statement.name, statement);
    }

    /// Sees to it that the backend knows what the client calls `name`, and says what it is called there.
    fn known(&mut self, name: &[u8], facts: &mut Facts, to_backend: &mut BytesMut) -> Option<Rc<Statement>> {
        let statement = if name.is_empty() { self.unnamed.clone()? } else { self.names.get(name)?.clone() };
        self.apply(&statement.judgement, facts);
        if name.is_empty() {
            if !facts.unnamed.as_ref().is_some_and(|other| Rc::ptr_eq(other, &statement)) {
                facts.unnamed = Some(statement.clone());
                write_parse(to_backend, "", &statement);
                self.queue.push(Expect::HiddenParse(Undo::Unnamed));
            }
        } else if !facts.knows(&statement) {
            self.prepare(&statement, facts, to_backend);
            self.queue.push(Expect::HiddenParse(Undo::Parsed(None, statement.clone())));
        }
        Some(statement)
    }

    /// `message` may be the beginning only.
    pub(super) fn bind(&mut self, message: &[u8], body: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) -> Option<()> {
        let (portal, rest) = text(body)?;
        let (name, values) = text(rest)?;
        let statement = self.known(name, facts, ways.to_backend);
        match &statement {
            Some(statement) if !name.is_empty() => {
                let whole = u32::from_be_bytes(message[1..HEAD].try_into().expect("four bytes")) as usize;
                let length = u32::try_from(whole - name.len() + statement.name.len()).ok()?;
                ways.to_backend.put_u8(b'B');
                ways.to_backend.put_u32(length);
                words::text(ways.to_backend, portal);
                words::text(ways.to_backend, statement.name.as_bytes());
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
        let statement = (kind == b'S').then(|| self.known(name, facts, ways.to_backend)).flatten();
        match statement.filter(|_| !name.is_empty()) {
            Some(statement) => words::message(ways.to_backend, b'D', |out| {
                out.put_u8(b'S');
                words::text(out, statement.name.as_bytes());
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
        if kind == b'S' && name.is_empty() {
            (self.unnamed, facts.unnamed) = (None, None);
        }
        if let Some((name, statement)) = (kind == b'S').then(|| self.names.remove_entry(name)).flatten() {
            let undo = Undo::Name(name, statement);
            self.queue.push(Expect::Say(Bytes::from_static(words::CLOSED), undo));
        } else {
            self.queue.push(Expect::Close);
            ways.to_backend.extend_from_slice(message);
        }
        Some(())
    }
}

fn write_parse(out: &mut BytesMut, name: &str, statement: &Statement) {
    words::message(out, b'P', |out| {
        words::text(out, name.as_bytes());
        out.extend_from_slice(&statement.body);
    });
}
