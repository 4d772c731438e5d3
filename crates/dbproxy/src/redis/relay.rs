//! Moves one client's commands to a backend, and its replies back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::BytesMut;
use nearpath_types::egress::Writes;
use tokio::net::TcpStream;

use super::House;
use super::backend::{Backend, no_redis};
use super::command_effect::Effect;
use super::early_write::Notes;
use super::frame::{Frames, Value};
use super::input::{Input, Next};
use super::session::{Changed, Session, Verdict};
use super::session_effect::{Change, Words};
use super::settings::{LONGEST, command};
use crate::Visit;
use crate::relay::{over, poll_drain, poll_fill, sleep};
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::Kept;

/// As much may wait to be written before no more is read.
const FULL: usize = 256 * 1024;

pub(super) struct Relay {
    pub(super) client: TcpStream,
    pub(super) visit: Visit,
    pub(super) house: Rc<House>,
    pub(super) session: Session,
    pub(super) backend: Option<Kept<Backend>>,
    pub(super) input: Input,
    /// Of the replies.
    pub(super) frames: Frames,
    /// A reply that is to be remembered, as far as it is here.
    pub(super) learnt: Vec<u8>,
    pub(super) to_backend: BytesMut,
    pub(super) to_client: BytesMut,
    /// Whether what commands read and write is looked at.
    pub(super) looks: bool,
    pub(super) notes: Notes,
    /// A write that was answered has failed, and the client does not know.
    pub(super) failed: Option<String>,
    /// Commands went through of which nothing is known.
    unseen: bool,
    /// The client will say no more.
    ended: bool,
    /// Nor will it hear anything.
    gone: bool,
    /// How long what it has left behind is delivered.
    until: Option<Instant>,
    /// Whatever it says, it is not heard any more.
    pub(super) over: bool,
}

impl Relay {
    pub(super) fn new(client: TcpStream, visit: Visit, house: Rc<House>) -> Self {
        let login = visit.upstream.destination.egress.login.as_ref();
        let home = login.and_then(|login| login.database.as_ref()?.parse().ok()).unwrap_or_default();
        let session = Session::new(login.is_some(), home);
        let to = &visit.upstream.destination;
        let early = matches!(to.egress.writes, Writes::Async { .. });
        let failed = if early { visit.unwritten.take(&visit.caller.function, &to.key.to) } else { None };
        let looks = early || house.answers.is_some() || house.reads.get().is_some();
        Self {
            client,
            visit,
            house,
            session,
            backend: None,
            input: Input::default(),
            frames: Frames::default(),
            learnt: Vec::new(),
            to_backend: BytesMut::new(),
            to_client: BytesMut::new(),
            looks,
            notes: Notes::default(),
            failed,
            unseen: false,
            ended: false,
            gone: false,
            until: None,
            over: false,
        }
    }

    /// Until the client leaves, or is sent away.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            self.understand().await?;
            self.release();
            if self.is_done() {
                return Ok(());
            }
            let (mut here, until) = (self.visit.here.clone(), self.until);
            tokio::select! {
                biased;
                turn = poll_fn(|cx| self.poll_turn(cx)) => turn?,
                () = over(here.as_mut()), if !self.gone => self.hang_up(),
                () = sleep(until) => return Ok(()),
            }
        }
    }

    /// The client is gone; what it was told is done is still to be done.
    fn hang_up(&mut self) {
        (self.ended, self.gone) = (true, true);
        self.to_client.clear();
        self.set_time();
    }

    /// From now on there is only so much time left.
    fn set_time(&mut self) {
        if let Writes::Async { flush } = self.visit.upstream.destination.egress.writes {
            self.until.get_or_insert(Instant::now() + flush);
        }
    }

    fn is_done(&self) -> bool {
        if !self.to_client.is_empty() || (self.ended && !self.over && self.notes.early() > 0) {
            return false;
        }
        // Nobody is there to take what a blocking command takes out of a list.
        let nothing_comes =
            self.session.blocks() || self.session.is_opaque() || (self.session.quiet() && !self.input.waits);
        self.over || (self.ended && nothing_comes)
    }

    /// Takes all commands that are here.
    async fn understand(&mut self) -> io::Result<()> {
        self.input.waits = false;
        while !self.over && !self.input.waits && !self.input.bytes.is_empty() && self.to_backend.len() < FULL {
            if self.session.is_opaque() {
                self.unseen = true;
                self.house.wrote(&Effect::Anything, None);
                self.to_backend.unsplit(self.input.bytes.split());
            } else if self.input.streams {
                let Ok(more) = self.input.more() else { return self.refuse("Protocol error") };
                self.to_backend.unsplit(more);
            } else {
                match self.input.next() {
                    Err(_) => return self.refuse("Protocol error"),
                    Ok(None) => return Ok(()),
                    Ok(Some(next)) => self.command(&next).await?,
                }
            }
        }
        Ok(())
    }

    async fn command(&mut self, next: &Next) -> io::Result<()> {
        let bytes = self.input.bytes[..next.length].to_vec();
        let Some(words) = Words::read(&bytes) else { return self.refuse("Protocol error") };
        if words.all().is_empty() {
            self.input.take(next);
            return Ok(());
        }
        let verdict = self.session.asked(&words);
        if verdict == Verdict::Wait {
            self.input.waits = true;
            return Ok(());
        }
        if !next.whole && verdict != Verdict::Forward {
            return self.refuse("too long a setting");
        }
        self.input.take(next);
        match verdict {
            Verdict::Forward | Verdict::Opaque => match self.answer_ahead(&words, &bytes, next.whole).await? {
                true => Ok(()),
                false => self.forward(&words, &bytes, next.whole).await,
            },
            Verdict::Change(change) => self.change(change, &bytes).await,
            Verdict::Agree => self.say(b"+OK\r\n"),
            Verdict::Reset => self.reset().await,
            Verdict::Quit => {
                self.over = true;
                self.say(b"+OK\r\n")
            }
            Verdict::Wait => Ok(()),
        }
    }

    pub(super) fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to_client.extend_from_slice(bytes);
        Ok(())
    }

    /// Sends the client away, in words that its library shows.
    fn refuse(&mut self, why: &str) -> io::Result<()> {
        self.over = true;
        self.say(format!("-ERR {why}\r\n").as_bytes())
    }

    async fn forward(&mut self, words: &Words<'_>, bytes: &[u8], whole: bool) -> io::Result<()> {
        if self.attached().await? {
            let kept = self.session.kept();
            let note = self.note(words, whole);
            self.notes.sent(note);
            self.session.sent(words);
            if let (None, Some(why)) = (kept, self.session.kept()) {
                self.visit.upstream.ledger.pinned(why);
            }
            self.to_backend.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// A setting: the answer is known, or the server gives it.
    async fn change(&mut self, change: Change, bytes: &[u8]) -> io::Result<()> {
        if self.backend.is_none() {
            let known = self.house.known.borrow();
            let (now, age) = (Instant::now(), self.visit.upstream.destination.egress.idle);
            if let Some((reply, identity)) = known.recall(self.session.identity(), &change, now, age) {
                self.to_client.extend_from_slice(reply);
                self.session.becomes(identity);
                return Ok(());
            }
        }
        if self.attached().await? {
            match (&change, self.visit.upstream.destination.egress.login.is_some()) {
                (Change::Hello { version, name, .. }, true) => self.to_backend.extend(hello(*version, name.as_deref())),
                _ => self.to_backend.extend_from_slice(bytes),
            }
            self.notes.sent(None);
            self.session.sent_change(change);
        }
        Ok(())
    }

    /// The client's own `RESET`: its backend is cleaned for others, and it starts anew.
    async fn reset(&mut self) -> io::Result<()> {
        self.detach().await;
        self.session.reset();
        self.say(b"+RESET\r\n")
    }

    /// Moves what can be moved now.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        if !self.to_client.is_empty() {
            match poll_drain(&mut self.client, cx, &mut self.to_client) {
                Poll::Ready(Err(_)) if self.notes.early() > 0 => self.hang_up(),
                turn => {
                    moved |= turn?.is_ready();
                }
            }
        }
        if let Some(backend) = &mut self.backend {
            let socket = &mut backend.item.socket;
            if !self.to_backend.is_empty()
                && let Poll::Ready(count) = poll_drain(socket, cx, &mut self.to_backend)?
            {
                Ledger::count(&self.visit.upstream.ledger.sent, count as u64);
                moved = true;
            }
            if self.to_client.len() < FULL && !self.over {
                let before = self.to_client.len();
                if let Poll::Ready(count) = poll_fill(socket, cx, &mut self.to_client)? {
                    self.received(before, count)?;
                    moved = true;
                }
            }
        }
        let room = !self.ended && !self.over;
        if room
            && self.input.bytes.len() < FULL
            && self.to_backend.len() < FULL
            && let Poll::Ready(count) = poll_fill(&mut self.client, cx, &mut self.input.bytes)
        {
            match count {
                Err(_) if self.notes.early() > 0 => self.hang_up(),
                count => self.ended = count? == 0,
            }
            if self.ended {
                self.set_time();
            }
            moved = true;
        }
        if moved { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The backend said something, which is in the client's buffer already.
    fn received(&mut self, before: usize, count: usize) -> io::Result<()> {
        Ledger::count(&self.visit.upstream.ledger.received, count as u64);
        if count == 0 {
            // What it said before it went is still the client's.
            self.over = true;
            self.house.known.borrow_mut().forget();
            return Ok(());
        }
        if self.unseen {
            self.house.wrote(&Effect::Anything, None);
        }
        let mut at = before;
        while at < self.to_client.len() && !self.session.is_opaque() {
            let part = &self.to_client[at..];
            let (used, value) = self.frames.step(part).map_err(no_redis)?;
            let longest = if self.notes.next_is_read() { super::cache::LONGEST + 16 } else { LONGEST };
            if (self.session.learns() || self.notes.next_is_read()) && self.learnt.len() <= longest {
                self.learnt.extend_from_slice(&part[..used]);
            }
            if self.gone || self.notes.next_is_early() {
                let rest = self.to_client.split_off(at + used);
                self.to_client.truncate(at);
                self.to_client.unsplit(rest);
            } else {
                at += used;
            }
            let Some(value) = value else { break };
            let push = value.is_push();
            let note = if push { None } else { self.notes.come() };
            let noted = note.map(|note| (note, value.line.to_vec()));
            let answered = self.session.answered(&value);
            if push {
                self.learnt.clear();
            }
            if let Some((note, line)) = noted {
                self.noted(note, &Value { line: &line });
            }
            match answered {
                Some(None) => {}
                Some(Some(changed)) => self.learn(&changed),
                // Nobody asked for it: it goes on, and the connection ends with it.
                None => self.over = true,
            }
        }
        Ok(())
    }

    fn learn(&mut self, changed: &Changed) {
        let reply = std::mem::take(&mut self.learnt);
        let Changed { of, change, agreed } = changed;
        self.house.known.borrow_mut().learn(of, change, &reply, *agreed, Instant::now());
    }
}

/// `HELLO` without the client's own password.
fn hello(version: Option<u8>, name: Option<&[u8]>) -> Vec<u8> {
    let version = version.map(|version| version.to_string()).unwrap_or_default();
    let mut words = vec![&b"HELLO"[..]];
    if !version.is_empty() {
        words.push(version.as_bytes());
    }
    if let Some(name) = name {
        words.extend([&b"SETNAME"[..], name]);
    }
    command(&words)
}
