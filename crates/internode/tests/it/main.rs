//! Nodes with real sockets on loopback, and connections without certificates.
#![allow(clippy::unwrap_used)]

mod drain;
mod faults;
mod fixture;
mod handover;
mod node_list;
mod query;
mod server;
mod state;
mod streams;
mod vectors;
