//! Functions that an instance may call directly.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::codec::{FrameReader, put_list, put_text};
use super::{IdentityFrameError, MAX_CALLEES, MAX_PEERS};
use crate::policy::ZeroRttPolicy;
use crate::{FunctionId, InstanceLocality};

/// Flags in a peer's last byte.
mod flag {
    pub(super) const LEAVING: u8 = 1;
    pub(super) const OTHER_NODE: u8 = 2;
}

/// Maximum number of names by which one function calls another.
const MAX_ALIASES: usize = 64;

/// Function that may be called directly, over QUIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalleeEntry {
    /// Full name.
    pub function: FunctionId,
    /// Other names that its caller uses.
    pub aliases: Vec<FunctionId>,
    /// Calls that may go in a first flight.
    pub zero_rtt: ZeroRttPolicy,
    /// Reachable instances. If all of them are leaving, the function sleeps, and the gateway wakes
    /// it.
    pub peers: Vec<CalleePeer>,
}

/// Instance of a callee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalleePeer {
    /// Name of the incarnation: a restarted instance has another.
    pub name: String,
    /// Address of its listener.
    pub addr: SocketAddr,
    /// Machine of the instance, seen from the caller's.
    pub locality: InstanceLocality,
    /// Gets no new calls and finishes open ones. A peer that is not listed any more has ended.
    pub leaving: bool,
}

pub(super) fn write_callees(all: &[CalleeEntry], out: &mut Vec<u8>) {
    put_list(all, MAX_CALLEES, out, |callee, out| {
        put_text(&callee.function.to_string(), out);
        put_list(&callee.aliases, MAX_ALIASES, out, |alias, out| {
            put_text(&alias.to_string(), out)
        });
        // The contract's numbers: the enum may change its order.
        out.push(match callee.zero_rtt {
            ZeroRttPolicy::Always => 0,
            ZeroRttPolicy::Idempotent => 1,
            ZeroRttPolicy::Never => 2,
        });
        put_list(&callee.peers, MAX_PEERS, out, put_peer);
    });
}

fn put_peer(peer: &CalleePeer, out: &mut Vec<u8>) {
    // One form for both families: IPv4 is mapped into IPv6 (RFC 4291 section 2.5.5.2).
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
    // Mapped addresses become IPv4 again, so that sockets can use them.
    let ip = Ipv6Addr::from(from.take_ip()?).to_canonical();
    let addr = SocketAddr::new(ip, from.u16()?);
    let name = from.take_text()?.to_owned();
    let flags = from.u8()?;
    // A flag of a later release could mean anything, so the frame is refused.
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
