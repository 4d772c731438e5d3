//! Workers on one machine and behind NATs, and the contract's vectors.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but knows their helpers only inside `#[cfg(test)]`

mod loopback;
mod migrate_vectors;
mod nat_matrix;
mod punch_vectors;
mod rendezvous_vectors;
