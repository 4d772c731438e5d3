//! Programs that know nothing of it, under the filter, with warm sockets to a real server: what they print is what they print without.
#![allow(clippy::unwrap_used)] // in the helpers, too

mod cost;
mod harness;
mod isolation;
mod languages;
mod node_pool;
mod pass_through;
mod server;
mod tenants;
