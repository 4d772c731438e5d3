//! Helpers for tests: a rendezvous that a test starts and kills ([`rendezvous`]), and two
//! introduced workers on an internet with NATs ([`introduction`]). Failures are panics.
#![allow(clippy::unwrap_used, missing_docs)]

pub mod exchange;
pub mod introduction;
pub mod prediction;
pub mod rendezvous;
