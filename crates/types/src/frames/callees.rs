//! Whom an instance may call directly.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::bytes::{Reader, put_many, put_text};
use super::{BadFrame, MOST_CALLEES, MOST_PEERS};
use crate::policy::ZeroRtt;
use crate::{FunctionId, Locality};

/// Bits of a peer's last byte.
mod flag {
    pub(super) const LEAVING: u8 = 1;
    pub(super) const OTHER_NODE: u8 = 2;
}

/// Most names by which one function calls another.
const MOST_ALIASES: usize = 64;

/// A function that may be called directly, over QUIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callee {
    /// Which one.
    pub function: FunctionId,
    /// What its caller calls it besides.
    pub aliases: Vec<FunctionId>,
    /// Which calls may go in a first flight.
    pub zero_rtt: ZeroRtt,
    /// Its instances that are there and can be reached; none that is not leaving: it sleeps, and the gateway wakes it.
    pub peers: Vec<Peer>,
}

/// One instance of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The name of its incarnation: an instance that starts anew has another.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// On which machine it runs, seen from the caller's.
    pub locality: Locality,
    /// It gets nothing new, and finishes what it has. One that is not told of at all any more has ended.
    pub leaving: bool,
}

pub(super) fn write(all: &[Callee], out: &mut Vec<u8>) {
    put_many(all, MOST_CALLEES, out, |callee, out| {
        put_text(&callee.function.to_string(), out);
        put_many(&callee.aliases, MOST_ALIASES, out, |alias, out| put_text(&alias.to_string(), out));
        out.push(match callee.zero_rtt {
            ZeroRtt::Always => 0,
            ZeroRtt::Idempotent => 1,
            ZeroRtt::Never => 2,
        });
        put_many(&callee.peers, MOST_PEERS, out, put_peer);
    });
}

fn put_peer(peer: &Peer, out: &mut Vec<u8>) {
    let ip = match peer.addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend(ip.octets());
    out.extend(peer.addr.port().to_le_bytes());
    put_text(&peer.name, out);
    let leaving = if peer.leaving { flag::LEAVING } else { 0 };
    let other_node = if peer.locality == Locality::OtherNode { flag::OTHER_NODE } else { 0 };
    out.push(leaving | other_node);
}

pub(super) fn read(from: &mut Reader<'_>) -> Result<Vec<Callee>, BadFrame> {
    from.many(MOST_CALLEES, |from| {
        Ok(Callee {
            function: from.function()?,
            aliases: from.many(MOST_ALIASES, Reader::function)?,
            zero_rtt: match from.u8()? {
                0 => ZeroRtt::Always,
                1 => ZeroRtt::Idempotent,
                2 => ZeroRtt::Never,
                _ => return Err(BadFrame::Number),
            },
            peers: from.many(MOST_PEERS, peer)?,
        })
    })
}

fn peer(from: &mut Reader<'_>) -> Result<Peer, BadFrame> {
    let ip = Ipv6Addr::from(from.ip()?).to_canonical();
    let addr = SocketAddr::new(ip, from.u16()?);
    let name = from.text()?.to_owned();
    let flags = from.u8()?;
    if flags & !(flag::LEAVING | flag::OTHER_NODE) != 0 {
        return Err(BadFrame::Number);
    }
    let locality = if flags & flag::OTHER_NODE == 0 { Locality::SameNode } else { Locality::OtherNode };
    Ok(Peer { name, addr, locality, leaving: flags & flag::LEAVING != 0 })
}
