//! The real program against a scripted gateway: its requests, its output, its exit codes.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod ca;
mod calls;
mod deploy;
mod fake_gateway;
mod invoke;
mod nodes;
mod rendezvous;
mod usage;
