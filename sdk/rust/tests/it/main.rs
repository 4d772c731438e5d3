//! The SDK in a domain, alone, and over HTTPS. One binary, so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

#[macro_use]
mod domain_fixture;

mod domain;
mod drafts;
mod https;
mod standalone;
mod streams;
mod threads;
