//! The rendezvous as workers and strangers meet it: over real sockets, on loopback.
#![allow(clippy::unwrap_used)]

mod drain;
mod first;
mod lines;
mod links;
mod observers;
mod proxy;
mod relays;
mod returns;
mod scale;
mod short;
mod strangers;
mod tls;
