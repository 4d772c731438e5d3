//! Whom an instance may call directly.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::codec::{FrameReader, put_list, put_text};
use super::{IdentityFrameError, MAX_CALLEES, MAX_PEERS};
use crate::policy::ZeroRttPolicy;
use crate::{FunctionId, InstanceLocality};

/// Bits of a peer's last byte.
mod flag {
    pub(super) const LEAVING: u8 = 1;
    pub(super) const OTHER_NODE: u8 = 2;
}

/// Most names by which one function calls another.
const MAX_ALIASES: usize = 64;

/// A function that may be called directly, over QUIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalleeEntry {
    /// Which one.
    pub function: FunctionId,
    /// What its caller calls it besides.
    pub aliases: Vec<FunctionId>,
    /// Which calls may go in a first flight.
    pub zero_rtt: ZeroRttPolicy,
    /// Its instances that are there and can be reached; none that is not leaving: it sleeps, and the gateway wakes it.
    pub peers: Vec<CalleePeer>,
}

/// One instance of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalleePeer {
    /// The name of its incarnation: an instance that starts anew has another.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// On which machine it runs, seen from the caller's.
    pub locality: InstanceLocality,
    /// It gets nothing new, and finishes what it has. One that is not told of at all any more has ended.
    pub leaving: bool,
}

pub(super) fn write_callees(all: &[CalleeEntry], out: &mut Vec<u8>) {
    put_list(all, MAX_CALLEES, out, |callee, out| {
        put_text(&callee.function.to_string(), out);
        put_list(&callee.aliases, MAX_ALIASES, out, |alias, out| {
            put_text(&alias.to_string(), out)
        });
        out.push(match callee.zero_rtt {
            ZeroRttPolicy::Always => 0,
            ZeroRttPolicy::Idempotent => 1,
            ZeroRttPolicy::Never => 2,
        });
        put_list(&callee.peers, MAX_PEERS, out, put_peer);
    });
}

fn put_peer(peer: &CalleePeer, out: &mut Vec<u8>) {
    let ip = match peer.addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend(ip.octets());
    out.extend(peer.addr.port().to_le_bytes());
    put_text(&peer.name, out);
    let leaving = if peer.leaving { flag::LEAVING } else { 0 };
    let other_node = if peer.locality == InstanceLocality::OtherNode {
        flag::OTHER_NODE
    } else {
        0
    };
    out.push(leaving | other_node);
}

pub(super) fn read_callees(
    from: &mut FrameReader<'_>,
) -> Result<Vec<CalleeEntry>, IdentityFrameError> {
    from.take_list(MAX_CALLEES, |from| {
        Ok(CalleeEntry {
            function: from.take_function()?,
            aliases: from.take_list(MAX_ALIASES, FrameReader::take_function)?,
            zero_rtt: match from.u8()? {
                0 => ZeroRttPolicy::Always,
                1 => ZeroRttPolicy::Idempotent,
                2 => ZeroRttPolicy::Never,
                _ => return Err(IdentityFrameError::Number),
            },
            peers: from.take_list(MAX_PEERS, take_peer)?,
        })
    })
}

fn take_peer(from: &mut FrameReader<'_>) -> Result<CalleePeer, IdentityFrameError> {
    let ip = Ipv6Addr::from(from.take_ip()?).to_canonical();
    let addr = SocketAddr::new(ip, from.u16()?);
    let name = from.take_text()?.to_owned();
    let flags = from.u8()?;
    if flags & !(flag::LEAVING | flag::OTHER_NODE) != 0 {
        return Err(IdentityFrameError::Number);
    }
    let locality = if flags & flag::OTHER_NODE == 0 {
        InstanceLocality::SameNode
    } else {
        InstanceLocality::OtherNode
    };
    Ok(CalleePeer {
        name,
        addr,
        locality,
        leaving: flags & flag::LEAVING != 0,
    })
}
