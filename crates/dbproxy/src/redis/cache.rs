//! Values of Redis that are kept to be given again. Pure: time is an argument.
//!
//! A value is known by database and key, and belongs to those who read it in the same words: as the same user, in the same version of the protocol. It is
//! given for a set time, and until somebody writes to its key through the same pool; whoever writes elsewhere is not seen.

use std::time::{Duration, Instant};

use super::command_effect::Effect;
use super::settings::Reader;
use crate::lru::{Larder, Ticket};

/// Bytes of values that are kept for one function, or one chain that shares.
pub const BOUND: usize = 16 << 20;
/// Longest answer that is kept.
pub const LONGEST: usize = 64 << 10;
/// Readers of one value.
const READERS: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct Answers {
    larder: Larder<Vec<Held>>,
    time: Duration,
}

#[derive(Debug, Clone)]
struct Held {
    reader: Reader,
    reply: Vec<u8>,
    until: Instant,
}

/// An answer that may be kept once it has come.
#[derive(Debug)]
pub struct Asked {
    ticket: Ticket,
    reader: Reader,
    at: Instant,
}

impl Answers {
    /// None; each is kept for so long.
    pub fn new(time: Duration) -> Self {
        Self { larder: Larder::new(BOUND), time }
    }

    /// What a reader was told of a key, as `GET` tells it.
    pub fn get(&mut self, db: u32, key: &[u8], reader: &Reader, now: Instant) -> Option<&[u8]> {
        let all = self.larder.get(&of(db, key))?;
        let held = all.iter().find(|held| held.reader == *reader && held.until > now)?;
        Some(&held.reply)
    }

    /// A reader asks the server.
    pub fn ask(&mut self, db: u32, key: &[u8], reader: Reader, now: Instant) -> Asked {
        Asked { ticket: self.larder.ask(&of(db, key)), reader, at: now }
    }

    /// The server's answer, as `GET` gives it. It is as old as its question.
    pub fn put(&mut self, asked: Asked, reply: &[u8], now: Instant) {
        let Asked { ticket, reader, at } = asked;
        if reply.len() > LONGEST {
            return;
        }
        let mut all = self.larder.get(ticket.key()).cloned().unwrap_or_default();
        all.retain(|held| held.reader != reader && held.until > now);
        all.truncate(READERS - 1);
        all.push(Held { reader, reply: reply.to_vec(), until: at + self.time });
        let content = all.iter().map(|held| held.reply.len() + size_of::<Held>() + held.reader.size()).sum();
        self.larder.put(&ticket, all, content);
    }

    /// A command that is sent, or was answered; `db`: in this database, or nobody knows in which.
    pub fn wrote(&mut self, effect: &Effect, db: Option<u32>) {
        match (effect, db) {
            (Effect::Nothing | Effect::Reads(_), _) => {}
            (Effect::Writes(keys), Some(db)) => keys.iter().for_each(|key| self.larder.drop_key(&of(db, key))),
            (Effect::Writes(_), None) | (Effect::Anything, _) => self.larder.clear(),
        }
    }
}

fn of(db: u32, key: &[u8]) -> Vec<u8> {
    [&db.to_le_bytes(), key].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::settings::Identity;
    use super::*;

    fn answers() -> (Answers, Instant, Reader) {
        (Answers::new(Duration::from_secs(5)), Instant::now(), Identity::default().reader())
    }

    #[test]
    fn a_value_is_given_for_its_time_counted_from_its_question() {
        let (mut answers, start, reader) = answers();
        let asked = answers.ask(0, b"k", reader.clone(), start);
        answers.put(asked, b"$1\r\nv\r\n", start + Duration::from_secs(2));
        let second = Duration::from_secs(1);
        assert_eq!(answers.get(0, b"k", &reader, start + 4 * second), Some(&b"$1\r\nv\r\n"[..]));
        assert_eq!(answers.get(0, b"k", &reader, start + 5 * second), None);
    }

    #[test]
    fn databases_users_and_versions_are_apart_and_a_write_ends_all_of_a_database() {
        let (mut answers, now, reader) = answers();
        let other =
            Identity::default().after(&super::super::session_effect::Change::Auth(None, b"p".to_vec())).reader();
        for (db, reader) in [(0, &reader), (0, &other), (1, &reader)] {
            let asked = answers.ask(db, b"k", reader.clone(), now);
            answers.put(asked, format!("${db}").as_bytes(), now);
        }
        assert!(answers.get(1, b"k", &other, now).is_none());
        answers.wrote(&Effect::Writes(vec![b"k".to_vec()]), Some(0));
        assert!(answers.get(0, b"k", &reader, now).is_none() && answers.get(0, b"k", &other, now).is_none());
        assert!(answers.get(1, b"k", &reader, now).is_some());
        answers.wrote(&Effect::Writes(vec![b"x".to_vec()]), None);
        assert!(answers.get(1, b"k", &reader, now).is_none(), "nobody knows where it was written");
    }

    proptest! {
        /// Against a server that does what it is asked at any time between the question and the answer: what is given is never older than the last write
        /// that was answered.
        #[test]
        fn no_write_that_was_answered_is_unseen(steps in prop::collection::vec((0u8..6, 0u8..3), 1..120)) {
            let (mut answers, now, reader) = answers();
            let mut server = [0u32; 3];
            let mut answered = [0u32; 3];
            // Asked and not done; done and not answered.
            let (mut reads, mut read, mut writes, mut written) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (turn, (what, key)) in steps.into_iter().enumerate() {
                let effect = Effect::Writes(vec![vec![key]]);
                match what {
                    0 => reads.push((key, answers.ask(0, &[key], reader.clone(), now))),
                    1 => {
                        answers.wrote(&effect, Some(0));
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
                        answers.wrote(&Effect::Writes(vec![vec![key]]), Some(0));
                        answered[key as usize] = value;
                    }
                    5 if !read.is_empty() => {
                        let (asked, value) = read.remove(0);
                        answers.put(asked, &value.to_le_bytes(), now);
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
