//! The bytes of questions and answers. Integers are little-endian.

use std::net::{IpAddr, SocketAddr};

use ring::hmac;

use super::{Answer, Cookie, From, Question, SIZE};

/// No probe of `contract/punch.md`, and no QUIC, STUN, DTLS or RTP packet begins so.
pub(super) const MAGIC: [u8; 5] = [0x0e, b'n', b'p', b'o', 1];

const ANSWER: u8 = 128;
const SECOND_ADDRESS: u8 = 1;
const SECOND_PORT: u8 = 2;
const V6: u8 = 4;
/// Where the tag begins.
const TAG: usize = 64;

pub(super) type Token = [u8; 16];

pub(super) fn write_question(question: &Question, token: &Token, key: &hmac::Key) -> [u8; SIZE] {
    let mut bytes = begin(token, question.number, &question.cookie);
    bytes[5] = match question.from {
        From::Here => 0,
        From::OtherPort => 1,
        From::OtherAddress => 2,
    };
    sign(bytes, key)
}

/// The token is read before anything is proved: the key follows from it.
pub(super) fn token(bytes: &[u8]) -> Option<Token> {
    let fits = bytes.len() == SIZE && bytes.starts_with(&MAGIC) && bytes[5] < 3 && bytes[6..8] == [0, 0];
    if fits { Some(part(bytes, 8)) } else { None }
}

/// A question whose form [`token`] has looked at.
pub(super) fn read_question(bytes: &[u8], key: &hmac::Key) -> Option<Question> {
    verify(bytes, key)?;
    let from = [From::Here, From::OtherPort, From::OtherAddress][usize::from(bytes[5])];
    let padding = bytes[48..TAG].iter().all(|byte| *byte == 0);
    padding.then(|| Question { from, number: u64::from_le_bytes(part(bytes, 24)), cookie: part(bytes, 32) })
}

pub(super) fn write_answer(answer: &Answer, token: &Token, key: &hmac::Key) -> [u8; SIZE] {
    let mut bytes = begin(token, answer.number, &answer.cookie);
    let flag = |is: bool, bit| if is { bit } else { 0 };
    bytes[5] = ANSWER
        | flag(answer.second_address, SECOND_ADDRESS)
        | flag(answer.second_port, SECOND_PORT)
        | flag(answer.seen.is_ipv6(), V6);
    bytes[6..8].copy_from_slice(&answer.seen.port().to_le_bytes());
    match answer.seen.ip() {
        IpAddr::V4(ip) => bytes[48..52].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[48..64].copy_from_slice(&ip.octets()),
    }
    mask(&mut bytes, token);
    sign(bytes, key)
}

pub(super) fn read_answer(bytes: &[u8], token: &Token, key: &hmac::Key) -> Option<Answer> {
    let mut bytes: [u8; SIZE] = bytes.try_into().ok()?;
    let fits = bytes.starts_with(&MAGIC) && bytes[5] & !7 == ANSWER && bytes[8..24] == *token;
    verify(&bytes, key).filter(|()| fits)?;
    mask(&mut bytes, token);
    let ip =
        if bytes[5] & V6 == 0 { IpAddr::from(part::<4>(&bytes, 48)) } else { IpAddr::from(part::<16>(&bytes, 48)) };
    Some(Answer {
        second_address: bytes[5] & SECOND_ADDRESS != 0,
        second_port: bytes[5] & SECOND_PORT != 0,
        number: u64::from_le_bytes(part(&bytes, 24)),
        cookie: part(&bytes, 32),
        seen: SocketAddr::new(ip, u16::from_le_bytes(part(&bytes, 6))),
    })
}

fn begin(token: &Token, number: u64, cookie: &Cookie) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[..5].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(token);
    bytes[24..32].copy_from_slice(&number.to_le_bytes());
    bytes[32..48].copy_from_slice(cookie);
    bytes
}

/// Some NATs rewrite what looks like an address (RFC 8489 section 14.2).
fn mask(bytes: &mut [u8; SIZE], token: &Token) {
    bytes[6] ^= token[0];
    bytes[7] ^= token[1];
    bytes[48..TAG].iter_mut().zip(token).for_each(|(byte, mask)| *byte ^= mask);
}

fn sign(mut bytes: [u8; SIZE], key: &hmac::Key) -> [u8; SIZE] {
    let tag = hmac::sign(key, &bytes[..TAG]);
    bytes[TAG..].copy_from_slice(&tag.as_ref()[..SIZE - TAG]);
    bytes
}

/// Half of the HMAC is sent (RFC 2104 section 5), so it is compared here, in constant time.
fn verify(bytes: &[u8], key: &hmac::Key) -> Option<()> {
    let (text, tag) = bytes.split_at_checked(TAG)?;
    let right = hmac::sign(key, text);
    let other = tag.iter().zip(right.as_ref()).fold(0, |other, (a, b)| other | (a ^ b));
    (tag.len() == SIZE - TAG && std::hint::black_box(other) == 0).then_some(())
}

/// `N` bytes from here on; the caller knows that they are there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
