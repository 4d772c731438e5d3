//! What a backend says: to whom it goes, and what it answers.

use bytes::BytesMut;

use super::super::backend_state::Facts;
use super::super::frame::{HEAD, Inbox, Piece, text};
use super::super::message;
use super::reply_queue::{Expect, Undo};
use super::{Odd, Talk};

/// Tags of commands that must have pinned already; a text that was cut otherwise than the server did is seen by them.
const PINNING_TAGS: [&[u8]; 5] = [b"LISTEN", b"PREPARE", b"LOAD", b"DO", b"CALL"];

impl Talk {
    /// Passes on what the backend said, as far as it is whole.
    ///
    /// # Errors
    /// When it answers what was not asked: it must not be used again.
    pub(in super::super) fn relay(
        &mut self,
        inbox: &mut Inbox,
        facts: &mut Facts,
        to_client: &mut BytesMut,
    ) -> Result<(), Odd> {
        loop {
            let hidden = matches!(self.queue.first(), Some(Expect::Restored));
            let query = matches!(self.queue.first(), Some(Expect::Query));
            let plain = |tag| matches!(tag, b'D' | b'd' | b't' | b'A' | b'N') || (query && tag == b'T');
            if !hidden && let Some(run) = inbox.run(plain)? {
                to_client.extend_from_slice(&run);
            }
            let Some(piece) = inbox.next()? else { return Ok(()) };
            let shown = match &piece {
                Piece::More(_) => !hidden,
                Piece::Whole(message) | Piece::Start(message) => self.judge_reply(message, facts)?,
            };
            let (Piece::Whole(bytes) | Piece::Start(bytes) | Piece::More(bytes)) = piece;
            if shown {
                to_client.extend_from_slice(&bytes);
            }
            self.queue.settle(facts.status, to_client);
        }
    }

    /// Whether the client hears it.
    fn judge_reply(&mut self, message: &[u8], facts: &mut Facts) -> Result<bool, Odd> {
        let body = &message[HEAD..];
        let hidden = matches!(self.queue.first(), Some(Expect::Restored));
        match message[0] {
            b'S' => {
                self.set(body, hidden, facts).ok_or_else(|| Odd::Server("a malformed ParameterStatus".into()))?;
            }
            b'E' if hidden => return Err(Odd::Server(error_text("the client's settings were refused", body))),
            b'E' => self.failed(body, facts),
            b'Z' => return self.ready(body, facts),
            b'G' | b'W' => {
                self.copying = true;
                self.queue.ignore_syncs();
            }
            b'C' => {
                self.completed(body, facts);
                self.answered(|expect| matches!(expect, Expect::Execute));
            }
            b'I' | b's' => self.answered(|expect| matches!(expect, Expect::Execute)),
            b'T' | b'n' => self.answered(|expect| matches!(expect, Expect::Describe)),
            b'1' => {
                if let Some(Expect::Parse(undo) | Expect::HiddenParse(undo)) = self.queue.first()
                    && let Undo::Parsed(Some(sent), _) = undo
                {
                    facts.is_sure(*sent);
                }
                return self.owed(message[0], |it| matches!(it, Expect::Parse(_) | Expect::HiddenParse(_)));
            }
            b'2' => return self.owed(message[0], |it| matches!(it, Expect::Bind(_))),
            b'3' => return self.owed(message[0], |it| matches!(it, Expect::Close(_) | Expect::HiddenClose)),
            b'D' | b'd' | b't' | b'A' | b'N' | b'V' | b'H' | b'c' => {}
            other => return Err(Odd::Server(format!("a message of type {other:#x}"))),
        }
        Ok(!hidden)
    }

    /// A reply that ends its message if that is the first one, and otherwise is part of a simple query's.
    fn answered(&mut self, ends: impl Fn(&Expect) -> bool) {
        if self.queue.first().is_some_and(ends) {
            self.queue.pop();
        }
    }

    /// A reply that there is for one message only. Whether it is the client's.
    fn owed(&mut self, tag: u8, of: impl Fn(&Expect) -> bool) -> Result<bool, Odd> {
        if !self.queue.first().is_some_and(of) {
            return Err(Odd::Server(format!("'{}' where it was not expected", tag as char)));
        }
        Ok(!matches!(self.queue.pop(), Some(Expect::HiddenParse(_) | Expect::HiddenClose)))
    }

    fn ready(&mut self, body: &[u8], facts: &mut Facts) -> Result<bool, Odd> {
        let (Some(&status), Some(Expect::Sync | Expect::Query | Expect::Restored)) = (body.first(), self.queue.first())
        else {
            return Err(Odd::Server("ReadyForQuery where it was not expected".into()));
        };
        facts.status = status;
        self.copying = false;
        Ok(!matches!(self.queue.pop(), Some(Expect::Restored)))
    }

    /// A setting has changed.
    fn set(&mut self, body: &[u8], hidden: bool, facts: &mut Facts) -> Option<()> {
        let (name, rest) = text(body)?;
        let (value, _) = text(rest)?;
        let (name, value) = (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned());
        if !hidden {
            self.values.insert(name.clone(), value.clone());
        }
        facts.values.insert(name, value);
        Some(())
    }

    /// An ErrorResponse.
    fn failed(&mut self, body: &[u8], facts: &mut Facts) {
        self.copying = false;
        let severity = message::field(body, b'V').or_else(|| message::field(body, b'S'));
        if severity != Some(b"ERROR") {
            facts.status = 0;
        }
        if matches!(self.queue.first(), Some(Expect::Query) | None) {
            return;
        }
        // 0A000: a table has changed, and the plan would give other columns. 26000: it is not prepared there.
        let gone = matches!(message::field(body, b'C'), Some(b"0A000" | b"26000"));
        if let Some(Expect::Bind(Some(statement))) = self.queue.first()
            && gone
        {
            facts.outlives(statement);
        }
        let mut skipped = self.queue.skip();
        if let Some(Expect::Parse(Undo::Parsed(_, Some((name, before))))) = skipped.first_mut()
            && name.is_empty()
        {
            // One that fails ends the one before it, too; one that is skipped does not.
            *before = None;
        }
        skipped.into_iter().rev().for_each(|skipped| self.undo(skipped, facts));
    }

    fn undo(&mut self, skipped: Expect, facts: &mut Facts) {
        let (Expect::Parse(undo) | Expect::HiddenParse(undo) | Expect::Close(undo) | Expect::Say(_, undo)) = skipped
        else {
            return;
        };
        let renamed = match undo {
            Undo::Nothing => return,
            Undo::Freed(renamed) => Some(renamed),
            Undo::Parsed(sent, renamed) => {
                sent.into_iter().for_each(|sent| facts.forgets(sent));
                renamed
            }
        };
        match renamed.filter(|renamed| !self.queue.rebase(renamed)) {
            Some((name, Some(before))) => drop(self.names.insert(name, before)),
            Some((name, None)) => drop(self.names.remove(&name)),
            None => {}
        }
    }

    /// CommandComplete.
    fn completed(&mut self, body: &[u8], facts: &mut Facts) {
        let tag = text(body).map_or(body, |(tag, _)| tag);
        if PINNING_TAGS.contains(&tag) {
            self.stay("unclear text");
        }
        if tag == b"DEALLOCATE ALL" || tag == b"DISCARD ALL" {
            facts.forgets_named();
            self.names.retain(|name, _| name.is_empty());
        }
    }
}

/// What happened, and what the server said to it.
fn error_text(what: &str, body: &[u8]) -> String {
    format!("{what}: {}", String::from_utf8_lossy(message::field(body, b'M').unwrap_or_default()))
}
