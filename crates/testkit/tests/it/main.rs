//! The lab on the real kernel. One binary, so that it links once.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod lab;
mod lab_cleanup;
mod nat;
