//! The watchdog as a program: its contract, and calls over networks with faults. One binary, so
//! that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod contract;
mod faults;
