//! The messages of `contract/dispatch.md`: one JSON object a packet, named by its only known member.
//!
//! Readers pass over messages and members that they do not know, so that both sides can learn new ones apart.

mod door;
mod peers;
#[cfg(test)]
mod tests;
mod words;

use serde::{Deserialize, Serialize};

pub use door::{Hello, OwnPool, Refused, Welcome};
pub use peers::{Broken, Drained, Failed, Gone, Lack, Peer, Terms};
pub use words::{Bell, End, Isolation, Mode, Role};

/// Most bytes of a packet.
pub const MAX_PACKET: usize = 4096;
/// Of the protocol.
pub const VERSION: u32 = 1;

/// From the party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FromParty {
    /// See [`Hello`].
    Hello(Hello),
    /// It takes calls from now on.
    Ready {},
    /// See [`OwnPool`].
    Pool(OwnPool),
    /// See [`Drained`].
    Drained(Drained),
    /// See [`Broken`].
    Broken(Broken),
}

/// From the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FromNode {
    /// See [`Welcome`].
    Welcome(Welcome),
    /// See [`Refused`].
    Refused(Refused),
    /// See [`Peer`].
    Peer(Peer),
    /// See [`Gone`].
    Gone(Gone),
    /// See [`Failed`].
    Failed(Failed),
}

/// Why a packet is no message; its sender is at fault.
#[derive(Debug, thiserror::Error)]
pub enum BadMessage {
    /// Not JSON, or a member of another type.
    #[error("the packet is not a message of the dispatch protocol: {0}")]
    Json(#[from] serde_json::Error),
    /// Two messages at once.
    #[error("the packet holds more than one message")]
    Several,
}

impl FromParty {
    /// Reads one. `None` is a message that this version does not know.
    pub fn read(packet: &[u8]) -> Result<Option<Self>, BadMessage> {
        #[derive(Deserialize)]
        struct Known {
            hello: Option<Hello>,
            ready: Option<serde::de::IgnoredAny>,
            pool: Option<OwnPool>,
            drained: Option<Drained>,
            broken: Option<Broken>,
        }
        let Known { hello, ready, pool, drained, broken } = serde_json::from_slice(packet)?;
        only([
            hello.map(Self::Hello),
            ready.map(|_| Self::Ready {}),
            pool.map(Self::Pool),
            drained.map(Self::Drained),
            broken.map(Self::Broken),
        ])
    }
}

impl FromNode {
    /// Reads one. `None` is a message that this version does not know.
    pub fn read(packet: &[u8]) -> Result<Option<Self>, BadMessage> {
        #[derive(Deserialize)]
        struct Known {
            welcome: Option<Welcome>,
            refused: Option<Refused>,
            peer: Option<Peer>,
            gone: Option<Gone>,
            failed: Option<Failed>,
        }
        let Known { welcome, refused, peer, gone, failed } = serde_json::from_slice(packet)?;
        only([
            welcome.map(Self::Welcome),
            refused.map(Self::Refused),
            peer.map(Self::Peer),
            gone.map(Self::Gone),
            failed.map(Self::Failed),
        ])
    }
}

fn only<T, const N: usize>(found: [Option<T>; N]) -> Result<Option<T>, BadMessage> {
    let mut found = found.into_iter().flatten();
    let first = found.next();
    if found.next().is_some() { Err(BadMessage::Several) } else { Ok(first) }
}
