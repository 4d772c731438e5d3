//! Values of Redis that are kept to be given again. Pure: time is an argument.
//!
//! A value is known by database and key, and belongs to those who read it in the same words: as the same user, in the same version of the protocol. It is
//! given for a set time, and until somebody writes to its key through the same pool; whoever writes elsewhere is not seen.

use std::time::{Duration, Instant};

use super::command_effect::CommandEffect;
use super::settings::ReaderIdentity;
use crate::lru::{ByteBoundedLru, CacheTicket};

/// Bytes of values that are kept for one function, or one chain that shares.
pub const MAX_CACHE_BYTES: usize = 16 << 20;
/// Longest answer that is kept.
pub const MAX_REPLY_BYTES: usize = 64 << 10;
/// Readers of one value.
const MAX_READERS_PER_VALUE: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct RedisCache {
    lru: ByteBoundedLru<Vec<CachedReply>>,
    max_age: Duration,
}

#[derive(Debug, Clone)]
struct CachedReply {
    reader: ReaderIdentity,
    reply: Vec<u8>,
    expires_at: Instant,
}

/// An answer that may be kept once it has come.
#[derive(Debug)]
pub struct PendingRead {
    ticket: CacheTicket,
    reader: ReaderIdentity,
    requested_at: Instant,
}

impl RedisCache {
    /// None; each is kept for so long.
    pub fn new(max_age: Duration) -> Self {
        Self {
            lru: ByteBoundedLru::new(MAX_CACHE_BYTES),
            max_age,
        }
    }

    /// What a reader was told of a key, as `GET` tells it.
    pub fn get(
        &mut self,
        db: u32,
        key: &[u8],
        reader: &ReaderIdentity,
        now: Instant,
    ) -> Option<&[u8]> {
        let all = self.lru.get(&cache_key(db, key))?;
        let held = all
            .iter()
            .find(|held| held.reader == *reader && held.expires_at > now)?;
        Some(&held.reply)
    }

    /// A reader asks the server.
    pub fn begin_read(
        &mut self,
        db: u32,
        key: &[u8],
        reader: ReaderIdentity,
        now: Instant,
    ) -> PendingRead {
        PendingRead {
            ticket: self.lru.issue_ticket(&cache_key(db, key)),
            reader,
            requested_at: now,
        }
    }

    /// The server's answer, as `GET` gives it. It is as old as its question.
    pub fn store(&mut self, asked: PendingRead, reply: &[u8], now: Instant) {
        let PendingRead {
            ticket,
            reader,
            requested_at: at,
        } = asked;
        if reply.len() > MAX_REPLY_BYTES {
            return;
        }
        let mut all = self.lru.get(ticket.key()).cloned().unwrap_or_default();
        all.retain(|held| held.reader != reader && held.expires_at > now);
        all.truncate(MAX_READERS_PER_VALUE - 1);
        all.push(CachedReply {
            reader,
            reply: reply.to_vec(),
            expires_at: at + self.max_age,
        });
        let content = all
            .iter()
            .map(|held| held.reply.len() + size_of::<CachedReply>() + held.reader.heap_bytes())
            .sum();
        self.lru.put(&ticket, all, content);
    }

    /// A command that is sent, or was answered; `db`: in this database, or nobody knows in which.
    pub fn invalidate(&mut self, effect: &CommandEffect, db: Option<u32>) {
        match (effect, db) {
            (CommandEffect::Nothing | CommandEffect::Reads(_), _) => {}
            (CommandEffect::Writes(keys), Some(db)) => keys
                .iter()
                .for_each(|key| self.lru.invalidate_key(&cache_key(db, key))),
            (CommandEffect::Writes(_), None) | (CommandEffect::Anything, _) => {
                self.lru.invalidate_all()
            }
        }
    }
}

fn cache_key(db: u32, key: &[u8]) -> Vec<u8> {
    [&db.to_le_bytes(), key].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::settings::RedisIdentity;
    use super::*;

    fn new_cache() -> (RedisCache, Instant, ReaderIdentity) {
        (
            RedisCache::new(Duration::from_secs(5)),
            Instant::now(),
            RedisIdentity::default().reader(),
        )
    }

    #[test]
    fn a_value_expires_counted_from_its_request() {
        let (mut answers, start, reader) = new_cache();
        let asked = answers.begin_read(0, b"k", reader.clone(), start);
        answers.store(asked, b"$1\r\nv\r\n", start + Duration::from_secs(2));
        let second = Duration::from_secs(1);
        assert_eq!(
            answers.get(0, b"k", &reader, start + 4 * second),
            Some(&b"$1\r\nv\r\n"[..])
        );
        assert_eq!(answers.get(0, b"k", &reader, start + 5 * second), None);
    }

    #[test]
    fn databases_users_and_versions_are_separate_and_a_write_invalidates_a_database() {
        let (mut answers, now, reader) = new_cache();
        let other = RedisIdentity::default()
            .with_change(&super::super::session_effect::SettingChange::Auth(
                None,
                b"p".to_vec(),
            ))
            .reader();
        for (db, reader) in [(0, &reader), (0, &other), (1, &reader)] {
            let asked = answers.begin_read(db, b"k", reader.clone(), now);
            answers.store(asked, format!("${db}").as_bytes(), now);
        }
        assert!(answers.get(1, b"k", &other, now).is_none());
        answers.invalidate(&CommandEffect::Writes(vec![b"k".to_vec()]), Some(0));
        assert!(
            answers.get(0, b"k", &reader, now).is_none()
                && answers.get(0, b"k", &other, now).is_none()
        );
        assert!(answers.get(1, b"k", &reader, now).is_some());
        answers.invalidate(&CommandEffect::Writes(vec![b"x".to_vec()]), None);
        assert!(
            answers.get(1, b"k", &reader, now).is_none(),
            "nobody knows where it was written"
        );
    }

    proptest! {
        /// Against a server that does what it is asked at any time between the question and the answer: what is given is never older than the last write
        /// that was answered.
        #[test]
        fn no_write_that_was_answered_is_unseen(steps in prop::collection::vec((0u8..6, 0u8..3), 1..120)) {
            let (mut answers, now, reader) = new_cache();
            let mut server = [0u32; 3];
            let mut answered = [0u32; 3];
            // Asked and not done; done and not answered.
            let (mut reads, mut read, mut writes, mut written) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (turn, (what, key)) in steps.into_iter().enumerate() {
                let effect = CommandEffect::Writes(vec![vec![key]]);
                match what {
                    0 => reads.push((key, answers.begin_read(0, &[key], reader.clone(), now))),
                    1 => {
                        answers.invalidate(&effect, Some(0));
                        writes.push((key, turn as u32 + 1));
                    }
                    2 if !reads.is_empty() => {
                        let (key, asked) = reads.remove(0);
                        read.push((asked, server[key as usize]));
                    }
                    3 if !writes.is_empty() => {
                        let (key, value) = writes.remove(0);
                        server[key as usize] = value;
                        written.push((key, value));
                    }
                    4 if !written.is_empty() => {
                        let (key, value) = written.remove(0);
                        answers.invalidate(&CommandEffect::Writes(vec![vec![key]]), Some(0));
                        answered[key as usize] = value;
                    }
                    5 if !read.is_empty() => {
                        let (asked, value) = read.remove(0);
                        answers.store(asked, &value.to_le_bytes(), now);
                    }
                    _ => {}
                }
                for key in 0..3u8 {
                    if let Some(reply) = answers.get(0, &[key], &reader, now) {
                        prop_assert!(u32::from_le_bytes(reply.try_into().unwrap()) >= answered[key as usize]);
                    }
                }
            }
        }
    }
}
