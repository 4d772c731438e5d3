//! Values that are read when a call of the function arrives, and that answer its first `GET`.

use std::rc::Rc;
use std::time::Instant;

use tokio::task::spawn_local;

use super::backend::{RedisBackend, RedisBackendError};
use super::cache::MAX_REPLY_BYTES;
use super::command_effect::ValueRead;
use super::prefetched::PrefetchedReply;
use super::relay::RedisRelay;
use super::settings::RedisIdentity;
use super::state::{RedisState, state_of};
use crate::ClientContext;
use crate::prefetch::MAX_ANSWER_AGE;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};

/// Issues the declared reads: a call of the function has arrived.
pub(super) fn prefetch_reads(context: &ClientContext) {
    let state = state_of(context);
    let Some(reads) = state.prefetch.get() else {
        return;
    };
    for read in &context.upstream.destination.egress.prefetch {
        let (function, now) = (&context.caller.function, Instant::now());
        let Some((identity, _)) = reads.answers.borrow().learned_request(function, read) else {
            continue;
        };
        let (has_capacity, expired) = reads.answers.borrow_mut().has_capacity(function, read, now);
        DestinationCounters::increase(&context.upstream.counters.prefetch_unused, expired);
        if has_capacity {
            let answer = spawn_local(issue_read(
                context.clone(),
                state.clone(),
                read.clone(),
                identity.clone(),
            ));
            reads.answers.borrow_mut().record_issued(
                function,
                read,
                PrefetchedReply {
                    identity,
                    reply: answer,
                },
                now,
            );
            spawn_local(expire_later(context.clone(), state.clone()));
        }
    }
}

async fn expire_later(context: ClientContext, state: Rc<RedisState>) {
    tokio::time::sleep(MAX_ANSWER_AGE).await;
    if let Some(reads) = state.prefetch.get() {
        let expired =
            reads.answers.borrow_mut().expire(Instant::now()) + reads.uncounted_discards.take();
        DestinationCounters::increase(&context.upstream.counters.prefetch_unused, expired);
    }
}

// No client waits here yet, so each failure simply means that there is no answer.
async fn issue_read(
    context: ClientContext,
    state: Rc<RedisState>,
    read: String,
    identity: RedisIdentity,
) -> Option<Vec<u8>> {
    let started = Instant::now();
    let deadline = (started + MAX_ANSWER_AGE).into();
    let getting = async {
        let mut kept = match state
            .idle_pool
            .acquire(&context.upstream, &identity, started + MAX_ANSWER_AGE)
            .await
            .ok()?
        {
            AcquireOutcome::Reused(kept) => kept,
            AcquireOutcome::New(lease) => {
                let socket = nearpath_connpool::tls::wrap_lease(
                    lease,
                    &context.upstream.destination,
                    &context.upstream.adapters,
                )
                .await
                .ok()?;
                let mut backend = RedisBackend { socket };
                backend
                    .set_up(&context.upstream.destination, &identity)
                    .await
                    .ok()?;
                UsedConnection::new(backend, started)
            }
        };
        match kept
            .connection
            .get_value(read.as_bytes(), MAX_REPLY_BYTES)
            .await
        {
            Ok(reply) => {
                // A complete reply, even an error, leaves the connection clean. A broken one may
                // still deliver bytes.
                state
                    .idle_pool
                    .give_back(&context.upstream, &identity, kept);
                Some(reply)
            }
            Err(RedisBackendError::Refused(_)) => {
                state
                    .idle_pool
                    .give_back(&context.upstream, &identity, kept);
                None
            }
            Err(RedisBackendError::Broken(_)) => {
                kept.connection.close();
                None
            }
        }
    };
    tokio::time::timeout_at(deadline, getting)
        .await
        .ok()
        .flatten()
}

impl RedisRelay {
    /// Answers a read with a prefetched value; waits for it when it is in flight. Returns whether
    /// it did.
    pub(super) async fn answer_from_prefetch(&mut self, read: &ValueRead) -> bool {
        let (function, identity) = (&self.context.caller.function, self.session.identity());
        let Some(reads) = self.state.prefetch.get() else {
            return false;
        };
        let declared = self
            .context
            .upstream
            .destination
            .egress
            .prefetch
            .iter()
            .find(|one| one.as_bytes() == read.key);
        // `MGET` is not answered: its reply has another shape, and for a key of another type
        // another value.
        let Some(declared) = declared.filter(|_| !read.is_mget) else {
            return false;
        };
        let is_same = |issued: &PrefetchedReply| {
            issued.identity.reader() == identity.reader() && issued.identity.db() == identity.db()
        };
        // The borrow ends before the await: other clients use the same state meanwhile.
        let (found, expired) =
            reads
                .answers
                .borrow_mut()
                .take_answer(function, declared, Instant::now(), is_same);
        reads
            .answers
            .borrow_mut()
            .learn(function, declared, identity.clone());
        DestinationCounters::increase(
            &self.context.upstream.counters.prefetch_unused,
            expired + reads.uncounted_discards.take(),
        );
        let Some(issued) = found else { return false };
        match issued.reply.await {
            Ok(Some(reply)) => {
                DestinationCounters::increase(&self.context.upstream.counters.prefetch_used, 1);
                self.to_client.extend_from_slice(&reply);
                true
            }
            _ => {
                DestinationCounters::increase(&self.context.upstream.counters.prefetch_unused, 1);
                false
            }
        }
    }
}
