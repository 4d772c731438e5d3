//! Connections between two workers that are not reachable from outside: the shortest available
//! path, with TLS above.
//!
//! A worker connects out to the rendezvous ([`control`]). The rendezvous introduces it to a peer
//! and relays their bytes at once ([`migrate`]). Meanwhile [`driver`] runs the hole-punching state
//! machine ([`punch`]) on real sockets. When both sides have a direct connection, the stream
//! migrates to it without losing a byte. [`link`] runs TLS between both identities above it,
//! whichever path the bytes take.
//!
//! [`message`] and [`ticket`] are the protocol that the rendezvous server (`nearpath-rendezvous`)
//! speaks, too.
#![forbid(unsafe_code)]

pub mod control;
pub mod driver;
pub mod handshake;
pub mod link;
pub mod message;
pub mod migrate;
pub mod nat_survey;
pub mod punch;
pub mod quic;
pub mod reflexive_address;
pub mod ticket;
pub mod websocket;

pub use punch::Transport;
