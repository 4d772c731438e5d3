//! What is answered before the server has: values that are kept, and writes whose answer is known.

use std::io;
use std::time::Instant;

use nearpath_types::egress::Writes;

use super::cache::{Asked, LONGEST};
use super::command_effect::{Effect, Read, effect, is_constant};
use super::frame::Value;
use super::relay::Relay;
use super::session_effect::Words;
use nearpath_connpool::counters::Ledger;

/// What a reply is waited for, beside being passed on.
pub(super) struct Note {
    effect: Effect,
    /// The database, if it is known.
    db: Option<u32>,
    /// It may be kept.
    read: Option<Asked>,
    /// The client has had its answer.
    early: bool,
}

/// Replies that are waited for, and what is to be done with some of them.
#[derive(Default)]
pub(super) struct Notes {
    /// Commands that were sent, and replies that have come.
    sent: u64,
    come: u64,
    /// Of those outstanding, the ones that the client does not wait for.
    early: u64,
    notes: std::collections::VecDeque<(u64, Note)>,
}

impl Notes {
    /// Whether the client waits for no reply.
    fn is_quiet(&self) -> bool {
        self.sent - self.come == self.early
    }

    /// Replies outstanding that the client does not wait for.
    pub(super) fn early(&self) -> u64 {
        self.early
    }

    /// A command goes out.
    pub(super) fn sent(&mut self, note: Option<Note>) {
        if let Some(note) = note {
            self.early += u64::from(note.early);
            self.notes.push_back((self.sent, note));
        }
        self.sent += 1;
    }

    fn next(&self) -> Option<&Note> {
        self.notes.front().filter(|(at, _)| *at == self.come).map(|(_, note)| note)
    }

    /// Whether the next reply is not for the client.
    pub(super) fn next_is_early(&self) -> bool {
        self.next().is_some_and(|note| note.early)
    }

    /// Whether the next reply may be kept.
    pub(super) fn next_is_read(&self) -> bool {
        self.next().is_some_and(|note| note.read.is_some())
    }

    /// A reply has come.
    pub(super) fn come(&mut self) -> Option<Note> {
        let here = self.next().is_some();
        self.come += 1;
        let note = if here { self.notes.pop_front().map(|(_, note)| note) } else { None };
        self.early -= u64::from(note.as_ref().is_some_and(|note| note.early));
        note
    }

    /// Nothing more comes: what was waited for.
    fn end(&mut self) -> Vec<Note> {
        (self.early, self.sent, self.come) = (0, 0, 0);
        self.notes.drain(..).map(|(_, note)| note).collect()
    }
}

impl Relay {
    /// Answers a command that would be sent on, if its answer is known. Whether it did.
    pub(super) async fn answer_ahead(&mut self, words: &Words<'_>, bytes: &[u8], whole: bool) -> io::Result<bool> {
        if !self.looks || !self.session.is_plain() || !self.notes.is_quiet() {
            return Ok(false);
        }
        if let Some(why) = self.failed.take() {
            Ledger::count(&self.visit.upstream.ledger.told, 1);
            self.say(format!("-ERR an earlier write failed: {why}\r\n").as_bytes())?;
            return Ok(true);
        }
        match effect(words, whole) {
            Effect::Reads(read) => Ok(self.recall(&read) || self.foreseen(&read).await),
            effect @ Effect::Writes(_) if self.answers_early() && is_constant(words) => {
                self.early(words, bytes, effect).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub(super) fn answers_early(&self) -> bool {
        matches!(self.visit.upstream.destination.egress.writes, Writes::Async { .. })
    }

    /// Answers a read with what is kept.
    fn recall(&mut self, read: &Read) -> bool {
        let Some(answers) = &self.house.answers else { return false };
        let (identity, mut answers) = (self.session.identity(), answers.borrow_mut());
        let Some(reply) = answers.get(identity.db(), &read.key, &identity.reader(), Instant::now()) else {
            return false;
        };
        if read.listed {
            self.to_client.extend_from_slice(b"*1\r\n");
        }
        self.to_client.extend_from_slice(reply);
        Ledger::count(&self.visit.upstream.ledger.cached, 1);
        true
    }

    /// Says that a write is done, then has it done.
    async fn early(&mut self, words: &Words<'_>, bytes: &[u8], effect: Effect) -> io::Result<()> {
        self.say(b"+OK\r\n")?;
        self.say_now();
        Ledger::count(&self.visit.upstream.ledger.early, 1);
        if let Err(line) = self.attach_backend().await {
            self.wrote(&effect, self.db());
            self.lost(&line);
            return Ok(());
        }
        let note = Note { db: self.db(), effect, read: None, early: true };
        self.wrote(&note.effect, note.db);
        self.session.sent(words);
        self.notes.sent(Some(note));
        self.to_backend.extend_from_slice(bytes);
        Ok(())
    }

    /// Gives the client what is there for it without waiting: what comes next may take long.
    fn say_now(&mut self) {
        if let Ok(written) = self.client.try_write(&self.to_client) {
            bytes::Buf::advance(&mut self.to_client, written);
        }
    }

    /// A write that was answered did not succeed.
    pub(super) fn lost(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let why = line.trim_end().trim_start_matches(['-', '!']).to_owned();
        let (caller, to) = (&self.visit.caller, &self.visit.upstream.destination.key.to);
        Ledger::count(&self.visit.upstream.ledger.lost, 1);
        self.visit.unwritten.failed(caller, to, &why);
        self.failed.get_or_insert(why);
    }

    /// What is to be remembered of a command that is sent on.
    pub(super) fn note(&self, words: &Words<'_>, whole: bool) -> Option<Note> {
        if !self.looks {
            return None;
        }
        let effect = effect(words, whole);
        let db = self.db();
        self.wrote(&effect, db);
        let read = match (&effect, db, &self.house.answers) {
            (Effect::Reads(read), Some(db), Some(answers)) if self.session.is_plain() => {
                let reader = self.session.identity().reader();
                Some(answers.borrow_mut().ask(db, &read.key, reader, Instant::now()))
            }
            _ => None,
        };
        let matters = read.is_some() || matches!(effect, Effect::Writes(_) | Effect::Anything);
        matters.then_some(Note { effect, db, read, early: false })
    }

    /// A reply has come; `value` is its first line, `learnt` is all of it where it may be kept.
    pub(super) fn noted(&mut self, note: Note, value: &Value<'_>) {
        let reply = if note.read.is_some() { std::mem::take(&mut self.learnt) } else { Vec::new() };
        self.wrote(&note.effect, note.db);
        if let (Some(asked), Effect::Reads(read), false) = (note.read, &note.effect, value.is_error()) {
            self.keep(asked, read, &reply);
        }
        if note.early && value.is_error() {
            self.lost(value.line);
        }
    }

    fn keep(&self, asked: Asked, read: &Read, reply: &[u8]) {
        let Some(answers) = &self.house.answers else { return };
        let alone = if read.listed { reply.strip_prefix(b"*1\r\n") } else { Some(reply) };
        let nothing = |reply: &[u8]| reply == b"$-1\r\n" || reply == b"_\r\n";
        // To `MGET` a key of another type is nothing, to `GET` an error.
        if let Some(alone) = alone.filter(|alone| alone.len() <= LONGEST && !(read.listed && nothing(alone))) {
            answers.borrow_mut().put(asked, alone, Instant::now());
        }
    }

    /// Something was written, or may have been: now, and again when its reply has come.
    pub(super) fn wrote(&self, effect: &Effect, db: Option<u32>) {
        self.house.wrote(effect, db);
    }

    /// The database that commands mean now; nobody knows while a change is outstanding.
    fn db(&self) -> Option<u32> {
        (!self.session.is_changing()).then(|| self.session.identity().db())
    }

    /// The client and its backend part: what was not answered may have been done or not.
    pub(super) fn end_notes(&mut self) {
        let left = self.notes.end();
        left.iter().for_each(|note| self.wrote(&note.effect, note.db));
        if left.iter().any(|note| note.early) {
            self.lost(b"the connection ended, or the time to deliver was over, before the server had answered");
        }
    }

    /// The client is gone, and has not heard of a failure: its function does when it comes next.
    pub(super) fn bequeath(&mut self) {
        if let Some(why) = self.failed.take() {
            self.visit.unwritten.owe(&self.visit.caller, &self.visit.upstream.destination.key.to, &why);
        }
    }
}
