//! Values that are read when a call of the function arrives, and given to its first `GET`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tokio::task::{JoinHandle, spawn_local};

use super::RedisState;
use super::backend::{RedisBackend, RedisBackendError};
use super::cache::MAX_REPLY_BYTES;
use super::command_effect::{CommandEffect, ValueRead};
use super::relay::RedisRelay;
use super::settings::RedisIdentity;
use crate::ClientContext;
use crate::prefetch::{MAX_ANSWER_AGE, PrefetchCache};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};

/// Reads of one destination.
#[derive(Debug, Default)]
pub(super) struct RedisPrefetch {
    answers: RefCell<PrefetchCache<RedisIdentity, PrefetchedReply>>,
    /// Answers that a write has ended, and that nobody has counted.
    uncounted_discards: Cell<u64>,
}

/// A read that is under way or done.
#[derive(Debug)]
struct PrefetchedReply {
    identity: RedisIdentity,
    reply: JoinHandle<Option<Vec<u8>>>,
}

/// A call of the function has arrived.
pub fn prefetch_reads(visit: &ClientContext) {
    let house = super::state_of(visit);
    let Some(reads) = house.prefetch.get() else {
        return;
    };
    for read in &visit.upstream.destination.egress.prefetch {
        let (function, now) = (&visit.caller.function, Instant::now());
        let Some((how, _)) = reads.answers.borrow().learned_request(function, read) else {
            continue;
        };
        let (room, old) = reads.answers.borrow_mut().has_capacity(function, read, now);
        DestinationCounters::increase(&visit.upstream.counters.prefetch_unused, old);
        if room {
            let answer = spawn_local(issue_read(
                visit.clone(),
                house.clone(),
                read.clone(),
                how.clone(),
            ));
            reads.answers.borrow_mut().record_issued(
                function,
                read,
                PrefetchedReply {
                    identity: how,
                    reply: answer,
                },
                now,
            );
            spawn_local(expire_later(visit.clone(), house.clone()));
        }
    }
}

async fn expire_later(visit: ClientContext, house: Rc<RedisState>) {
    tokio::time::sleep(MAX_ANSWER_AGE).await;
    if let Some(reads) = house.prefetch.get() {
        let old =
            reads.answers.borrow_mut().expire(Instant::now()) + reads.uncounted_discards.take();
        DestinationCounters::increase(&visit.upstream.counters.prefetch_unused, old);
    }
}

async fn issue_read(
    visit: ClientContext,
    house: Rc<RedisState>,
    read: String,
    how: RedisIdentity,
) -> Option<Vec<u8>> {
    let born = Instant::now();
    let deadline = (born + MAX_ANSWER_AGE).into();
    let getting = async {
        let mut kept = match house
            .idle_pool
            .acquire(&visit.upstream, &how, born + MAX_ANSWER_AGE)
            .await
            .ok()?
        {
            AcquireOutcome::Reused(kept) => kept,
            AcquireOutcome::New(lease) => {
                let socket = nearpath_connpool::tls::wrap_lease(
                    lease,
                    &visit.upstream.destination,
                    &visit.upstream.adapters,
                )
                .await
                .ok()?;
                let mut backend = RedisBackend { socket };
                backend
                    .set_up(&visit.upstream.destination, &how)
                    .await
                    .ok()?;
                UsedConnection::new(backend, born)
            }
        };
        match kept
            .connection
            .get_value(read.as_bytes(), MAX_REPLY_BYTES)
            .await
        {
            Ok(reply) => {
                house.idle_pool.give_back(&visit.upstream, &how, kept);
                Some(reply)
            }
            Err(RedisBackendError::Refused(_)) => {
                house.idle_pool.give_back(&visit.upstream, &how, kept);
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

/// Something was written, or may have been: now, and again when its reply has come.
pub(super) fn invalidate(reads: &RedisPrefetch, effect: &CommandEffect) {
    let ended = match effect {
        CommandEffect::Nothing | CommandEffect::Reads(_) => 0,
        CommandEffect::Writes(keys) => {
            let is_about = |read: &str| keys.iter().any(|key| key == read.as_bytes());
            reads.answers.borrow_mut().invalidate(is_about)
        }
        CommandEffect::Anything => reads.answers.borrow_mut().invalidate(|_| true),
    };
    reads
        .uncounted_discards
        .set(reads.uncounted_discards.get() + ended);
}

impl RedisRelay {
    /// Answers a read with the value that was read ahead; waits for it when it is under way. Whether it did.
    pub(super) async fn answer_from_prefetch(&mut self, read: &ValueRead) -> bool {
        let (function, how) = (&self.context.caller.function, self.session.identity());
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
        let Some(declared) = declared.filter(|_| !read.is_mget) else {
            return false;
        };
        let is_same = |issued: &PrefetchedReply| {
            issued.identity.reader() == how.reader() && issued.identity.db() == how.db()
        };
        let (found, old) =
            reads
                .answers
                .borrow_mut()
                .take_answer(function, declared, Instant::now(), is_same);
        reads
            .answers
            .borrow_mut()
            .learn(function, declared, how.clone());
        DestinationCounters::increase(
            &self.context.upstream.counters.prefetch_unused,
            old + reads.uncounted_discards.take(),
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
