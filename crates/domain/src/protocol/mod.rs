//! Messages of `contract/dispatch.md`: one JSON object per packet, with one known member.
//!
//! Readers ignore unknown messages and members, so both sides can be upgraded independently.

mod channels;
mod handshake;
#[cfg(test)]
mod tests;
mod types;

use serde::{Deserialize, Serialize};

pub use channels::{
    ChannelBroken, ChannelDrained, ChannelError, ChannelFailed, ChannelGone, EdgeTerms, PeerMessage,
};
pub use handshake::{HelloMessage, OwnPoolMessage, RefusedMessage, WelcomeMessage};
pub use types::{ChannelEnding, ChannelRole, DeliveryMode, DomainIsolation, WakeupMode};

/// Maximum bytes of a packet.
pub const MAX_PACKET_BYTES: usize = 4096;
/// Version of the protocol.
pub const PROTOCOL_VERSION: u32 = 1;

/// Message from an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointMessage {
    /// See [`HelloMessage`].
    Hello(HelloMessage),
    /// The endpoint serves calls from now on.
    Ready {},
    /// See [`OwnPoolMessage`].
    Pool(OwnPoolMessage),
    /// See [`ChannelDrained`].
    Drained(ChannelDrained),
    /// See [`ChannelBroken`].
    Broken(ChannelBroken),
}

/// Message from the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeMessage {
    /// See [`WelcomeMessage`].
    Welcome(WelcomeMessage),
    /// See [`RefusedMessage`].
    Refused(RefusedMessage),
    /// See [`PeerMessage`].
    Peer(PeerMessage),
    /// See [`ChannelGone`].
    Gone(ChannelGone),
    /// See [`ChannelFailed`].
    Failed(ChannelFailed),
}

/// Reason why a packet is invalid; its sender is faulty.
#[derive(Debug, thiserror::Error)]
pub enum DispatchMessageError {
    /// Not JSON, or a member of the wrong type.
    #[error("the packet is not a message of the dispatch protocol: {0}")]
    Json(#[from] serde_json::Error),
    /// More than one message.
    #[error("the packet holds more than one message")]
    Several,
}

impl EndpointMessage {
    /// Parses a packet; `None` for a message that this version does not know.
    pub fn parse_packet(packet: &[u8]) -> Result<Option<Self>, DispatchMessageError> {
        #[derive(Deserialize)]
        struct KnownMembers {
            hello: Option<HelloMessage>,
            ready: Option<serde::de::IgnoredAny>,
            pool: Option<OwnPoolMessage>,
            drained: Option<ChannelDrained>,
            broken: Option<ChannelBroken>,
        }
        let KnownMembers {
            hello,
            ready,
            pool,
            drained,
            broken,
        } = serde_json::from_slice(packet)?;
        // Known members only: an unknown one beside them is a later version's.
        at_most_one([
            hello.map(Self::Hello),
            ready.map(|_| Self::Ready {}),
            pool.map(Self::Pool),
            drained.map(Self::Drained),
            broken.map(Self::Broken),
        ])
    }
}

impl NodeMessage {
    /// Parses a packet; `None` for a message that this version does not know.
    pub fn parse_packet(packet: &[u8]) -> Result<Option<Self>, DispatchMessageError> {
        #[derive(Deserialize)]
        struct KnownMembers {
            welcome: Option<WelcomeMessage>,
            refused: Option<RefusedMessage>,
            peer: Option<PeerMessage>,
            gone: Option<ChannelGone>,
            failed: Option<ChannelFailed>,
        }
        let KnownMembers {
            welcome,
            refused,
            peer,
            gone,
            failed,
        } = serde_json::from_slice(packet)?;
        at_most_one([
            welcome.map(Self::Welcome),
            refused.map(Self::Refused),
            peer.map(Self::Peer),
            gone.map(Self::Gone),
            failed.map(Self::Failed),
        ])
    }
}

fn at_most_one<T, const N: usize>(
    found: [Option<T>; N],
) -> Result<Option<T>, DispatchMessageError> {
    let mut found = found.into_iter().flatten();
    let first = found.next();
    if found.next().is_some() {
        Err(DispatchMessageError::Several)
    } else {
        Ok(first)
    }
}
