//! What a worker and the rendezvous say to each other on a line: JSON, one object a WebSocket text frame, and [`Parcel`]s.
//!
//! [`Said`] goes up, [`Told`] comes down; `contract/rendezvous.md` holds the same in words, with examples. The rendezvous
//! reads names and sizes, and passes the rest on: words about a session to the session's other side, reports to the job's
//! leader. What nobody knows is ignored, so both sides can learn words one after the other.

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

/// The longest text of a line, in bytes.
pub const MAX_TEXT_BYTES: usize = 8 * 1024;

/// The longest text that says what a call is about, in bytes.
pub const LONGEST_ABOUT: usize = 128;

/// The longest hello of a call, in bytes.
pub const LONGEST_HELLO: usize = 2048;

/// A session's number as it is written: 32 hexadecimal digits.
pub type SessionIdHex = HexBytes<16>;

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WorkerMessage {
    /// Introduce me to this worker of my job: [`Told::SessionGrant`] or [`Told::CandidateError`] follows.
    Call {
        /// The worker's own number of the call, which the answer bears.
        call: u32,
        /// Whom.
        #[serde(with = "spiffe")]
        peer: SpiffeId,
        /// What for; the peer reads it, the rendezvous does not. At most [`LONGEST_ABOUT`].
        #[serde(default)]
        about: String,
        /// How long to wait for a peer that is not here yet, in milliseconds. The rendezvous has its own upper bound.
        within: u32,
        /// The first bytes of the way between the two, as in a [`Parcel`]. At most [`LONGEST_HELLO`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hello: Option<Base64Bytes>,
    },
    /// Say this to the other side of a session.
    Tell {
        /// Which.
        session: SessionIdHex,
        /// What.
        word: SessionMessage,
    },
    /// I need the rendezvous no longer for this session.
    HangUp {
        /// Which.
        session: SessionIdHex,
    },
    /// Say this about the job's work.
    Report {
        /// To whom; nobody named: to the job's leader.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "spiffe::option"
        )]
        to: Option<SpiffeId>,
        /// What.
        report: JobReport,
    },
}

impl WorkerMessage {
    /// Reads what came on a line; `NoConnection`: it is too long, or no such message.
    pub fn parse(text: &str) -> Option<Self> {
        let message: Self = Some(text)
            .filter(|text| text.len() <= MAX_TEXT_BYTES)
            .and_then(|text| serde_json::from_str(text).ok())?;
        match &message {
            Self::Report { report, .. } if text.len() > MAX_REPORT_BYTES => {
                report.is_within_limit().then_some(message)
            }
            _ => Some(message),
        }
    }
}

/// What a worker is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RendezvousMessage {
    /// The line is there.
    Welcome(ControlWelcome),
    /// There is a session: one's own call came through, or somebody called.
    Granted(SessionGrant),
    /// A call came to nothing.
    Refused {
        /// The worker's own number of the call.
        call: u32,
        /// Why.
        why: CallRefusal,
    },
    /// The other side of a session says this.
    Tell {
        /// Which.
        session: SessionIdHex,
        /// What.
        word: SessionMessage,
    },
    /// The rendezvous passes nothing on for this session any longer. A way that is there stays.
    HungUp {
        /// Which.
        session: SessionIdHex,
        /// Why.
        why: HangUpReason,
    },
    /// A worker of the job says this about its work.
    Report {
        /// Who.
        #[serde(with = "spiffe")]
        from: SpiffeId,
        /// What.
        report: JobReport,
    },
    /// A report was not passed on: nobody of that name has a line.
    Undelivered {
        /// Who was meant; nobody named: the job's leader.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "spiffe::option"
        )]
        to: Option<SpiffeId>,
    },
    /// The line ends.
    Bye {
        /// Why.
        why: CloseReason,
    },
}

/// The first message of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlWelcome {
    /// Who one is, by the ticket.
    #[serde(with = "spiffe")]
    pub you: SpiffeId,
    /// In which job.
    pub job: String,
    /// Whether one is its leader.
    #[serde(default)]
    pub leader: bool,
    /// Where the line comes from, as the rendezvous sees it.
    pub seen: SocketAddr,
    /// Milliseconds until the ticket ends, and the line with it.
    pub life: u64,
    /// Where to ask how one is seen from outside.
    pub observe: ObserverAccess,
}

/// How to ask how a socket is seen from outside (`contract/rendezvous.md`, "Observing").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserverAccess {
    /// Names the one who asks.
    pub token: HexBytes<16>,
    /// The key of questions and answers.
    pub key: HexBytes<32>,
    /// Whom to ask: at most four over UDP and four over TCP.
    pub servers: Vec<ObserverAddress>,
}

/// One address that tells who asks where it sees him.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserverAddress {
    /// Over what.
    #[serde(with = "session_message::transport")]
    pub transport: crate::punch::Transport,
    /// Where.
    pub addr: SocketAddr,
    /// It is on the rendezvous' second address.
    #[serde(default)]
    pub second_address: bool,
    /// It is on the second port of its address.
    #[serde(default)]
    pub second_port: bool,
}

/// A session, as one of its two sides is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGrant {
    /// The number of one's own call; none: the peer called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
    /// With whom.
    #[serde(with = "spiffe")]
    pub peer: SpiffeId,
    /// What for, as the caller put it.
    #[serde(default)]
    pub about: String,
    /// Its number.
    pub session: SessionIdHex,
    /// Known to both and to the rendezvous.
    pub secret: HexBytes<32>,
    /// Seconds since 1970 at which it ends; part of the probes' key.
    pub expires: u64,
    /// Milliseconds until then, for clocks that are wrong.
    pub life: u64,
    /// Opens this side of the session's relay.
    pub pass: SignedToken,
    /// The caller's hello, for the one who was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello: Option<Base64Bytes>,
}

impl SessionGrant {
    /// What the punching machine needs of it, with the end by this machine's clock.
    pub fn punch_grant(&self, now: Instant) -> (PunchGrant, Instant) {
        let grant = PunchGrant {
            id: self.session.0,
            secret: self.secret.0,
            expires: self.expires,
        };
        (
            grant,
            now + Duration::from_millis(self.life.min(MAX_SESSION_LIFE_MS)),
        )
    }
}

/// No session lives longer than a week: what a rendezvous says beyond that is not believed.
const MAX_SESSION_LIFE_MS: u64 = 7 * 24 * 3600 * 1000;

/// Why there is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum CallRefusal {
    /// It has not come in time.
    #[error(
        "the peer did not come to the rendezvous in time: look whether it was started, with a ticket of the same job"
    )]
    Absent,
    /// One calls oneself.
    #[error("the peer is the caller itself: call another worker")]
    Oneself,
    /// More sessions or waiting calls than the rendezvous allows one worker or one job.
    #[error(
        "the worker or its job has as many sessions or waiting calls as the rendezvous allows: hang up, or raise its limits"
    )]
    TooMany,
    /// The call's text or its hello is too long.
    #[error(
        "what the call is about takes more than {LONGEST_ABOUT} bytes, or its hello more than {LONGEST_HELLO}: say it on the connection"
    )]
    TooLong,
    /// What is not known here.
    #[error("the rendezvous refused the call for a reason that this version does not know")]
    #[serde(other)]
    Unknown,
}

/// Why nothing is passed on for a session any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HangUpReason {
    /// The other side needs it no longer.
    Peer,
    /// It has come to its end.
    Expired,
    /// There is no such session: it has ended, was never yours, or the rendezvous has started anew.
    NoSuch,
    /// The other side has no line, and more is to be told to it than is kept.
    Absent,
    /// What is not known here.
    #[serde(other)]
    Unknown,
}

/// Why a line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// The rendezvous is going down; another one may be up already.
    #[error("the rendezvous is going down")]
    Draining,
    /// The same worker has a newer line.
    #[error("the same worker has come with a newer line: is it running twice?")]
    Displaced,
    /// The ticket has come to its end.
    #[error("the ticket has come to its end: get a new one")]
    Expired,
    /// What was said is no message of this contract.
    #[error("what the worker said is no message that the rendezvous reads")]
    Unreadable,
    /// The worker does not read what it is told.
    #[error("the worker does not read what it is told")]
    Slow,
    /// The job has as many workers as the rendezvous allows.
    #[error("the job has as many workers as the rendezvous allows")]
    TooMany,
    /// What is not known here.
    #[error("the rendezvous ended the line for a reason that this version does not know")]
    #[serde(other)]
    Unknown,
}

impl CloseReason {
    /// Whether coming again with the same ticket is of any use.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Displaced | Self::Expired | Self::Unreadable)
    }
}

/// Identities are written as their text.
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
