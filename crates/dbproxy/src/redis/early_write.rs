//! Replies that the adapter gives before the server does: cached values, and acknowledgements of
//! asynchronous writes.

use std::io;
use std::time::Instant;

use nearpath_types::egress::WriteMode;

use super::cache::{MAX_REPLY_BYTES, PendingRead};
use super::command_effect::{CommandEffect, ValueRead, classify_command, has_constant_reply};
use super::frame::RespValue;
use super::pending_replies::PendingReply;
use super::relay::RedisRelay;
use super::session_effect::CommandWords;
use nearpath_connpool::counters::DestinationCounters;

impl RedisRelay {
    /// Answers a command without the server, if its reply is known. Returns whether it did.
    pub(super) async fn answer_locally(
        &mut self,
        words: &CommandWords<'_>,
        bytes: &[u8],
        whole: bool,
    ) -> io::Result<bool> {
        // An outstanding reply has to reach the client first; answering now would change the order.
        if !self.tracks_effects
            || !self.session.is_plain()
            || !self.pending_replies.is_client_idle()
        {
            return Ok(false);
        }
        if let Some(reason) = self.failed_write.take() {
            DestinationCounters::increase(&self.context.upstream.counters.reported_failures, 1);
            self.send_to_client(format!("-ERR an earlier write failed: {reason}\r\n").as_bytes())?;
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

    /// Answers a read from the cache.
    fn answer_from_cache(&mut self, read: &ValueRead) -> bool {
        let Some(cache) = &self.state.cache else {
            return false;
        };
        let (identity, mut cache) = (self.session.identity(), cache.borrow_mut());
        let Some(reply) = cache.get(identity.db(), &read.key, &identity.reader(), Instant::now())
        else {
            return false;
        };
        // The cache holds the reply of `GET`; `MGET` wraps it.
        if read.is_mget {
            self.to_client.extend_from_slice(b"*1\r\n");
        }
        self.to_client.extend_from_slice(reply);
        DestinationCounters::increase(&self.context.upstream.counters.cache_hits, 1);
        true
    }

    /// Acknowledges a write, then sends it to the server.
    async fn answer_write_early(
        &mut self,
        words: &CommandWords<'_>,
        bytes: &[u8],
        effect: CommandEffect,
    ) -> io::Result<()> {
        self.send_to_client(b"+OK\r\n")?;
        // Acquiring a backend may wait for seconds. The client has its acknowledgement before that.
        self.try_flush_client();
        DestinationCounters::increase(&self.context.upstream.counters.early_writes, 1);
        if let Err(line) = self.attach_backend().await {
            self.invalidate(&effect, self.current_db());
            self.record_lost_write(&line);
            return Ok(());
        }
        let tracked = PendingReply {
            db: self.current_db(),
            effect,
            read: None,
            is_answered: true,
        };
        // Invalidated now, and again with the reply: a read in between may still fetch the old
        // value.
        self.invalidate(&tracked.effect, tracked.db);
        self.session.record_command(words);
        self.pending_replies.record_sent(Some(tracked));
        self.to_backend.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes to the client what fits without waiting: the next step may take long.
    fn try_flush_client(&mut self) {
        if let Ok(written) = self.client.try_write(&self.to_client) {
            bytes::Buf::advance(&mut self.to_client, written);
        }
    }

    /// Records the failure of a write that was acknowledged.
    pub(super) fn record_lost_write(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let reason = line.trim_end().trim_start_matches(['-', '!']).to_owned();
        let (caller, to) = (
            &self.context.caller,
            &self.context.upstream.destination.key.host_port,
        );
        DestinationCounters::increase(&self.context.upstream.counters.failed_writes, 1);
        self.context.failed_writes.log_failure(caller, to, &reason);
        // Only the first failure is reported to the client; the log has them all.
        self.failed_write.get_or_insert(reason);
    }

    /// Returns how to track a command that is sent on.
    pub(super) fn track_command(
        &self,
        words: &CommandWords<'_>,
        whole: bool,
    ) -> Option<PendingReply> {
        if !self.tracks_effects {
            return None;
        }
        let effect = classify_command(words, whole);
        // The command may take effect at any moment from now on, so cached values of its keys are
        // dropped before it is sent.
        let db = self.current_db();
        self.invalidate(&effect, db);
        let read = match (&effect, db, &self.state.cache) {
            (CommandEffect::Reads(read), Some(db), Some(cache)) if self.session.is_plain() => {
                let reader = self.session.identity().reader();
                Some(
                    cache
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

    /// Handles the reply to a tracked command: `value` is its first line. A reply that may be
    /// cached is in `captured_reply`.
    pub(super) fn handle_tracked_reply(&mut self, tracked: PendingReply, value: &RespValue<'_>) {
        let reply = if tracked.read.is_some() {
            std::mem::take(&mut self.captured_reply)
        } else {
            Vec::new()
        };
        self.invalidate(&tracked.effect, tracked.db);
        if let (Some(pending), CommandEffect::Reads(read), false) =
            (tracked.read, &tracked.effect, value.is_error())
        {
            self.cache_reply(pending, read, &reply);
        }
        if tracked.is_answered && value.is_error() {
            self.record_lost_write(value.line);
        }
    }

    fn cache_reply(&self, pending: PendingRead, read: &ValueRead, reply: &[u8]) {
        let Some(cache) = &self.state.cache else {
            return;
        };
        let alone = if read.is_mget {
            reply.strip_prefix(b"*1\r\n")
        } else {
            Some(reply)
        };
        let nothing = |reply: &[u8]| reply == b"$-1\r\n" || reply == b"_\r\n";
        // For a key of another type `MGET` returns nil, and `GET` an error. So a nil of `MGET` is
        // not cached.
        if let Some(alone) = alone
            .filter(|alone| alone.len() <= MAX_REPLY_BYTES && !(read.is_mget && nothing(alone)))
        {
            cache.borrow_mut().store(pending, alone, Instant::now());
        }
    }

    /// Discards what a command may have changed. Called when it is sent, and again when its reply
    /// arrives.
    pub(super) fn invalidate(&self, effect: &CommandEffect, db: Option<u32>) {
        self.state.invalidate(effect, db);
    }

    /// Returns the current database; `None` while a change is outstanding.
    fn current_db(&self) -> Option<u32> {
        (!self.session.is_changing()).then(|| self.session.identity().db())
    }

    /// Gives up all outstanding replies: the connection ended, and their commands may or may not
    /// have run.
    pub(super) fn abandon_pending_replies(&mut self) {
        let left = self.pending_replies.drain_all();
        // The commands may have run, so what they write is invalidated once more.
        left.iter()
            .for_each(|tracked| self.invalidate(&tracked.effect, tracked.db));
        if left.iter().any(|tracked| tracked.is_answered) {
            self.record_lost_write(
                b"the connection ended, or the delivery timed out, before the server replied",
            );
        }
    }

    /// Stores a failure that the client has not seen; the function gets it at its next connection.
    pub(super) fn report_failure_later(&mut self) {
        if let Some(reason) = self.failed_write.take() {
            self.context.failed_writes.report_later(
                &self.context.caller,
                &self.context.upstream.destination.key.host_port,
                &reason,
            );
        }
    }
}
