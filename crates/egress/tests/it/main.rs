//! Unmodified programs under the filter, with warm sockets to a real server: they print the same as
//! without.
#![allow(clippy::unwrap_used)] // also in helpers

mod cost;
mod harness;
mod isolation;
mod languages;
mod node_pool;
mod pass_through;
mod server;
mod tenants;
