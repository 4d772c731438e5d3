//! Tickets: they state who may use the rendezvous, under which identity, in which job, until when.
//!
//! The process that starts a job mints one ticket per worker with the rendezvous' key. The
//! rendezvous verifies it without a lookup, so it stores nothing and shares nothing with other
//! instances. A [`RelayToken`] does the same for the two ends of one relay. Both are bearer tokens:
//! the holder may use them any number of times until they expire.

mod key;
mod signed_text;

use std::fmt;
use std::str::FromStr;

use nearpath_types::{FunctionId, FunctionName, InstanceId, Namespace, SpiffeId};
use serde::{Deserialize, Serialize};

use crate::message::{SessionIdHex, SignedToken};

pub use key::{KeyError, RendezvousKey};
pub use signed_text::TokenError;

/// Largest token, in bytes; an identity may take 2048 (SPIFFE-ID section 2.3).
pub const MAX_TOKEN_BYTES: usize = 4096;

/// Name of a job: 1 to 63 of `a-z 0-9 . - _`. Workers see only their own job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

/// Text is no job name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid job name: expected 1 to 63 of a-z, 0-9, '.', '-' and '_'")]
pub struct InvalidJobName;

impl JobName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the default identity of a worker of this job:
    /// `spiffe://JOB/ns/job/fn/NAME/instance/NUMBER`.
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

/// Ticket of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerTicket {
    /// Worker's identity.
    #[serde(with = "crate::message::spiffe")]
    pub worker: SpiffeId,
    /// Worker's job.
    pub job: JobName,
    /// True if reports without a recipient go to this worker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leader: bool,
    /// Expiry in seconds since 1970.
    pub until: u64,
}

/// Token for one end of a session's relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayToken {
    /// Session of the relay.
    pub session: SessionIdHex,
    /// Job of both workers.
    pub job: JobName,
    /// Identity of this end.
    #[serde(with = "crate::message::spiffe")]
    pub worker: SpiffeId,
    /// Identity of the other end.
    #[serde(with = "crate::message::spiffe")]
    pub peer: SpiffeId,
    /// Expiry in seconds since 1970.
    pub until: u64,
}

impl WorkerTicket {
    /// Signs the ticket.
    pub fn mint(&self, key: &RendezvousKey) -> SignedToken {
        signed_text::sign_token(&key.ticket_key(), self)
    }

    /// Reads a ticket without verifying it, for programs that have no key.
    ///
    /// # Errors
    /// Fails when the text is no ticket.
    pub fn read_unverified(text: &str) -> Result<Self, TokenError> {
        signed_text::read_unverified(text)
    }

    /// Verifies a ticket at this time (seconds since 1970).
    ///
    /// # Errors
    /// Fails when the text is no ticket, has another key, or has expired.
    pub fn verify(text: &str, key: &RendezvousKey, unix: u64) -> Result<Self, TokenError> {
        signed_text::verify_token(&key.ticket_key(), text)
            .and_then(|ticket: Self| signed_text::check_expiry(ticket.until, unix).map(|()| ticket))
    }
}

impl RelayToken {
    /// Signs the token.
    pub fn mint(&self, key: &RendezvousKey) -> SignedToken {
        signed_text::sign_token(&key.relay_key(), self)
    }

    /// Verifies a token; see [`WorkerTicket::verify`].
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
