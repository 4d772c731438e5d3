//! Signed text: JSON in base64url, a dot, its HMAC-SHA256 in base64url.
//!
//! No header selects an algorithm: there is one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::{Serialize, de::DeserializeOwned};

use super::MAX_TOKEN_BYTES;
use crate::message::SignedToken;

/// Reason why a ticket or relay token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Text has another form.
    #[error("invalid ticket: expected the output of `nearpath rendezvous ticket`")]
    Malformed,
    /// Text has another key or purpose, or was changed.
    #[error("wrong key or purpose: mint the ticket with the rendezvous' --key file")]
    BadSignature,
    /// Text was valid and has expired.
    #[error("the ticket has expired: get a new one")]
    Expired,
}

pub(super) fn sign_token<T: Serialize>(key: &hmac::Key, claims: &T) -> SignedToken {
    let json = serde_json::to_vec(claims).expect("what is sealed has text keys only");
    let body = URL_SAFE_NO_PAD.encode(json);
    let tag = URL_SAFE_NO_PAD.encode(hmac::sign(key, body.as_bytes()));
    SignedToken(format!("{body}.{tag}"))
}

/// Verifies the tag before the body is parsed: the parser never sees unauthenticated data.
pub(super) fn verify_token<T: DeserializeOwned>(
    key: &hmac::Key,
    text: &str,
) -> Result<T, TokenError> {
    // The length is checked first: the cost of an HMAC is bounded for unauthenticated clients.
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

/// Reads the body of a text without verifying its tag.
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
