//! A client's talk with its backends, without socket or clock: what a message of the client's means for the backend ([`Talk::hear`]), what a message of
//! the backend's means for the client ([`Talk::relay`]), and when nothing binds the two ([`Talk::is_at_rest`]).
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
use nearpath_types::egress::Mode;

use super::backend_state::{Facts, IDLE, Names, Statement, Values};
use super::frame::{HEAD, Malformed, Piece, text};
use super::message;
use super::session_effect::{self, Judgement, RESTORED};
use reply_queue::{Expect, Queue, Undo};

/// Statements that one client may have prepared under names.
const MOST_NAMES: usize = 4_096;
/// Bytes of their texts, or nearly.
const MOST_TEXT: usize = 16 << 20;
/// Replies that may be expected before more is heard. The server keeps replies back until it has 8 KB of them, which are fewer than this.
const MOST_EXPECTED: usize = 16_384;
/// No text longer than this is looked at only to see whether it is a `DEALLOCATE`.
const LONGEST_DEALLOCATE: usize = 128;
/// Encodings in which a byte of ASCII may be part of another character, so that a text cannot be cut into tokens without knowing them.
const UNSAFE_ENCODINGS: [&str; 7] = ["BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC"];

/// Who does not keep to the protocol, and how.
#[derive(Debug, thiserror::Error)]
pub(super) enum Odd {
    #[error("the client sent {0}")]
    Client(String),
    #[error("the server sent {0}")]
    Server(String),
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// One client's side.
#[derive(Debug)]
pub(super) struct Talk {
    /// Prepared statements by the client's names; the one without a name is among them.
    names: HashMap<Bytes, Rc<Statement>>,
    /// Bytes of their texts at most.
    text_kept: usize,
    /// The settings that the client knows of.
    pub(super) values: Values,
    queue: Queue,
    /// Why the client keeps its backend.
    pin: Option<&'static str>,
    /// Statements are the session's, not tracked.
    whole_session: bool,
    /// Messages have been sent that a Sync has yet to end.
    series: bool,
    copying: bool,
}

/// Where the words of both sides go.
pub(super) struct Ways<'a> {
    pub(super) to_backend: &'a mut BytesMut,
    pub(super) to_client: &'a mut BytesMut,
    pub(super) names: &'a Names,
}

impl Talk {
    pub(super) fn new(mode: Mode, values: Values) -> Self {
        let whole_session = mode == Mode::Session;
        Self {
            names: HashMap::new(),
            text_kept: 0,
            values,
            queue: Queue::default(),
            pin: whole_session.then_some("session mode"),
            whole_session,
            series: false,
            copying: false,
        }
    }

    /// Why the client keeps its backend until it leaves.
    pub(super) fn pin(&self) -> Option<&'static str> {
        self.pin
    }

    /// Keeps the backend from now on.
    pub(super) fn stay(&mut self, why: &'static str) {
        self.pin.get_or_insert(why);
    }

    /// Nothing is under way, and no transaction is open: the backend can serve somebody else.
    pub(super) fn is_at_rest(&self, facts: &Facts) -> bool {
        self.is_quiet() && facts.status == IDLE
    }

    /// All that was sent has been answered.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && !self.series && !self.copying
    }

    /// So much is under way that replies have to come first.
    pub(super) fn is_crowded(&self) -> bool {
        self.queue.len() >= MOST_EXPECTED
    }

    /// Whether the server waits for more of the client's before it ends what is under way.
    pub(super) fn is_owed_more(&self) -> bool {
        self.series || self.copying
    }

    /// Whether a message needs a backend, for a client that has none.
    pub(super) fn needs_backend(&self, piece: &Piece) -> bool {
        let Piece::Whole(message) = piece else { return true };
        match (message[0], &message[HEAD..]) {
            // Stray ends of a COPY: the server ignores them, too.
            (b'S' | b'H' | b'd' | b'c' | b'f', _) => false,
            (b'C', [b'S', name @ ..]) => !text(name).is_some_and(|(name, _)| self.names.contains_key(name)),
            (b'Q', body) if body.len() <= LONGEST_DEALLOCATE && !self.names.is_empty() => {
                self.freed(&self.judge(body)).is_none()
            }
            _ => true,
        }
    }

    /// Answers a message that needs no backend.
    pub(super) fn answer(&mut self, piece: Piece, to_client: &mut BytesMut) {
        let (Piece::Whole(message) | Piece::Start(message) | Piece::More(message)) = piece;
        match (message[0], &message[HEAD..]) {
            (b'S', _) => message::ready(to_client, IDLE),
            (b'C', [_, name @ ..]) => {
                text(name).into_iter().for_each(|(name, _)| drop(self.names.remove(name)));
                to_client.extend_from_slice(message::CLOSED);
            }
            (b'Q', body) => {
                self.freed(&self.judge(body)).into_iter().for_each(|name| drop(self.names.remove(&name)));
                self.names.remove(&b""[..]);
                message::tag(to_client, "DEALLOCATE");
                message::ready(to_client, IDLE);
            }
            _ => {}
        }
    }

    /// Restores the client's settings at a backend that it has just got, where `first` is the first that it has to say. As any simple query that ends the
    /// statement without a name there, which another client may have prepared with the same text.
    ///
    /// Who begins by asking for the last number of a sequence drew none in this transaction: what the server would say is another client's. Now it is an
    /// error.
    pub(super) fn arrive(&mut self, first: Option<&Piece>, facts: &mut Facts, to_backend: &mut BytesMut) {
        let differs =
            |name: &&str| matches!((self.values.get(*name), facts.values.get(*name)), (Some(a), Some(b)) if a != b);
        let calls: Vec<String> = RESTORED
            .into_iter()
            .filter(differs)
            .map(|name| format!("pg_catalog.set_config('{name}', {}, false)", literal(&self.values[name])))
            .collect();
        let restores = (!calls.is_empty()).then(|| format!("SELECT {}", calls.join(", ")));
        let forgets = first.is_some_and(|first| self.asks_for_numbers(first)).then(|| "DISCARD SEQUENCES".to_owned());
        for order in restores.into_iter().chain(forgets) {
            facts.forgets_unnamed();
            message::message(to_backend, b'Q', |out| message::text(out, order.as_bytes()));
            self.queue.push(Expect::Restored);
        }
    }

    fn asks_for_numbers(&self, piece: &Piece) -> bool {
        let (Piece::Whole(message) | Piece::Start(message)) = piece else { return false };
        match (message[0], &message[HEAD..]) {
            (b'Q' | b'P', body) => session_effect::names_numbers(body),
            (b'B', body) => {
                let name = text(body).and_then(|(_, rest)| text(rest)).map(|(name, _)| name);
                let statement = name.and_then(|name| self.names.get(name));
                statement.is_some_and(|statement| session_effect::names_numbers(&statement.body))
            }
            _ => false,
        }
    }

    /// Passes on what the client says. `facts` are the backend's that it has.
    ///
    /// # Errors
    /// When it is no message of a client's.
    pub(super) fn hear(&mut self, piece: Piece, facts: &mut Facts, ways: &mut Ways<'_>) -> Result<(), Odd> {
        match piece {
            Piece::More(more) => ways.to_backend.extend_from_slice(&more),
            Piece::Start(start) => self.hear_start(&start, facts, ways)?,
            Piece::Whole(message) => self.hear_whole(&message, facts, ways)?,
        }
        self.queue.settle(facts.status, ways.to_client);
        Ok(())
    }

    fn hear_whole(&mut self, message: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) -> Result<(), Odd> {
        let body = &message[HEAD..];
        match message[0] {
            b'Q' => self.query(message, facts, ways),
            b'P' | b'B' | b'D' | b'C' | b'E' => {
                self.series = true;
                let malformed = || Odd::Client(format!("a malformed message '{}'", message[0] as char));
                self.hear_series(message, body, facts, ways).ok_or_else(malformed)?;
            }
            b'S' => {
                self.series = false;
                facts.ends_series();
                if !self.copying {
                    self.queue.push(Expect::Sync);
                }
                ways.to_backend.extend_from_slice(message);
            }
            b'F' => {
                facts.leaves = true;
                facts.ends_series();
                self.queue.push(Expect::Query);
                ways.to_backend.extend_from_slice(message);
            }
            b'c' | b'f' => {
                self.copying = false;
                ways.to_backend.extend_from_slice(message);
            }
            b'H' | b'd' => ways.to_backend.extend_from_slice(message),
            other => return Err(Odd::Client(format!("a message of type {other:#x}"))),
        }
        Ok(())
    }

    /// A simple query. It ends the statement without a name.
    fn query(&mut self, message: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) {
        let judgement = self.judge(&message[HEAD..]);
        if let Some(name) = self.freed(&judgement).filter(|_| facts.status != b'E') {
            let statement = self.names.remove(&name);
            self.names.remove(&b""[..]); // that of the backend may be another client's
            let undo = Undo::Freed((name, statement));
            let mut tag = BytesMut::new();
            message::tag(&mut tag, "DEALLOCATE");
            self.queue.push(Expect::Say(tag.freeze(), undo));
            return self.queue.push(Expect::SayReady);
        }
        self.end_unnamed(facts);
        self.apply(&judgement, facts);
        facts.ends_series();
        self.queue.push(Expect::Query);
        ways.to_backend.extend_from_slice(message);
    }

    fn end_unnamed(&mut self, facts: &mut Facts) {
        self.names.remove(&b""[..]);
        facts.forgets_unnamed();
    }

    /// The beginning of a message that is too long to be read.
    fn hear_start(&mut self, start: &[u8], facts: &mut Facts, ways: &mut Ways<'_>) -> Result<(), Odd> {
        match start[0] {
            b'd' => {}
            b'Q' | b'F' => {
                self.stay("long statement");
                self.end_unnamed(facts);
                facts.ends_series();
                self.queue.push(Expect::Query);
            }
            b'P' => {
                self.stay("long statement");
                self.series = true;
                let (name, _) = text(&start[HEAD..]).ok_or_else(|| Odd::Client("a name without end".into()))?;
                if name.is_empty() {
                    self.end_unnamed(facts);
                }
                self.queue.push(Expect::Parse(Undo::Nothing));
            }
            b'B' => {
                self.series = true;
                let bound = self.bind(start, &start[HEAD..], facts, ways);
                return bound.ok_or_else(|| Odd::Client("a name without end".into()));
            }
            other => return Err(Odd::Client(format!("a message of type {other:#x}, longer than any"))),
        }
        ways.to_backend.extend_from_slice(start);
        Ok(())
    }

    /// The name that a single `DEALLOCATE` frees, if it is one that is kept here.
    fn freed(&self, judgement: &Judgement) -> Option<Bytes> {
        let name = judgement.deallocates.as_deref()?;
        self.names.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// Judges a text; `body` may go on after its 0.
    fn judge(&self, body: &[u8]) -> Judgement {
        if self.pin.is_some() && self.names.is_empty() {
            return Judgement::default();
        }
        let value = |name| self.values.get(name).map(String::as_str);
        let unclear = value("standard_conforming_strings") == Some("off")
            || value("client_encoding").is_some_and(|encoding| UNSAFE_ENCODINGS.contains(&encoding));
        if unclear {
            return Judgement { pin: Some("unclear text"), ..Judgement::default() };
        }
        let text = text(body).map_or(body, |(text, _)| text);
        session_effect::judge(text, |name| self.values.contains_key(name))
    }

    fn apply(&mut self, judgement: &Judgement, facts: &mut Facts) {
        facts.leaves |= judgement.leaves;
        judgement.pin.into_iter().for_each(|why| self.stay(why));
    }
}

/// A text as SQL has it, whatever `standard_conforming_strings` is.
fn literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}
