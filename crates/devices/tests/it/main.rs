//! Device protocols behind a real gateway.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, but knows their helpers only inside `#[cfg(test)]`

mod fixture;
mod listeners;
