//! Tickets: who may speak with the rendezvous, as whom, in which job, until when.
//!
//! Whoever starts a job mints one for each worker with the rendezvous' key; the rendezvous checks it without looking
//! anything up, so it has nothing to store and nothing to share with others of its kind. A [`RelayToken`] is the same for the
//! two ends of one relay. Neither is more than its text: who has it may use it, any number of times, until it ends.

mod key;
mod signed_text;

use std::fmt;
use std::str::FromStr;

use nearpath_types::{FunctionId, FunctionName, InstanceId, Namespace, SpiffeId};
use serde::{Deserialize, Serialize};

use crate::message::{SessionIdHex, SignedToken};

pub use key::{KeyError, RendezvousKey};
pub use signed_text::TokenError;

/// The longest ticket or pass, in bytes; an identity may take 2048 (SPIFFE-ID, section 2.3).
pub const MAX_TOKEN_BYTES: usize = 4096;

/// A job's name: 1 to 63 of `a-z 0-9 . - _`. A job is what workers have in common; those of others do not exist for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

/// Why a text names no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job's name is 1 to 63 of a-z, 0-9, '.', '-' and '_'")]
pub struct InvalidJobName;

impl JobName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The identity of a worker of this job where nobody has given it another: `spiffe://JOB/ns/job/fn/NAME/instance/NUMBER`.
    pub fn worker_identity(&self, name: &FunctionName, number: u64) -> SpiffeId {
        let namespace: Namespace = "job".parse().expect("three letters are a label");
        SpiffeId::for_instance(
            &self.0,
            FunctionId {
                name: name.clone(),
                namespace,
            },
            InstanceId(number),
        )
    }
}

impl FromStr for JobName {
    type Err = InvalidJobName;

    fn from_str(text: &str) -> Result<Self, InvalidJobName> {
        let is_allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_')
        };
        let is_valid = (1..=63).contains(&text.len()) && text.bytes().all(is_allowed);
        if is_valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidJobName)
        }
    }
}

impl TryFrom<String> for JobName {
    type Error = InvalidJobName;

    fn try_from(text: String) -> Result<Self, InvalidJobName> {
        text.parse()
    }
}

impl From<JobName> for String {
    fn from(job: JobName) -> Self {
        job.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A worker's ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerTicket {
    /// Who the worker is.
    #[serde(with = "crate::message::spiffe")]
    pub you: SpiffeId,
    /// In which job.
    pub job: JobName,
    /// Reports that name nobody go to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leader: bool,
    /// Seconds since 1970 at which it ends.
    pub until: u64,
}

/// One end of a session's relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayToken {
    /// Which session.
    pub session: SessionIdHex,
    /// In which job.
    pub job: JobName,
    /// Who comes.
    #[serde(with = "crate::message::spiffe")]
    pub you: SpiffeId,
    /// Who is expected at the other end.
    #[serde(with = "crate::message::spiffe")]
    pub peer: SpiffeId,
    /// Seconds since 1970 at which it ends.
    pub until: u64,
}

impl WorkerTicket {
    /// Its text.
    pub fn mint(&self, key: &RendezvousKey) -> SignedToken {
        signed_text::sign_token(&key.ticket_key(), self)
    }

    /// What a text says of itself, for who has no key: only the rendezvous can tell whether it is true.
    ///
    /// # Errors
    /// When it is no ticket.
    pub fn read_unverified(text: &str) -> Result<Self, TokenError> {
        signed_text::read_unverified(text)
    }

    /// Reads a text, at this time (seconds since 1970).
    ///
    /// # Errors
    /// When it is none, was made with another key, or has ended.
    pub fn verify(text: &str, key: &RendezvousKey, unix: u64) -> Result<Self, TokenError> {
        signed_text::verify_token(&key.ticket_key(), text)
            .and_then(|ticket: Self| signed_text::check_expiry(ticket.until, unix).map(|()| ticket))
    }
}

impl RelayToken {
    /// Its text.
    pub fn mint(&self, key: &RendezvousKey) -> SignedToken {
        signed_text::sign_token(&key.relay_key(), self)
    }

    /// See [`Ticket::open`].
    ///
    /// # Errors
    /// See there.
    pub fn verify(text: &str, key: &RendezvousKey, unix: u64) -> Result<Self, TokenError> {
        signed_text::verify_token(&key.relay_key(), text)
            .and_then(|token: Self| signed_text::check_expiry(token.until, unix).map(|()| token))
    }
}

#[cfg(test)]
mod tests;
