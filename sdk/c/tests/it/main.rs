//! The C ABI, from C. One binary, so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod abi;
