//! The gateway from outside: real sockets on both sides.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but knows their helpers only inside `#[cfg(test)]`

mod abuse;
mod admission;
mod basics;
mod drain;
mod failures;
mod house;
mod http3;
mod inner;
mod malformed;
mod memory;
mod records;
mod secured;
mod streams;
mod takers;
mod tls;
mod traced;
mod whole;
