//! Two workers behind NATs of every kind, with real sockets and a real kernel's NAT: they meet where theory says that they
//! can, and the relay carries the bytes elsewhere; in both cases every byte arrives, once and in order.
//!
//! By default each kind meets another one; all pairs, and a hundred meetings of some in a row, are run by `make test-nat`.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but knows their helpers only inside `#[cfg(test)]`

mod matrix;
mod often;
mod theory;
mod upgrade;
mod whole;
