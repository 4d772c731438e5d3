//! Where two workers meet.
//!
//! A worker connects out to the rendezvous, which introduces it to a peer and carries their bytes at once ([`way`], over the
//! relay). Meanwhile sockets do what the punching machine of `nearpath-punch` says ([`driver`]); when both sides have a direct
//! connection, the way moves to it in mid-stream. TLS between both identities goes above, whichever way the bytes take.
//!
//! What decides is pure: the machine, the halves of a way, the desk of the rendezvous. What has sockets is at the rim.
#![forbid(unsafe_code)]

pub mod client;
pub mod driver;
pub mod hello;
pub mod kind;
pub mod link;
pub mod message;
pub mod observe;
pub mod quic;
pub mod server;
pub mod ticket;
pub mod way;
mod web;

pub use nearpath_punch::Transport;
