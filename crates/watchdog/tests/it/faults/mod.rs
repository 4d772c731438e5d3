//! Calls over QUIC to a real watchdog on another machine, when what lies between does what networks do: it loses, overtakes, doubles and
//! swallows packets, changes addresses, falls silent. Every call ends with the right answer or one clear error, and none runs twice.
//!
//! The machines are the lab's (network namespaces and links in user space). Each test asserts that its fault really happened.

#![cfg(target_os = "linux")]

mod address_changes;
mod caller;
mod handler;
mod nat;
mod packets;
mod silence;
mod two_machines;
