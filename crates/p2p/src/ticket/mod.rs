//! Tickets: who may speak with the rendezvous, as whom, in which job, until when.
//!
//! Whoever starts a job mints one for each worker with the rendezvous' key; the rendezvous checks it without looking
//! anything up, so it has nothing to store and nothing to share with others of its kind. A [`Crossing`] is the same for the
//! two ends of one relay. Neither is more than its text: who has it may use it, any number of times, until it ends.

mod key;
mod signed_text;

use std::fmt;
use std::str::FromStr;

use nearpath_types::{FunctionId, FunctionName, InstanceId, Namespace, SpiffeId};
use serde::{Deserialize, Serialize};

use crate::message::{Pass, SessionText};

pub use key::{Key, KeyError};
pub use signed_text::BadSeal;

/// The longest ticket or pass, in bytes; an identity may take 2048 (SPIFFE-ID, section 2.3).
pub const LONGEST: usize = 4096;

/// A job's name: 1 to 63 of `a-z 0-9 . - _`. A job is what workers have in common; those of others do not exist for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Job(String);

/// Why a text names no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job's name is 1 to 63 of a-z, 0-9, '.', '-' and '_'")]
pub struct InvalidJob;

impl Job {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The identity of a worker of this job where nobody has given it another: `spiffe://JOB/ns/job/fn/NAME/instance/NUMBER`.
    pub fn worker(&self, name: &FunctionName, number: u64) -> SpiffeId {
        let namespace: Namespace = "job".parse().expect("three letters are a label");
        SpiffeId::instance(&self.0, FunctionId { name: name.clone(), namespace }, InstanceId(number))
    }
}

impl FromStr for Job {
    type Err = InvalidJob;

    fn from_str(text: &str) -> Result<Self, InvalidJob> {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
        let fits = (1..=63).contains(&text.len()) && text.bytes().all(good);
        if fits { Ok(Self(text.to_owned())) } else { Err(InvalidJob) }
    }
}

impl TryFrom<String> for Job {
    type Error = InvalidJob;

    fn try_from(text: String) -> Result<Self, InvalidJob> {
        text.parse()
    }
}

impl From<Job> for String {
    fn from(job: Job) -> Self {
        job.0
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A worker's ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Who the worker is.
    #[serde(with = "crate::message::spiffe")]
    pub you: SpiffeId,
    /// In which job.
    pub job: Job,
    /// Reports that name nobody go to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leader: bool,
    /// Seconds since 1970 at which it ends.
    pub until: u64,
}

/// One end of a session's relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossing {
    /// Which session.
    pub session: SessionText,
    /// In which job.
    pub job: Job,
    /// Who comes.
    #[serde(with = "crate::message::spiffe")]
    pub you: SpiffeId,
    /// Who is expected at the other end.
    #[serde(with = "crate::message::spiffe")]
    pub peer: SpiffeId,
    /// Seconds since 1970 at which it ends.
    pub until: u64,
}

impl Ticket {
    /// Its text.
    pub fn mint(&self, key: &Key) -> Pass {
        signed_text::seal(&key.tickets(), self)
    }

    /// What a text says of itself, for who has no key: only the rendezvous can tell whether it is true.
    ///
    /// # Errors
    /// When it is no ticket.
    pub fn claims(text: &str) -> Result<Self, BadSeal> {
        signed_text::unproven(text)
    }

    /// Reads a text, at this time (seconds since 1970).
    ///
    /// # Errors
    /// When it is none, was made with another key, or has ended.
    pub fn open(text: &str, key: &Key, unix: u64) -> Result<Self, BadSeal> {
        signed_text::open(&key.tickets(), text)
            .and_then(|ticket: Self| signed_text::in_time(ticket.until, unix).map(|()| ticket))
    }
}

impl Crossing {
    /// Its text.
    pub fn mint(&self, key: &Key) -> Pass {
        signed_text::seal(&key.crossings(), self)
    }

    /// See [`Ticket::open`].
    ///
    /// # Errors
    /// See there.
    pub fn open(text: &str, key: &Key, unix: u64) -> Result<Self, BadSeal> {
        signed_text::open(&key.crossings(), text)
            .and_then(|pass: Self| signed_text::in_time(pass.until, unix).map(|()| pass))
    }
}

#[cfg(test)]
mod tests;
