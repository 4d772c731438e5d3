//! Connections between two workers that cannot be reached from outside: the nearest path there is, and TLS above it.
//!
//! A worker connects out to the rendezvous ([`control`]), which introduces it to a peer and carries their bytes at once
//! ([`migrate`], over the relay). Meanwhile sockets do what the hole-punching machine ([`punch`]) says ([`driver`]). When both
//! sides have a direct connection, the stream migrates to it without losing a byte. [`is_link_local`] puts TLS between both
//! identities above it, whichever path the bytes take.
//!
//! [`message`] and [`worker_ticket`] are the protocol that the rendezvous server (`nearpath-rendezvous`) speaks, too.
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
