//! A probe's bytes, without their HMAC.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::punch::session::{Role, SessionId};

use super::{Bytes, Probe, SIZE};

/// The first byte is of no protocol that shares sockets (RFC 9443: 4 to 15 are dropped), so QUIC and STUN never begin so.
const BEGINNING: [u8; 5] = [0x0e, b'n', b'p', b'p', 1];

const LEADER: u8 = 1;
const ASKS: u8 = 2;
const ANSWERS: u8 = 4;
const NOMINATES: u8 = 8;
const SEEN: u8 = 16;
const KNOWN: u8 = 31;

pub(super) fn session(bytes: &[u8]) -> Option<SessionId> {
    let fits = bytes.len() == SIZE && bytes.starts_with(&BEGINNING);
    fits.then(|| bytes[8..24].try_into().ok()).flatten()
}

pub(super) fn write(probe: &Probe, session: &SessionId) -> Bytes {
    let mut bytes = [0; SIZE];
    bytes[..5].copy_from_slice(&BEGINNING);
    bytes[5] = flags(probe);
    bytes[6..8].copy_from_slice(&probe.nominates.unwrap_or(0).to_le_bytes());
    bytes[8..24].copy_from_slice(session);
    bytes[24..32].copy_from_slice(&probe.nonce.to_le_bytes());
    bytes[32..40].copy_from_slice(&probe.ask.unwrap_or(0).to_le_bytes());
    bytes[40..48].copy_from_slice(&probe.answer.unwrap_or(0).to_le_bytes());
    if let Some(seen) = probe.seen {
        write_addr(&mut bytes, seen, session);
    }
    bytes
}

pub(super) fn read(bytes: &Bytes) -> Option<Probe> {
    let (flags, session) = (bytes[5], session(bytes)?);
    let probe = Probe {
        from: if flags & LEADER != 0 { Role::Leader } else { Role::Follower },
        nonce: number(bytes, 24),
        ask: (flags & ASKS != 0).then(|| number(bytes, 32)),
        answer: (flags & ANSWERS != 0).then(|| number(bytes, 40)),
        nominates: (flags & NOMINATES != 0).then(|| u16::from_le_bytes([bytes[6], bytes[7]])),
        seen: if flags & SEEN != 0 { Some(read_addr(bytes, &session)?) } else { None },
    };
    sound(&probe, flags).then_some(probe)
}

/// Numbers begin at 1, and a probe that neither asks nor answers says nothing.
fn sound(probe: &Probe, flags: u8) -> bool {
    let numbered = probe.ask != Some(0) && probe.answer != Some(0) && probe.nominates != Some(0);
    numbered && flags & !KNOWN == 0 && (probe.ask.is_some() || probe.answer.is_some())
}

fn flags(probe: &Probe) -> u8 {
    let flag = |is: bool, bit: u8| if is { bit } else { 0 };
    flag(probe.from == Role::Leader, LEADER)
        | flag(probe.ask.is_some(), ASKS)
        | flag(probe.answer.is_some(), ANSWERS)
        | flag(probe.nominates.is_some(), NOMINATES)
        | flag(probe.seen.is_some(), SEEN)
}

fn number(bytes: &Bytes, at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Family, port and address, XORed with the session: some NATs rewrite addresses that they recognise (RFC 8489 section 14.2).
fn write_addr(bytes: &mut Bytes, addr: SocketAddr, session: &SessionId) {
    bytes[48] = if addr.is_ipv4() { 4 } else { 6 };
    bytes[50..52].copy_from_slice(&addr.port().to_le_bytes());
    match addr.ip() {
        IpAddr::V4(ip) => bytes[52..56].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[52..68].copy_from_slice(&ip.octets()),
    }
    veil(bytes, session);
}

fn read_addr(bytes: &Bytes, session: &SessionId) -> Option<SocketAddr> {
    let mut bytes = *bytes;
    veil(&mut bytes, session);
    let ip = match bytes[48] {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[52..56]).ok()?)),
        6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[52..68]).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_le_bytes([bytes[50], bytes[51]])))
}

fn veil(bytes: &mut Bytes, session: &SessionId) {
    let (port, ip) = bytes[50..68].split_at_mut(2);
    for (byte, mask) in port.iter_mut().zip(session).chain(ip.iter_mut().zip(session)) {
        *byte ^= mask;
    }
}
