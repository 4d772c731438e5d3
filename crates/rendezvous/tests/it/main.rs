//! The rendezvous with real sockets on loopback.
#![allow(clippy::unwrap_used)]

mod control_connections;
mod drain;
mod first_byte;
mod links;
mod observers;
mod proxy;
mod relay_resumption;
mod relays;
mod scale;
mod short_links;
mod tls;
mod unauthorized;
