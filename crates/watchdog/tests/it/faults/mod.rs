//! Calls over QUIC to a real watchdog on another machine, over a faulty network: packets are lost,
//! reordered, duplicated or swallowed, addresses change, the link falls silent. Every call ends
//! with the right response or one clear error, and none runs twice.
//!
//! The machines are the lab's (network namespaces and links in user space). Each test asserts that
//! its fault really happened.

#![cfg(target_os = "linux")]

mod address_changes;
mod caller;
mod handler;
mod nat;
mod packets;
mod silence;
mod two_machines;
