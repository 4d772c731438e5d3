//! Messages between a worker and the rendezvous on a control connection.
//!
//! Messages are JSON, one object per WebSocket text frame; [`RelayedFrame`]s are binary.
//! [`WorkerMessage`] goes up, [`RendezvousMessage`] comes down; `contract/rendezvous.md` documents
//! both with examples. The rendezvous reads names and sizes and forwards the rest: session messages
//! to the other side, reports to the job's leader. Unknown fields and types are ignored, so either
//! side can be upgraded first.

mod encoding;
mod relayed_frame;
mod report;
mod session_message;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::punch::session::PunchGrant;
use nearpath_types::SpiffeId;
use serde::{Deserialize, Serialize};

pub use encoding::{Base64Bytes, HexBytes, SignedToken};
pub use session_message::{NotPunchMessage, OfferedCandidate, SessionMessage};

pub use relayed_frame::{
    MAX_PAYLOAD_BYTES, MAX_RELAYED_FRAME_BYTES, RelayedFrame, detach_small_frame,
};
pub use report::{JobReport, MAX_REPORT_BYTES};

/// Largest text frame of a control connection, in bytes.
pub const MAX_TEXT_BYTES: usize = 8 * 1024;

/// Largest subject of a call, in bytes.
pub const MAX_ABOUT_BYTES: usize = 128;

/// Largest hello of a call, in bytes.
pub const MAX_HELLO_BYTES: usize = 2048;

/// Session number as 32 hexadecimal digits.
pub type SessionIdHex = HexBytes<16>;

/// Message of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WorkerMessage {
    /// Requests an introduction to a worker of the same job. [`RendezvousMessage::Granted`] or
    /// [`RendezvousMessage::Refused`] follows.
    Call {
        /// Worker's own number of the call; the response repeats it.
        call: u32,
        /// Worker to call.
        #[serde(with = "spiffe")]
        peer: SpiffeId,
        /// Subject of the call, for the peer; the rendezvous does not read it. At most
        /// [`MAX_ABOUT_BYTES`] bytes.
        #[serde(default)]
        about: String,
        /// Time to wait for an absent peer, in milliseconds. The rendezvous has an upper bound.
        within: u32,
        /// First bytes of the stream between the two, as in a [`RelayedFrame`]. At most
        /// [`MAX_HELLO_BYTES`] bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hello: Option<Base64Bytes>,
    },
    /// Forwards a message to the other side of a session.
    SessionMessage {
        /// Session of the message.
        session: SessionIdHex,
        /// Message to forward.
        message: SessionMessage,
    },
    /// Ends this worker's need for the session.
    CloseSession {
        /// Session that is no longer needed.
        session: SessionIdHex,
    },
    /// Forwards a report about the job's work.
    Report {
        /// Recipient; `None`: the job's leader.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "spiffe::option"
        )]
        to: Option<SpiffeId>,
        /// Report to forward.
        report: JobReport,
    },
}

impl WorkerMessage {
    /// Parses a text frame. `None`: too long, or no such message.
    pub fn parse(text: &str) -> Option<Self> {
        let message: Self = Some(text)
            .filter(|text| text.len() <= MAX_TEXT_BYTES)
            .and_then(|text| serde_json::from_str(text).ok())?;
        match &message {
            // The limit is the report's own; the text holds its envelope, too, so a longer text is
            // measured again.
            Self::Report { report, .. } if text.len() > MAX_REPORT_BYTES => {
                report.is_within_limit().then_some(message)
            }
            _ => Some(message),
        }
    }
}

/// Message of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RendezvousMessage {
    /// First message: the connection is accepted.
    Welcome(ControlWelcome),
    /// Session is granted, by this worker's call or a peer's.
    Granted(SessionGrant),
    /// Call is refused.
    Refused {
        /// Worker's own number of the call.
        call: u32,
        /// Reason of the refusal.
        reason: CallRefusal,
    },
    /// Message of the other side of a session.
    SessionMessage {
        /// Session of the message.
        session: SessionIdHex,
        /// Forwarded message.
        message: SessionMessage,
    },
    /// Session is closed at the rendezvous. An existing stream stays.
    SessionClosed {
        /// Closed session.
        session: SessionIdHex,
        /// Reason of the close.
        reason: SessionCloseReason,
    },
    /// Report of a worker of the job.
    Report {
        /// Reporting worker.
        #[serde(with = "spiffe")]
        from: SpiffeId,
        /// Forwarded report.
        report: JobReport,
    },
    /// Report was not forwarded: the recipient has no control connection.
    Undelivered {
        /// Intended recipient; `None`: the job's leader.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "spiffe::option"
        )]
        to: Option<SpiffeId>,
    },
    /// Control connection ends.
    Close {
        /// Reason of the end.
        reason: CloseReason,
    },
}

/// First message of a control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlWelcome {
    /// Worker's identity, by its ticket.
    #[serde(with = "spiffe")]
    pub worker: SpiffeId,
    /// Worker's job.
    pub job: String,
    /// True if the worker leads its job.
    #[serde(default)]
    pub leader: bool,
    /// Worker's address, as the rendezvous sees it.
    pub mapped_addr: SocketAddr,
    /// Milliseconds until the ticket expires, and the connection with it.
    pub lifetime_ms: u64,
    /// Access to the observers.
    pub observe: ObserverAccess,
}

/// Access to the observers, which report mapped addresses (`contract/rendezvous.md`, "Observing").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserverAccess {
    /// Token that identifies the worker.
    pub token: HexBytes<16>,
    /// HMAC key of requests and responses.
    pub key: HexBytes<32>,
    /// Observers: at most four over UDP and four over TCP.
    pub servers: Vec<ObserverAddress>,
}

/// Address of one observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserverAddress {
    /// Transport of the observer.
    #[serde(with = "session_message::transport")]
    pub transport: crate::punch::Transport,
    /// Address and port of the observer.
    pub addr: SocketAddr,
    /// True if it is on the rendezvous' second address.
    #[serde(default)]
    pub second_address: bool,
    /// True if it is on the second port of its address.
    #[serde(default)]
    pub second_port: bool,
}

/// Session, as one of its two sides receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGrant {
    /// Number of this worker's own call; `None`: the peer called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
    /// Identity of the peer.
    #[serde(with = "spiffe")]
    pub peer: SpiffeId,
    /// Subject of the call, as the caller set it.
    #[serde(default)]
    pub about: String,
    /// Number of the session.
    pub session: SessionIdHex,
    /// Secret that both sides and the rendezvous know.
    pub secret: HexBytes<32>,
    /// Expiry in seconds since 1970; part of the probes' key.
    pub expires: u64,
    /// Milliseconds until expiry, for clocks that are wrong.
    pub lifetime_ms: u64,
    /// Token for this side of the session's relay.
    pub relay_token: SignedToken,
    /// Caller's hello, for the called side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello: Option<Base64Bytes>,
}

impl SessionGrant {
    /// Returns the punching part of the grant, and its expiry by this machine's clock.
    pub fn punch_grant(&self, now: Instant) -> (PunchGrant, Instant) {
        let grant = PunchGrant {
            id: self.session.0,
            secret: self.secret.0,
            expires: self.expires,
        };
        // An absurd lifetime would overflow `Instant`.
        (
            grant,
            now + Duration::from_millis(self.lifetime_ms.min(MAX_SESSION_LIFETIME_MS)),
        )
    }
}

/// Longest lifetime of a session, in milliseconds: a week. A longer one is not believed.
const MAX_SESSION_LIFETIME_MS: u64 = 7 * 24 * 3600 * 1000;

/// Reason why there is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum CallRefusal {
    /// Peer did not connect in time.
    #[error(
        "the peer did not connect to the rendezvous in time: check that it runs, with a ticket of the same job"
    )]
    Absent,
    /// Worker called itself.
    #[error("the call names the caller itself: call another worker")]
    SelfCall,
    /// Worker or job has as many sessions or waiting calls as the rendezvous allows.
    #[error(
        "too many sessions or waiting calls of the worker or its job: end some, or raise the rendezvous' limits"
    )]
    TooMany,
    /// Subject or hello is too long.
    #[error(
        "the call's subject exceeds {MAX_ABOUT_BYTES} bytes, or its hello {MAX_HELLO_BYTES}: send the rest on the connection"
    )]
    TooLong,
    /// Reason that this version does not know.
    #[error("the rendezvous refused the call for a reason unknown to this version")]
    #[serde(other)]
    Unknown,
}

/// Reason why a session is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionCloseReason {
    /// Other side no longer needs it.
    Peer,
    /// Session has expired.
    Expired,
    /// Session does not exist: expired, of other workers, or of the rendezvous' previous process.
    NoSuch,
    /// Other side has no control connection, and its queue of messages is full.
    Absent,
    /// Reason that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Reason why a control connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// Rendezvous is shutting down; another process may be up already.
    #[error("the rendezvous is shutting down")]
    Draining,
    /// Same worker has a newer connection.
    #[error("the same worker has a newer connection: is it running twice?")]
    Displaced,
    /// Ticket has expired.
    #[error("the ticket has expired: get a new one")]
    Expired,
    /// Worker sent no message of this contract.
    #[error("the worker sent an invalid message: use the version of the rendezvous")]
    Unreadable,
    /// Worker does not read.
    #[error("the worker does not read its messages")]
    Slow,
    /// Job has as many workers as the rendezvous allows.
    #[error("the job has as many workers as the rendezvous allows")]
    TooMany,
    /// Reason that this version does not know.
    #[error("the rendezvous closed the connection for a reason unknown to this version")]
    #[serde(other)]
    Unknown,
}

impl CloseReason {
    /// Returns whether reconnecting with the same ticket cannot succeed.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Displaced | Self::Expired | Self::Unreadable)
    }
}

/// Identities as text.
pub(crate) mod spiffe {
    use nearpath_types::SpiffeId;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(id: &SpiffeId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SpiffeId, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }

    pub(crate) mod option {
        use super::*;

        pub(crate) fn serialize<S: Serializer>(
            id: &Option<SpiffeId>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match id {
                Some(id) => to.collect_str(id),
                None => to.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<SpiffeId>, D::Error> {
            let text = Option::<String>::deserialize(from)?;
            text.map(|text| text.parse().map_err(de::Error::custom))
                .transpose()
        }
    }
}

#[cfg(test)]
mod tests;
