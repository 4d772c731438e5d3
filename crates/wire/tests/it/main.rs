//! Connections between parts of nearpath, over real sockets on loopback. One binary, so that it
//! links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod h3;
mod nodes;
mod quic;
