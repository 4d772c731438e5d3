//! Programs that know nothing of it, under the filter, with warm sockets to a real server: what they print is what they print without.
#![allow(clippy::unwrap_used)] // in the helpers, too

mod cost;
mod doubts;
mod harness;
mod isolation;
mod kept;
mod languages;
mod server;
mod tenants;
