//! The real program, and the native shop on a real `nearpath up`.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod boutique;
mod smoke;
/// The running `nearpath up` of the system tests, of which these need little.
#[allow(dead_code, unused_imports, unused_macros)]
#[path = "../../../tests/system/test_server.rs"]
mod test_server;
