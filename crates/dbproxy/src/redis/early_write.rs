//! What is answered before the server has: values that are kept, and writes whose answer is known.

use std::io;
use std::time::Instant;

use nearpath_types::egress::WriteMode;

use super::cache::{MAX_REPLY_BYTES, PendingRead};
use super::command_effect::{CommandEffect, ValueRead, classify_command, has_constant_reply};
use super::frame::RespValue;
use super::relay::RedisRelay;
use super::session_effect::CommandWords;
use nearpath_connpool::counters::DestinationCounters;

/// What a reply is waited for, beside being passed on.
pub(super) struct PendingReply {
    effect: CommandEffect,
    /// The database, if it is known.
    db: Option<u32>,
    /// It may be kept.
    read: Option<PendingRead>,
    /// The client has had its answer.
    is_answered: bool,
}

/// Replies that are waited for, and what is to be done with some of them.
#[derive(Default)]
pub(super) struct PendingReplies {
    /// Commands that were sent, and replies that have come.
    sent_count: u64,
    received_count: u64,
    /// Of those outstanding, the ones that the client does not wait for.
    early_count: u64,
    tracked: std::collections::VecDeque<(u64, PendingReply)>,
}

impl PendingReplies {
    /// Whether the client waits for no reply.
    fn is_client_idle(&self) -> bool {
        self.sent_count - self.received_count == self.early_count
    }

    /// Replies outstanding that the client does not wait for.
    pub(super) fn early_count(&self) -> u64 {
        self.early_count
    }

    /// A command goes out.
    pub(super) fn record_sent(&mut self, note: Option<PendingReply>) {
        if let Some(note) = note {
            self.early_count += u64::from(note.is_answered);
            self.tracked.push_back((self.sent_count, note));
        }
        self.sent_count += 1;
    }

    fn next_reply(&self) -> Option<&PendingReply> {
        self.tracked
            .front()
            .filter(|(at, _)| *at == self.received_count)
            .map(|(_, note)| note)
    }

    /// Whether the next reply is not for the client.
    pub(super) fn next_is_early(&self) -> bool {
        self.next_reply().is_some_and(|note| note.is_answered)
    }

    /// Whether the next reply may be kept.
    pub(super) fn next_is_read(&self) -> bool {
        self.next_reply().is_some_and(|note| note.read.is_some())
    }

    /// A reply has come.
    pub(super) fn take_next(&mut self) -> Option<PendingReply> {
        let here = self.next_reply().is_some();
        self.received_count += 1;
        let note = if here {
            self.tracked.pop_front().map(|(_, note)| note)
        } else {
            None
        };
        self.early_count -= u64::from(note.as_ref().is_some_and(|note| note.is_answered));
        note
    }

    /// Nothing more comes: what was waited for.
    fn drain_all(&mut self) -> Vec<PendingReply> {
        (self.early_count, self.sent_count, self.received_count) = (0, 0, 0);
        self.tracked.drain(..).map(|(_, note)| note).collect()
    }
}

impl RedisRelay {
    /// Answers a command that would be sent on, if its answer is known. Whether it did.
    pub(super) async fn answer_locally(
        &mut self,
        words: &CommandWords<'_>,
        bytes: &[u8],
        whole: bool,
    ) -> io::Result<bool> {
        if !self.tracks_effects
            || !self.session.is_plain()
            || !self.pending_replies.is_client_idle()
        {
            return Ok(false);
        }
        if let Some(why) = self.failed_write.take() {
            DestinationCounters::increase(&self.context.upstream.counters.reported_failures, 1);
            self.send_to_client(format!("-ERR an earlier write failed: {why}\r\n").as_bytes())?;
            return Ok(true);
        }
        match classify_command(words, whole) {
            CommandEffect::Reads(read) => {
                Ok(self.answer_from_cache(&read) || self.answer_from_prefetch(&read).await)
            }
            effect @ CommandEffect::Writes(_)
                if self.has_async_writes() && has_constant_reply(words) =>
            {
                self.answer_write_early(words, bytes, effect).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub(super) fn has_async_writes(&self) -> bool {
        matches!(
            self.context.upstream.destination.egress.writes,
            WriteMode::Async { .. }
        )
    }

    /// Answers a read with what is kept.
    fn answer_from_cache(&mut self, read: &ValueRead) -> bool {
        let Some(answers) = &self.state.cache else {
            return false;
        };
        let (identity, mut answers) = (self.session.identity(), answers.borrow_mut());
        let Some(reply) = answers.get(identity.db(), &read.key, &identity.reader(), Instant::now())
        else {
            return false;
        };
        if read.is_mget {
            self.to_client.extend_from_slice(b"*1\r\n");
        }
        self.to_client.extend_from_slice(reply);
        DestinationCounters::increase(&self.context.upstream.counters.cache_hits, 1);
        true
    }

    /// Says that a write is done, then has it done.
    async fn answer_write_early(
        &mut self,
        words: &CommandWords<'_>,
        bytes: &[u8],
        effect: CommandEffect,
    ) -> io::Result<()> {
        self.send_to_client(b"+OK\r\n")?;
        self.try_flush_client();
        DestinationCounters::increase(&self.context.upstream.counters.early_writes, 1);
        if let Err(line) = self.attach_backend().await {
            self.invalidate(&effect, self.current_db());
            self.record_lost_write(&line);
            return Ok(());
        }
        let note = PendingReply {
            db: self.current_db(),
            effect,
            read: None,
            is_answered: true,
        };
        self.invalidate(&note.effect, note.db);
        self.session.record_command(words);
        self.pending_replies.record_sent(Some(note));
        self.to_backend.extend_from_slice(bytes);
        Ok(())
    }

    /// Gives the client what is there for it without waiting: what comes next may take long.
    fn try_flush_client(&mut self) {
        if let Ok(written) = self.client.try_write(&self.to_client) {
            bytes::Buf::advance(&mut self.to_client, written);
        }
    }

    /// A write that was answered did not succeed.
    pub(super) fn record_lost_write(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let why = line.trim_end().trim_start_matches(['-', '!']).to_owned();
        let (caller, to) = (
            &self.context.caller,
            &self.context.upstream.destination.key.host_port,
        );
        DestinationCounters::increase(&self.context.upstream.counters.failed_writes, 1);
        self.context.failed_writes.log_failure(caller, to, &why);
        self.failed_write.get_or_insert(why);
    }

    /// What is to be remembered of a command that is sent on.
    pub(super) fn track_command(
        &self,
        words: &CommandWords<'_>,
        whole: bool,
    ) -> Option<PendingReply> {
        if !self.tracks_effects {
            return None;
        }
        let effect = classify_command(words, whole);
        let db = self.current_db();
        self.invalidate(&effect, db);
        let read = match (&effect, db, &self.state.cache) {
            (CommandEffect::Reads(read), Some(db), Some(answers)) if self.session.is_plain() => {
                let reader = self.session.identity().reader();
                Some(
                    answers
                        .borrow_mut()
                        .begin_read(db, &read.key, reader, Instant::now()),
                )
            }
            _ => None,
        };
        let matters =
            read.is_some() || matches!(effect, CommandEffect::Writes(_) | CommandEffect::Anything);
        matters.then_some(PendingReply {
            effect,
            db,
            read,
            is_answered: false,
        })
    }

    /// A reply has come; `value` is its first line, `learnt` is all of it where it may be kept.
    pub(super) fn handle_tracked_reply(&mut self, note: PendingReply, value: &RespValue<'_>) {
        let reply = if note.read.is_some() {
            std::mem::take(&mut self.captured_reply)
        } else {
            Vec::new()
        };
        self.invalidate(&note.effect, note.db);
        if let (Some(asked), CommandEffect::Reads(read), false) =
            (note.read, &note.effect, value.is_error())
        {
            self.cache_reply(asked, read, &reply);
        }
        if note.is_answered && value.is_error() {
            self.record_lost_write(value.line);
        }
    }

    fn cache_reply(&self, asked: PendingRead, read: &ValueRead, reply: &[u8]) {
        let Some(answers) = &self.state.cache else {
            return;
        };
        let alone = if read.is_mget {
            reply.strip_prefix(b"*1\r\n")
        } else {
            Some(reply)
        };
        let nothing = |reply: &[u8]| reply == b"$-1\r\n" || reply == b"_\r\n";
        // To `MGET` a key of another type is nothing, to `GET` an error.
        if let Some(alone) = alone
            .filter(|alone| alone.len() <= MAX_REPLY_BYTES && !(read.is_mget && nothing(alone)))
        {
            answers.borrow_mut().store(asked, alone, Instant::now());
        }
    }

    /// Something was written, or may have been: now, and again when its reply has come.
    pub(super) fn invalidate(&self, effect: &CommandEffect, db: Option<u32>) {
        self.state.invalidate(effect, db);
    }

    /// The database that commands mean now; nobody knows while a change is outstanding.
    fn current_db(&self) -> Option<u32> {
        (!self.session.is_changing()).then(|| self.session.identity().db())
    }

    /// The client and its backend part: what was not answered may have been done or not.
    pub(super) fn abandon_pending_replies(&mut self) {
        let left = self.pending_replies.drain_all();
        left.iter()
            .for_each(|note| self.invalidate(&note.effect, note.db));
        if left.iter().any(|note| note.is_answered) {
            self.record_lost_write(b"the connection ended, or the time to deliver was over, before the server had answered");
        }
    }

    /// The client is gone, and has not heard of a failure: its function does when it comes next.
    pub(super) fn report_failure_later(&mut self) {
        if let Some(why) = self.failed_write.take() {
            self.context.failed_writes.report_later(
                &self.context.caller,
                &self.context.upstream.destination.key.host_port,
                &why,
            );
        }
    }
}
