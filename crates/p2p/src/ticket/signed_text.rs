//! Sealed text: JSON in base64url, a dot, its HMAC-SHA256 in base64url. No header chooses an algorithm: there is one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::{Serialize, de::DeserializeOwned};

use super::MAX_TOKEN_BYTES;
use crate::message::SignedToken;

/// Why a ticket or pass opens nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is not such a text at all.
    #[error("it is no ticket: take the text as `nearpath rendezvous ticket` printed it")]
    Malformed,
    /// It was made with another key, for another purpose, or was changed.
    #[error(
        "it was not made with this rendezvous' key, or not for this: mint it with the file of --key"
    )]
    BadSignature,
    /// It was good once.
    #[error("it has come to its end: get a new one")]
    Expired,
}

pub(super) fn sign_token<T: Serialize>(key: &hmac::Key, claims: &T) -> SignedToken {
    let json = serde_json::to_vec(claims).expect("what is sealed has text keys only");
    let body = URL_SAFE_NO_PAD.encode(json);
    let tag = URL_SAFE_NO_PAD.encode(hmac::sign(key, body.as_bytes()));
    SignedToken(format!("{body}.{tag}"))
}

/// The seal is looked at before what it seals: nothing of a stranger's is parsed.
pub(super) fn verify_token<T: DeserializeOwned>(
    key: &hmac::Key,
    text: &str,
) -> Result<T, TokenError> {
    let (body, tag) = text
        .split_once('.')
        .filter(|_| text.len() <= MAX_TOKEN_BYTES)
        .ok_or(TokenError::Malformed)?;
    let tag = URL_SAFE_NO_PAD
        .decode(tag)
        .map_err(|_| TokenError::Malformed)?;
    hmac::verify(key, body.as_bytes(), &tag).map_err(|_| TokenError::BadSignature)?;
    decode_body(body)
}

/// What is under a seal that nobody has looked at.
pub(super) fn read_unverified<T: DeserializeOwned>(text: &str) -> Result<T, TokenError> {
    let (body, _) = text
        .split_once('.')
        .filter(|_| text.len() <= MAX_TOKEN_BYTES)
        .ok_or(TokenError::Malformed)?;
    decode_body(body)
}

fn decode_body<T: DeserializeOwned>(body: &str) -> Result<T, TokenError> {
    let json = URL_SAFE_NO_PAD
        .decode(body)
        .map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&json).map_err(|_| TokenError::Malformed)
}

pub(super) fn check_expiry(until: u64, unix: u64) -> Result<(), TokenError> {
    if unix < until {
        Ok(())
    } else {
        Err(TokenError::Expired)
    }
}
