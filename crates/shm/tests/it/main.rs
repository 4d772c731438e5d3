//! The memory of a domain from outside: its parties, its processes, and those that keep no rule.
//! One binary, so that it links once.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod channel;
mod owned_slot;
mod pool_model;
mod processes;
mod random_input;
mod strict;
mod userfault;
mod vectors;
