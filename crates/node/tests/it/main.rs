//! The whole node, on a fake machine and on the real kernel. One binary, so that it links once.
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "helpers of tests have no readers outside"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod agent;
mod fake_machine;
mod fixture;
mod freezing;
mod instances;
mod member;
mod orders;
