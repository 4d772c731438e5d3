//! Worker processes that connect to a rendezvous with tickets and identities, and stream to each
//! other.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but knows their helpers only inside `#[cfg(test)]`

mod control_messages;
mod edges;
