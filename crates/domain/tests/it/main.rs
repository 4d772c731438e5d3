//! Domains over real sockets and memory. One binary, so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod conformance;
mod peer_user;
mod topology;
