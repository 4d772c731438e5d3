//! Cached values of Redis. Pure: time is an argument.
//!
//! A value is keyed by database and key. Only readers who would get the same reply share it: same
//! user, same protocol version. It expires after a set time. A write to its key through the same
//! pool discards it at once; writes by others are not seen.

use std::time::{Duration, Instant};

use super::command_effect::CommandEffect;
use super::settings::ReaderIdentity;
use crate::lru::{ByteBoundedLru, CacheTicket};

/// Bytes cached per function, or per chain that shares a destination.
pub const MAX_CACHE_BYTES: usize = 16 << 20;
/// The longest reply that is cached.
pub const MAX_REPLY_BYTES: usize = 64 << 10;
/// Readers per value; each has a reply of its own.
const MAX_READERS_PER_VALUE: usize = 4;

/// Cached replies of one destination.
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

/// A read whose reply may be cached.
#[derive(Debug)]
pub struct PendingRead {
    ticket: CacheTicket,
    reader: ReaderIdentity,
    requested_at: Instant,
}

impl RedisCache {
    /// Creates an empty cache whose values expire after `time`.
    pub fn new(max_age: Duration) -> Self {
        Self {
            lru: ByteBoundedLru::new(MAX_CACHE_BYTES),
            max_age,
        }
    }

    /// Returns the cached reply to `GET` for a reader.
    pub fn get(
        &mut self,
        db: u32,
        key: &[u8],
        reader: &ReaderIdentity,
        now: Instant,
    ) -> Option<&[u8]> {
        let all = self.lru.get(&cache_key(db, key))?;
        let cached = all
            .iter()
            .find(|cached| cached.reader == *reader && cached.expires_at > now)?;
        Some(&cached.reply)
    }

    /// Begins a read: a reader asks the server.
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

    /// Stores the server's reply in the form of `GET`. Its age counts from the request.
    pub fn store(&mut self, pending: PendingRead, reply: &[u8], now: Instant) {
        let PendingRead {
            ticket,
            reader,
            requested_at: at,
        } = pending;
        if reply.len() > MAX_REPLY_BYTES {
            return;
        }
        // The entry is copied and replaced as a whole: only `put` checks the ticket and counts the
        // bytes.
        let mut all = self.lru.get(ticket.key()).cloned().unwrap_or_default();
        all.retain(|cached| cached.reader != reader && cached.expires_at > now);
        // The new reader needs one place; the readers known longest stay.
        all.truncate(MAX_READERS_PER_VALUE - 1);
        all.push(CachedReply {
            reader,
            reply: reply.to_vec(),
            expires_at: at + self.max_age,
        });
        let content = all
            .iter()
            .map(|cached| {
                cached.reply.len() + size_of::<CachedReply>() + cached.reader.heap_bytes()
            })
            .sum();
        self.lru.put(&ticket, all, content);
    }

    /// Discards what a command may change, when it is sent and again when it is answered. `db`:
    /// `None` if a database change is outstanding.
    pub fn invalidate(&mut self, effect: &CommandEffect, db: Option<u32>) {
        match (effect, db) {
            (CommandEffect::Nothing | CommandEffect::Reads(_), _) => {}
            (CommandEffect::Writes(keys), Some(db)) => keys
                .iter()
                .for_each(|key| self.lru.invalidate_key(&cache_key(db, key))),
            // Without a known database the key may be in any of them.
            (CommandEffect::Writes(_), None) | (CommandEffect::Anything, _) => {
                self.lru.invalidate_all()
            }
        }
    }
}

// A fixed-width prefix keeps databases apart, whatever bytes the key contains.
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
        let (mut cache, start, reader) = new_cache();
        let pending = cache.begin_read(0, b"k", reader.clone(), start);
        cache.store(pending, b"$1\r\nv\r\n", start + Duration::from_secs(2));
        let second = Duration::from_secs(1);
        assert_eq!(
            cache.get(0, b"k", &reader, start + 4 * second),
            Some(&b"$1\r\nv\r\n"[..])
        );
        assert_eq!(cache.get(0, b"k", &reader, start + 5 * second), None);
    }

    #[test]
    fn databases_users_and_versions_are_separate_and_a_write_invalidates_a_database() {
        let (mut cache, now, reader) = new_cache();
        let other = RedisIdentity::default()
            .with_change(&super::super::session_effect::SettingChange::Auth(
                None,
                b"p".to_vec(),
            ))
            .reader();
        for (db, reader) in [(0, &reader), (0, &other), (1, &reader)] {
            let pending = cache.begin_read(db, b"k", reader.clone(), now);
            cache.store(pending, format!("${db}").as_bytes(), now);
        }
        assert!(cache.get(1, b"k", &other, now).is_none());
        cache.invalidate(&CommandEffect::Writes(vec![b"k".to_vec()]), Some(0));
        assert!(
            cache.get(0, b"k", &reader, now).is_none() && cache.get(0, b"k", &other, now).is_none()
        );
        assert!(cache.get(1, b"k", &reader, now).is_some());
        cache.invalidate(&CommandEffect::Writes(vec![b"x".to_vec()]), None);
        assert!(
            cache.get(1, b"k", &reader, now).is_none(),
            "its database is unknown"
        );
    }

    proptest! {
        /// Runs against a server that executes requests at any time between request and reply. A
        /// returned value is never older than the last answered write.
        #[test]
        fn no_answered_write_is_missed(steps in prop::collection::vec((0u8..6, 0u8..3), 1..120)) {
            let (mut cache, now, reader) = new_cache();
            let mut server = [0u32; 3];
            let mut answered = [0u32; 3];
            // Requested but not executed; executed but not answered.
            let (mut reads, mut read, mut writes, mut written) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (turn, (what, key)) in steps.into_iter().enumerate() {
                let effect = CommandEffect::Writes(vec![vec![key]]);
                match what {
                    0 => reads.push((key, cache.begin_read(0, &[key], reader.clone(), now))),
                    1 => {
                        cache.invalidate(&effect, Some(0));
                        writes.push((key, turn as u32 + 1));
                    }
                    2 if !reads.is_empty() => {
                        let (key, pending) = reads.remove(0);
                        read.push((pending, server[key as usize]));
                    }
                    3 if !writes.is_empty() => {
                        let (key, value) = writes.remove(0);
                        server[key as usize] = value;
                        written.push((key, value));
                    }
                    4 if !written.is_empty() => {
                        let (key, value) = written.remove(0);
                        cache.invalidate(&CommandEffect::Writes(vec![vec![key]]), Some(0));
                        answered[key as usize] = value;
                    }
                    5 if !read.is_empty() => {
                        let (pending, value) = read.remove(0);
                        cache.store(pending, &value.to_le_bytes(), now);
                    }
                    _ => {}
                }
                for key in 0..3u8 {
                    if let Some(reply) = cache.get(0, &[key], &reader, now) {
                        prop_assert!(u32::from_le_bytes(reply.try_into().unwrap()) >= answered[key as usize]);
                    }
                }
            }
        }
    }
}
