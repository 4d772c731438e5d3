//! Moves one client's commands to a backend, and its replies back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::BytesMut;
use nearpath_types::egress::WriteMode;
use tokio::net::TcpStream;

use super::RedisState;
use super::backend::{RedisBackend, not_redis_error};
use super::command_effect::CommandEffect;
use super::early_write::PendingReplies;
use super::frame::{RespFramer, RespValue};
use super::input::{CommandSpan, RedisInput};
use super::session::{ChangeOutcome, CommandAction, RedisSession};
use super::session_effect::{CommandWords, SettingChange};
use super::settings::{MAX_SETTING_REPLY_BYTES, encode_command};
use crate::ClientContext;
use crate::relay::{poll_drain, poll_fill, sleep_until, wait_sender_dropped};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::UsedConnection;

/// As much may wait to be written before no more is read.
const MAX_BUFFERED_BYTES: usize = 256 * 1024;

pub(super) struct RedisRelay {
    pub(super) client: TcpStream,
    pub(super) context: ClientContext,
    pub(super) state: Rc<RedisState>,
    pub(super) session: RedisSession,
    pub(super) backend: Option<UsedConnection<RedisBackend>>,
    pub(super) input: RedisInput,
    /// Of the replies.
    pub(super) frames: RespFramer,
    /// A reply that is to be remembered, as far as it is here.
    pub(super) captured_reply: Vec<u8>,
    pub(super) to_backend: BytesMut,
    pub(super) to_client: BytesMut,
    /// Whether what commands read and write is looked at.
    pub(super) tracks_effects: bool,
    pub(super) pending_replies: PendingReplies,
    /// A write that was answered has failed, and the client does not know.
    pub(super) failed_write: Option<String>,
    /// Commands went through of which nothing is known.
    has_opaque_traffic: bool,
    /// The client will say no more.
    client_ended: bool,
    /// Nor will it hear anything.
    client_gone: bool,
    /// How long what it has left behind is delivered.
    deliver_until: Option<Instant>,
    /// Whatever it says, it is not heard any more.
    pub(super) is_closing: bool,
}

impl RedisRelay {
    pub(super) fn new(client: TcpStream, context: ClientContext, state: Rc<RedisState>) -> Self {
        let login = context.upstream.destination.egress.login.as_ref();
        let home = login
            .and_then(|login| login.database.as_ref()?.parse().ok())
            .unwrap_or_default();
        let session = RedisSession::new(login.is_some(), home);
        let to = &context.upstream.destination;
        let early = matches!(to.egress.writes, WriteMode::Async { .. });
        let failed_write = if early {
            context
                .failed_writes
                .take_failure(&context.caller.function, &to.key.host_port)
        } else {
            None
        };
        let tracks_effects = early || state.cache.is_some() || state.prefetch.get().is_some();
        Self {
            client,
            context,
            state,
            session,
            backend: None,
            input: RedisInput::default(),
            frames: RespFramer::default(),
            captured_reply: Vec::new(),
            to_backend: BytesMut::new(),
            to_client: BytesMut::new(),
            tracks_effects,
            pending_replies: PendingReplies::default(),
            failed_write,
            has_opaque_traffic: false,
            client_ended: false,
            client_gone: false,
            deliver_until: None,
            is_closing: false,
        }
    }

    /// Until the client leaves, or is sent away.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            self.process_input().await?;
            self.release_backend();
            if self.is_done() {
                return Ok(());
            }
            let (mut here, until) = (self.context.instance_alive.clone(), self.deliver_until);
            tokio::select! {
                biased;
                turn = poll_fn(|cx| self.poll_transfer(cx)) => turn?,
                () = wait_sender_dropped(here.as_mut()), if !self.client_gone => self.drop_client(),
                () = sleep_until(until) => return Ok(()),
            }
        }
    }

    /// The client is gone; what it was told is done is still to be done.
    fn drop_client(&mut self) {
        (self.client_ended, self.client_gone) = (true, true);
        self.to_client.clear();
        self.start_flush_timer();
    }

    /// From now on there is only so much time left.
    fn start_flush_timer(&mut self) {
        if let WriteMode::Async { flush } = self.context.upstream.destination.egress.writes {
            self.deliver_until.get_or_insert(Instant::now() + flush);
        }
    }

    fn is_done(&self) -> bool {
        if !self.to_client.is_empty()
            || (self.client_ended && !self.is_closing && self.pending_replies.early_count() > 0)
        {
            return false;
        }
        // Nobody is there to take what a blocking command takes out of a list.
        let nothing_comes = self.session.is_blocked()
            || self.session.is_opaque()
            || (self.session.is_quiet() && !self.input.is_waiting);
        self.is_closing || (self.client_ended && nothing_comes)
    }

    /// Takes all commands that are here.
    async fn process_input(&mut self) -> io::Result<()> {
        self.input.is_waiting = false;
        while !self.is_closing
            && !self.input.is_waiting
            && !self.input.bytes.is_empty()
            && self.to_backend.len() < MAX_BUFFERED_BYTES
        {
            if self.session.is_opaque() {
                self.has_opaque_traffic = true;
                self.state.invalidate(&CommandEffect::Anything, None);
                self.to_backend.unsplit(self.input.bytes.split());
            } else if self.input.is_streaming {
                let Ok(more) = self.input.take_more() else {
                    return self.refuse_client("Protocol error");
                };
                self.to_backend.unsplit(more);
            } else {
                match self.input.next_command() {
                    Err(_) => return self.refuse_client("Protocol error"),
                    Ok(None) => return Ok(()),
                    Ok(Some(next)) => self.handle_command(&next).await?,
                }
            }
        }
        Ok(())
    }

    async fn handle_command(&mut self, next: &CommandSpan) -> io::Result<()> {
        let bytes = self.input.bytes[..next.length].to_vec();
        let Some(words) = CommandWords::parse(&bytes) else {
            return self.refuse_client("Protocol error");
        };
        if words.all().is_empty() {
            self.input.take_command(next);
            return Ok(());
        }
        let verdict = self.session.handle_command(&words);
        if verdict == CommandAction::Wait {
            self.input.is_waiting = true;
            return Ok(());
        }
        if !next.is_whole && verdict != CommandAction::Forward {
            return self.refuse_client("too long a setting");
        }
        self.input.take_command(next);
        match verdict {
            CommandAction::Forward | CommandAction::Opaque => {
                match self.answer_locally(&words, &bytes, next.is_whole).await? {
                    true => Ok(()),
                    false => self.forward_command(&words, &bytes, next.is_whole).await,
                }
            }
            CommandAction::Change(change) => self.change_setting(change, &bytes).await,
            CommandAction::Acknowledge => self.send_to_client(b"+OK\r\n"),
            CommandAction::Reset => self.reset_connection().await,
            CommandAction::Quit => {
                self.is_closing = true;
                self.send_to_client(b"+OK\r\n")
            }
            CommandAction::Wait => Ok(()),
        }
    }

    pub(super) fn send_to_client(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to_client.extend_from_slice(bytes);
        Ok(())
    }

    /// Sends the client away, in words that its library shows.
    fn refuse_client(&mut self, why: &str) -> io::Result<()> {
        self.is_closing = true;
        self.send_to_client(format!("-ERR {why}\r\n").as_bytes())
    }

    async fn forward_command(
        &mut self,
        words: &CommandWords<'_>,
        bytes: &[u8],
        whole: bool,
    ) -> io::Result<()> {
        if self.ensure_attached().await? {
            let kept = self.session.pin();
            let note = self.track_command(words, whole);
            self.pending_replies.record_sent(note);
            self.session.record_command(words);
            if let (None, Some(why)) = (kept, self.session.pin()) {
                self.context.upstream.counters.count_pin(why);
            }
            self.to_backend.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// A setting: the answer is known, or the server gives it.
    async fn change_setting(&mut self, change: SettingChange, bytes: &[u8]) -> io::Result<()> {
        if self.backend.is_none() {
            let known = self.state.setting_replies.borrow();
            let (now, age) = (
                Instant::now(),
                self.context.upstream.destination.egress.idle,
            );
            if let Some((reply, identity)) =
                known.look_up(self.session.identity(), &change, now, age)
            {
                self.to_client.extend_from_slice(reply);
                self.session.set_identity(identity);
                return Ok(());
            }
        }
        if self.ensure_attached().await? {
            match (
                &change,
                self.context.upstream.destination.egress.login.is_some(),
            ) {
                (SettingChange::Hello { version, name, .. }, true) => self
                    .to_backend
                    .extend(hello_command(*version, name.as_deref())),
                _ => self.to_backend.extend_from_slice(bytes),
            }
            self.pending_replies.record_sent(None);
            self.session.record_change(change);
        }
        Ok(())
    }

    /// The client's own `COM_RESET_CONNECTION`: its backend is cleaned for others, and it starts anew.
    async fn reset_connection(&mut self) -> io::Result<()> {
        self.detach_backend().await;
        self.session.reset();
        self.send_to_client(b"+RESET\r\n")
    }

    /// Moves what can be moved now.
    fn poll_transfer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        if !self.to_client.is_empty() {
            match poll_drain(&mut self.client, cx, &mut self.to_client) {
                Poll::Ready(Err(_)) if self.pending_replies.early_count() > 0 => self.drop_client(),
                turn => {
                    moved |= turn?.is_ready();
                }
            }
        }
        if let Some(backend) = &mut self.backend {
            let socket = &mut backend.connection.socket;
            if !self.to_backend.is_empty()
                && let Poll::Ready(count) = poll_drain(socket, cx, &mut self.to_backend)?
            {
                DestinationCounters::increase(
                    &self.context.upstream.counters.sent_bytes,
                    count as u64,
                );
                moved = true;
            }
            if self.to_client.len() < MAX_BUFFERED_BYTES && !self.is_closing {
                let before = self.to_client.len();
                if let Poll::Ready(count) = poll_fill(socket, cx, &mut self.to_client)? {
                    self.handle_received(before, count)?;
                    moved = true;
                }
            }
        }
        let room = !self.client_ended && !self.is_closing;
        if room
            && self.input.bytes.len() < MAX_BUFFERED_BYTES
            && self.to_backend.len() < MAX_BUFFERED_BYTES
            && let Poll::Ready(count) = poll_fill(&mut self.client, cx, &mut self.input.bytes)
        {
            match count {
                Err(_) if self.pending_replies.early_count() > 0 => self.drop_client(),
                count => self.client_ended = count? == 0,
            }
            if self.client_ended {
                self.start_flush_timer();
            }
            moved = true;
        }
        if moved {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// The backend said something, which is in the client's buffer already.
    fn handle_received(&mut self, before: usize, count: usize) -> io::Result<()> {
        DestinationCounters::increase(&self.context.upstream.counters.received_bytes, count as u64);
        if count == 0 {
            // What it said before it went is still the client's.
            self.is_closing = true;
            self.state.setting_replies.borrow_mut().forget();
            return Ok(());
        }
        if self.has_opaque_traffic {
            self.state.invalidate(&CommandEffect::Anything, None);
        }
        let mut at = before;
        while at < self.to_client.len() && !self.session.is_opaque() {
            let part = &self.to_client[at..];
            let (used, value) = self.frames.step(part).map_err(not_redis_error)?;
            let longest = if self.pending_replies.next_is_read() {
                super::cache::MAX_REPLY_BYTES + 16
            } else {
                MAX_SETTING_REPLY_BYTES
            };
            if (self.session.expects_change_reply() || self.pending_replies.next_is_read())
                && self.captured_reply.len() <= longest
            {
                self.captured_reply.extend_from_slice(&part[..used]);
            }
            if self.client_gone || self.pending_replies.next_is_early() {
                let rest = self.to_client.split_off(at + used);
                self.to_client.truncate(at);
                self.to_client.unsplit(rest);
            } else {
                at += used;
            }
            let Some(value) = value else { break };
            let push = value.is_push();
            let note = if push {
                None
            } else {
                self.pending_replies.take_next()
            };
            let noted = note.map(|note| (note, value.line.to_vec()));
            let answered = self.session.handle_reply(&value);
            if push {
                self.captured_reply.clear();
            }
            if let Some((note, line)) = noted {
                self.handle_tracked_reply(note, &RespValue { line: &line });
            }
            match answered {
                Some(None) => {}
                Some(Some(changed)) => self.learn_setting(&changed),
                // Nobody asked for it: it goes on, and the connection ends with it.
                None => self.is_closing = true,
            }
        }
        Ok(())
    }

    fn learn_setting(&mut self, changed: &ChangeOutcome) {
        let reply = std::mem::take(&mut self.captured_reply);
        let ChangeOutcome {
            before: of,
            change,
            accepted: agreed,
        } = changed;
        self.state
            .setting_replies
            .borrow_mut()
            .learn(of, change, &reply, *agreed, Instant::now());
    }
}

/// `HELLO` without the client's own password.
fn hello_command(version: Option<u8>, name: Option<&[u8]>) -> Vec<u8> {
    let version = version
        .map(|version| version.to_string())
        .unwrap_or_default();
    let mut words = vec![&b"HELLO"[..]];
    if !version.is_empty() {
        words.push(version.as_bytes());
    }
    if let Some(name) = name {
        words.extend([&b"SETNAME"[..], name]);
    }
    encode_command(&words)
}
