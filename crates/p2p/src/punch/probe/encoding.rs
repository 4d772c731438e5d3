//! Bytes of a probe without its HMAC, as `contract/punch.md` lays them out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::punch::session::{SessionId, SessionRole};

use super::{PROBE_BYTES, Probe, ProbeBytes};

/// First bytes: a marker, `npp`, and version 1. No packet of STUN, DTLS, RTP or QUIC begins with 4
/// to 15 (RFC 9443 section 2), so a probe can share a socket with them.
pub(super) const MAGIC: [u8; 5] = [0x0e, b'n', b'p', b'p', 1];

const LEADER_FLAG: u8 = 1;
const REQUEST_FLAG: u8 = 2;
const RESPONSE_FLAG: u8 = 4;
const NOMINATION_FLAG: u8 = 8;
const MAPPED_ADDR_FLAG: u8 = 16;
const KNOWN_FLAGS: u8 = 31;

/// Returns the session id if the bytes have a probe's length and beginning. Nothing else is
/// checked.
pub(super) fn read_session(bytes: &[u8]) -> Option<SessionId> {
    let is_probe = bytes.len() == PROBE_BYTES && bytes.starts_with(&MAGIC);
    is_probe.then(|| bytes[8..24].try_into().ok()).flatten()
}

/// Encodes a probe. The bytes of the HMAC stay zero.
pub(super) fn encode(probe: &Probe, session: &SessionId) -> ProbeBytes {
    let mut bytes = [0; PROBE_BYTES];
    bytes[..5].copy_from_slice(&MAGIC);
    bytes[5] = encode_flags(probe);
    bytes[6..8].copy_from_slice(&probe.nomination.unwrap_or(0).to_le_bytes());
    bytes[8..24].copy_from_slice(session);
    bytes[24..32].copy_from_slice(&probe.nonce.to_le_bytes());
    bytes[32..40].copy_from_slice(&probe.request.unwrap_or(0).to_le_bytes());
    bytes[40..48].copy_from_slice(&probe.response.unwrap_or(0).to_le_bytes());
    if let Some(addr) = probe.mapped_addr {
        write_address(&mut bytes, addr, session);
    }
    bytes
}

/// Decodes a probe whose HMAC was verified. Returns `None` if its fields contradict each other.
pub(super) fn decode(bytes: &ProbeBytes) -> Option<Probe> {
    let (flags, session) = (bytes[5], read_session(bytes)?);
    let probe = Probe {
        sender: if flags & LEADER_FLAG != 0 {
            SessionRole::Leader
        } else {
            SessionRole::Follower
        },
        nonce: read_u64(bytes, 24),
        request: (flags & REQUEST_FLAG != 0).then(|| read_u64(bytes, 32)),
        response: (flags & RESPONSE_FLAG != 0).then(|| read_u64(bytes, 40)),
        nomination: (flags & NOMINATION_FLAG != 0)
            .then(|| u16::from_le_bytes([bytes[6], bytes[7]])),
        mapped_addr: if flags & MAPPED_ADDR_FLAG != 0 {
            Some(read_address(bytes, &session)?)
        } else {
            None
        },
    };
    is_consistent(&probe, flags).then_some(probe)
}

/// Checks that no number is 0, that all flags are known, and that the probe is a request, a
/// response or both.
fn is_consistent(probe: &Probe, flags: u8) -> bool {
    let numbered =
        probe.request != Some(0) && probe.response != Some(0) && probe.nomination != Some(0);
    // A probe with unknown flags is refused: they may change the meaning of the other bytes.
    numbered && flags & !KNOWN_FLAGS == 0 && (probe.request.is_some() || probe.response.is_some())
}

fn encode_flags(probe: &Probe) -> u8 {
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    flag(probe.sender == SessionRole::Leader, LEADER_FLAG)
        | flag(probe.request.is_some(), REQUEST_FLAG)
        | flag(probe.response.is_some(), RESPONSE_FLAG)
        | flag(probe.nomination.is_some(), NOMINATION_FLAG)
        | flag(probe.mapped_addr.is_some(), MAPPED_ADDR_FLAG)
}

fn read_u64(bytes: &ProbeBytes, at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes family, port and address. Port and address are XORed with the session id, because some
/// NATs rewrite addresses that they recognise in a payload (RFC 8489 section 14.2).
fn write_address(bytes: &mut ProbeBytes, addr: SocketAddr, session: &SessionId) {
    bytes[48] = if addr.is_ipv4() { 4 } else { 6 };
    bytes[50..52].copy_from_slice(&addr.port().to_le_bytes());
    match addr.ip() {
        IpAddr::V4(ip) => bytes[52..56].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[52..68].copy_from_slice(&ip.octets()),
    }
    mask_address(bytes, session);
}

fn read_address(bytes: &ProbeBytes, session: &SessionId) -> Option<SocketAddr> {
    let mut bytes = *bytes;
    mask_address(&mut bytes, session);
    let ip = match bytes[48] {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[52..56]).ok()?)),
        6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[52..68]).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(
        ip,
        u16::from_le_bytes([bytes[50], bytes[51]]),
    ))
}

/// XORs port and address with the session id. A second call restores them.
fn mask_address(bytes: &mut ProbeBytes, session: &SessionId) {
    // Each of the two begins at byte 0 of the session id: the 16 bytes of an IPv6 address use the
    // whole id.
    let (port, ip) = bytes[50..68].split_at_mut(2);
    for (byte, mask) in port
        .iter_mut()
        .zip(session)
        .chain(ip.iter_mut().zip(session))
    {
        *byte ^= mask;
    }
}
