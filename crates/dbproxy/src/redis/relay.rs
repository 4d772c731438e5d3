//! Relay of one client's commands to a backend, and of the replies back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::BytesMut;
use nearpath_types::egress::WriteMode;
use tokio::net::TcpStream;

use super::backend::{RedisBackend, not_redis_error};
use super::command_effect::CommandEffect;
use super::frame::{RespFramer, RespValue};
use super::input::{CommandSpan, RedisInput};
use super::pending_replies::PendingReplies;
use super::session::{ChangeOutcome, CommandAction, RedisSession};
use super::session_effect::{CommandWords, SettingChange};
use super::settings::{MAX_SETTING_REPLY_BYTES, encode_command};
use super::state::RedisState;
use crate::ClientContext;
use crate::relay::{poll_drain, poll_fill, sleep_until, wait_sender_dropped};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::UsedConnection;

/// Bytes that may wait to be written before no more is read: backpressure for both sides.
const MAX_BUFFERED_BYTES: usize = 256 * 1024;

pub(super) struct RedisRelay {
    pub(super) client: TcpStream,
    pub(super) context: ClientContext,
    pub(super) state: Rc<RedisState>,
    pub(super) session: RedisSession,
    pub(super) backend: Option<UsedConnection<RedisBackend>>,
    pub(super) input: RedisInput,
    /// Framer of the replies.
    pub(super) frames: RespFramer,
    /// The part of a reply that has arrived and may be remembered.
    pub(super) captured_reply: Vec<u8>,
    pub(super) to_backend: BytesMut,
    pub(super) to_client: BytesMut,
    /// Commands are classified by the values that they read and write.
    pub(super) tracks_effects: bool,
    pub(super) pending_replies: PendingReplies,
    /// Error of an acknowledged write that the client has not seen.
    pub(super) failed_write: Option<String>,
    /// Unreadable commands were forwarded.
    has_opaque_traffic: bool,
    /// The client has closed its sending side.
    client_ended: bool,
    /// The client reads no more, either.
    client_gone: bool,
    /// Deadline for delivering what the client left behind.
    deliver_until: Option<Instant>,
    /// No further input is processed.
    pub(super) is_closing: bool,
}

impl RedisRelay {
    pub(super) fn new(client: TcpStream, context: ClientContext, state: Rc<RedisState>) -> Self {
        let login = context.upstream.destination.egress.login.as_ref();
        let initial_db = login
            .and_then(|login| login.database.as_ref()?.parse().ok())
            .unwrap_or_default();
        let session = RedisSession::new(login.is_some(), initial_db);
        let to = &context.upstream.destination;
        let has_async_writes = matches!(to.egress.writes, WriteMode::Async { .. });
        let failed_write = if has_async_writes {
            context
                .failed_writes
                .take_failure(&context.caller.function, &to.key.host_port)
        } else {
            None
        };
        let tracks_effects =
            has_async_writes || state.cache.is_some() || state.prefetch.get().is_some();
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

    /// Runs until the client leaves or is disconnected.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            self.process_input().await?;
            // Released before waiting: an idle client must not hold a backend that others wait for.
            self.release_backend();
            if self.is_done() {
                return Ok(());
            }
            let (mut instance_alive, until) =
                (self.context.instance_alive.clone(), self.deliver_until);
            tokio::select! {
                // Biased: bytes that are already here are processed before the end of the instance
                // counts.
                biased;
                turn = poll_fn(|cx| self.poll_transfer(cx)) => turn?,
                () = wait_sender_dropped(instance_alive.as_mut()), if !self.client_gone => self.drop_client(),
                () = sleep_until(until) => return Ok(()),
            }
        }
    }

    /// Handles a client that is gone: its acknowledged writes are still delivered.
    fn drop_client(&mut self) {
        (self.client_ended, self.client_gone) = (true, true);
        // No client reads replies any more. Left in the buffer they would stop the relay at its
        // limit.
        self.to_client.clear();
        self.start_flush_timer();
    }

    /// Starts the time limit for delivering acknowledged writes.
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
        // A blocking command is not completed without its client: the element that it takes from a
        // list would be lost.
        let nothing_comes = self.session.is_blocked()
            || self.session.is_opaque()
            || (self.session.is_quiet() && !self.input.is_waiting);
        self.is_closing || (self.client_ended && nothing_comes)
    }

    /// Processes all commands that have arrived.
    async fn process_input(&mut self) -> io::Result<()> {
        self.input.is_waiting = false;
        while !self.is_closing
            && !self.input.is_waiting
            && !self.input.bytes.is_empty()
            && self.to_backend.len() < MAX_BUFFERED_BYTES
        {
            // An unreadable command may change anything.
            if self.session.is_opaque() {
                self.has_opaque_traffic = true;
                self.state.invalidate(&CommandEffect::Anything, None);
                self.to_backend.unsplit(self.input.bytes.split());
            } else if self.input.is_streaming {
                // A long command streams through: its words were already classified from its
                // beginning.
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
        let action = self.session.handle_command(&words);
        if action == CommandAction::Wait {
            self.input.is_waiting = true;
            return Ok(());
        }
        // A setting has to be read in full, because its words become part of the identity.
        if !next.is_whole && action != CommandAction::Forward {
            return self.refuse_client("setting too long");
        }
        self.input.take_command(next);
        match action {
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

    /// Disconnects the client with an error that its library shows.
    fn refuse_client(&mut self, reason: &str) -> io::Result<()> {
        self.is_closing = true;
        self.send_to_client(format!("-ERR {reason}\r\n").as_bytes())
    }

    async fn forward_command(
        &mut self,
        words: &CommandWords<'_>,
        bytes: &[u8],
        whole: bool,
    ) -> io::Result<()> {
        if self.ensure_attached().await? {
            // Compared before and after, so that each pin is counted once.
            let kept = self.session.pin();
            let note = self.track_command(words, whole);
            self.pending_replies.record_sent(note);
            self.session.record_command(words);
            if let (None, Some(reason)) = (kept, self.session.pin()) {
                self.context.upstream.counters.count_pin(reason);
            }
            self.to_backend.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Handles a setting: its reply is known, or the server gives it.
    async fn change_setting(&mut self, change: SettingChange, bytes: &[u8]) -> io::Result<()> {
        // Without a backend the change is only noted. The next backend gets it with its setup.
        if self.backend.is_none() {
            let replies = self.state.setting_replies.borrow();
            let (now, age) = (
                Instant::now(),
                self.context.upstream.destination.egress.idle,
            );
            if let Some((reply, identity)) =
                replies.look_up(self.session.identity(), &change, now, age)
            {
                self.to_client.extend_from_slice(reply);
                self.session.set_identity(identity);
                return Ok(());
            }
        }
        if self.ensure_attached().await? {
            // The client's own credentials must not replace a login of the node.
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

    /// Handles the client's own `RESET`: its backend is cleaned for others, and the session starts
    /// anew.
    async fn reset_connection(&mut self) -> io::Result<()> {
        self.detach_backend().await;
        self.session.reset();
        self.send_to_client(b"+RESET\r\n")
    }

    /// Moves the bytes that can be moved now.
    fn poll_transfer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        if !self.to_client.is_empty() {
            match poll_drain(&mut self.client, cx, &mut self.to_client) {
                // Acknowledged writes outlive the client's socket: its errors end only the client's
                // side.
                Poll::Ready(Err(_)) if self.pending_replies.early_count() > 0 => self.drop_client(),
                turn => {
                    moved |= turn?.is_ready();
                }
            }
        }
        if let Some(backend) = &mut self.backend {
            let socket = &mut backend.connection.socket;
            if let Poll::Ready(count) = poll_drain(socket, cx, &mut self.to_backend)? {
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
        let can_read = !self.client_ended && !self.is_closing;
        if can_read
            && self.input.bytes.len() < MAX_BUFFERED_BYTES
            && self.to_backend.len() < MAX_BUFFERED_BYTES
            && let Poll::Ready(count) = poll_fill(&mut self.client, cx, &mut self.input.bytes)
        {
            match count {
                // As above: acknowledged writes outlive the client's socket.
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

    /// Handles bytes of the backend, which are in the client's buffer already.
    fn handle_received(&mut self, before: usize, count: usize) -> io::Result<()> {
        DestinationCounters::increase(&self.context.upstream.counters.received_bytes, count as u64);
        if count == 0 {
            // Bytes that preceded the end of file still go to the client.
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
            // 16 bytes on top of the longest cached value: the reply to `MGET` has an array head
            // before it.
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
            // These replies have no reader: the client is gone, or already has its acknowledgement.
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
            // Copied, because `value` borrows the framer, and handling the reply needs all of
            // `self`.
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
                // An unexpected reply goes to the client. The connection ends with it, because
                // replies can no longer be matched.
                None => self.is_closing = true,
            }
        }
        Ok(())
    }

    fn learn_setting(&mut self, changed: &ChangeOutcome) {
        let reply = std::mem::take(&mut self.captured_reply);
        let ChangeOutcome {
            before,
            change,
            accepted,
        } = changed;
        self.state.setting_replies.borrow_mut().learn(
            before,
            change,
            &reply,
            *accepted,
            Instant::now(),
        );
    }
}

/// Encodes `HELLO` without the client's own password.
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
