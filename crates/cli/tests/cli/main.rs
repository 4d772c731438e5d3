//! The real program against a gateway that is a fake: what it asks, what it prints, how it ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod calls;
mod deploy;
mod fake;
mod invoke;
mod rendezvous;
mod usage;
