//! Tests of the controller from outside: its API over HTTP and its durability. A single binary, so
//! that it links once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod api;
mod auth;
mod backup;
mod child;
mod contract;
mod declared;
mod disk;
mod durability;
mod fixture;
mod logs;
mod peers;
mod wire;
