//! Encoding of binding requests and responses. Integers are little-endian.

use std::net::{IpAddr, SocketAddr};

use ring::hmac;

use super::{AddressCookie, BindingRequest, BindingResponse, MESSAGE_BYTES, ResponseOrigin};

/// First bytes. No probe of `contract/punch.md` and no QUIC, STUN, DTLS or RTP packet begins so
/// (RFC 9443).
pub(super) const MAGIC: [u8; 5] = [0x0e, b'n', b'p', b'o', 1];

const RESPONSE_FLAG: u8 = 128;
const SECOND_ADDRESS_FLAG: u8 = 1;
const SECOND_PORT_FLAG: u8 = 2;
const IPV6_FLAG: u8 = 4;
/// Offset of the tag.
const TAG_OFFSET: usize = 64;

pub(super) type ObserverToken = [u8; 16];

pub(super) fn encode_request(
    request: &BindingRequest,
    token: &ObserverToken,
    key: &hmac::Key,
) -> [u8; MESSAGE_BYTES] {
    let mut bytes = write_header(token, request.transaction_id, &request.cookie);
    bytes[5] = match request.origin {
        ResponseOrigin::SameSocket => 0,
        ResponseOrigin::OtherPort => 1,
        ResponseOrigin::OtherAddress => 2,
    };
    append_tag(bytes, key)
}

/// Reads the token of a request.
///
/// The token is read before anything is verified: the key derives from it.
pub(super) fn read_token(bytes: &[u8]) -> Option<ObserverToken> {
    let fits = bytes.len() == MESSAGE_BYTES
        && bytes.starts_with(&MAGIC)
        && bytes[5] < 3
        && bytes[6..8] == [0, 0];
    if fits {
        Some(read_array(bytes, 8))
    } else {
        None
    }
}

/// Decodes a request whose form [`read_token`] has checked.
pub(super) fn decode_request(bytes: &[u8], key: &hmac::Key) -> Option<BindingRequest> {
    verify_tag(bytes, key)?;
    // `read_token` has checked that the byte is below 3.
    let from = [
        ResponseOrigin::SameSocket,
        ResponseOrigin::OtherPort,
        ResponseOrigin::OtherAddress,
    ][usize::from(bytes[5])];
    // Padding must be zero: a later version may give it a meaning.
    let padding = bytes[48..TAG_OFFSET].iter().all(|byte| *byte == 0);
    padding.then(|| BindingRequest {
        origin: from,
        transaction_id: u64::from_le_bytes(read_array(bytes, 24)),
        cookie: read_array(bytes, 32),
    })
}

pub(super) fn encode_response(
    response: &BindingResponse,
    token: &ObserverToken,
    key: &hmac::Key,
) -> [u8; MESSAGE_BYTES] {
    let mut bytes = write_header(token, response.transaction_id, &response.cookie);
    let flag = |is: bool, bit| if is { bit } else { 0 };
    bytes[5] = RESPONSE_FLAG
        | flag(response.second_address, SECOND_ADDRESS_FLAG)
        | flag(response.second_port, SECOND_PORT_FLAG)
        | flag(response.mapped_addr.is_ipv6(), IPV6_FLAG);
    bytes[6..8].copy_from_slice(&response.mapped_addr.port().to_le_bytes());
    match response.mapped_addr.ip() {
        IpAddr::V4(ip) => bytes[48..52].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[48..64].copy_from_slice(&ip.octets()),
    }
    // Masked before signing, as the peer verifies what it receives.
    mask_address(&mut bytes, token);
    append_tag(bytes, key)
}

pub(super) fn decode_response(
    bytes: &[u8],
    token: &ObserverToken,
    key: &hmac::Key,
) -> Option<BindingResponse> {
    let mut bytes: [u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
    let fits =
        bytes.starts_with(&MAGIC) && bytes[5] & !7 == RESPONSE_FLAG && bytes[8..24] == *token;
    // Nothing is decoded before the tag is verified.
    verify_tag(&bytes, key).filter(|()| fits)?;
    mask_address(&mut bytes, token);
    let ip = if bytes[5] & IPV6_FLAG == 0 {
        IpAddr::from(read_array::<4>(&bytes, 48))
    } else {
        IpAddr::from(read_array::<16>(&bytes, 48))
    };
    Some(BindingResponse {
        second_address: bytes[5] & SECOND_ADDRESS_FLAG != 0,
        second_port: bytes[5] & SECOND_PORT_FLAG != 0,
        transaction_id: u64::from_le_bytes(read_array(&bytes, 24)),
        cookie: read_array(&bytes, 32),
        mapped_addr: SocketAddr::new(ip, u16::from_le_bytes(read_array(&bytes, 6))),
    })
}

fn write_header(token: &ObserverToken, number: u64, cookie: &AddressCookie) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..5].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(token);
    bytes[24..32].copy_from_slice(&number.to_le_bytes());
    bytes[32..48].copy_from_slice(cookie);
    bytes
}

/// Masks the address: some NATs rewrite bytes that look like one (RFC 8489 section 14.2).
fn mask_address(bytes: &mut [u8; MESSAGE_BYTES], token: &ObserverToken) {
    bytes[6] ^= token[0];
    bytes[7] ^= token[1];
    bytes[48..TAG_OFFSET]
        .iter_mut()
        .zip(token)
        .for_each(|(byte, mask)| *byte ^= mask);
}

fn append_tag(mut bytes: [u8; MESSAGE_BYTES], key: &hmac::Key) -> [u8; MESSAGE_BYTES] {
    let tag = hmac::sign(key, &bytes[..TAG_OFFSET]);
    bytes[TAG_OFFSET..].copy_from_slice(&tag.as_ref()[..MESSAGE_BYTES - TAG_OFFSET]);
    bytes
}

/// Verifies the tag in constant time.
///
/// Half of the HMAC is sent (RFC 2104 section 5), so `ring`'s comparison of whole tags does not
/// apply.
fn verify_tag(bytes: &[u8], key: &hmac::Key) -> Option<()> {
    let (text, tag) = bytes.split_at_checked(TAG_OFFSET)?;
    let expected = hmac::sign(key, text);
    let difference = tag
        .iter()
        .zip(expected.as_ref())
        .fold(0, |other, (a, b)| other | (a ^ b));
    // `black_box` keeps the compiler from leaving the fold at the first difference.
    (tag.len() == MESSAGE_BYTES - TAG_OFFSET && std::hint::black_box(difference) == 0).then_some(())
}

/// Reads `N` bytes at an offset; the caller guarantees that they exist.
fn read_array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
