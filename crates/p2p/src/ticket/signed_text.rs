//! Sealed text: JSON in base64url, a dot, its HMAC-SHA256 in base64url. No header chooses an algorithm: there is one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::{Serialize, de::DeserializeOwned};

use super::LONGEST;
use crate::message::Pass;

/// Why a ticket or pass opens nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSeal {
    /// It is not such a text at all.
    #[error("it is no ticket: take the text as `nearpath rendezvous ticket` printed it")]
    Form,
    /// It was made with another key, for another purpose, or was changed.
    #[error("it was not made with this rendezvous' key, or not for this: mint it with the file of --key")]
    Seal,
    /// It was good once.
    #[error("it has come to its end: get a new one")]
    Expired,
}

pub(super) fn seal<T: Serialize>(key: &hmac::Key, what: &T) -> Pass {
    let json = serde_json::to_vec(what).expect("what is sealed has text keys only");
    let body = URL_SAFE_NO_PAD.encode(json);
    let tag = URL_SAFE_NO_PAD.encode(hmac::sign(key, body.as_bytes()));
    Pass(format!("{body}.{tag}"))
}

/// The seal is looked at before what it seals: nothing of a stranger's is parsed.
pub(super) fn open<T: DeserializeOwned>(key: &hmac::Key, text: &str) -> Result<T, BadSeal> {
    let (body, tag) = text.split_once('.').filter(|_| text.len() <= LONGEST).ok_or(BadSeal::Form)?;
    let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| BadSeal::Form)?;
    hmac::verify(key, body.as_bytes(), &tag).map_err(|_| BadSeal::Seal)?;
    read(body)
}

/// What is under a seal that nobody has looked at.
pub(super) fn unproven<T: DeserializeOwned>(text: &str) -> Result<T, BadSeal> {
    let (body, _) = text.split_once('.').filter(|_| text.len() <= LONGEST).ok_or(BadSeal::Form)?;
    read(body)
}

fn read<T: DeserializeOwned>(body: &str) -> Result<T, BadSeal> {
    let json = URL_SAFE_NO_PAD.decode(body).map_err(|_| BadSeal::Form)?;
    serde_json::from_slice(&json).map_err(|_| BadSeal::Form)
}

pub(super) fn in_time(until: u64, unix: u64) -> Result<(), BadSeal> {
    if unix < until { Ok(()) } else { Err(BadSeal::Expired) }
}
